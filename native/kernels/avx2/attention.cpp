#include "kernels/attention_steps.hpp"
#include "kernels/avx2/vectors.hpp"
#include "kernels/kernel_table.hpp"

namespace stratad {
namespace {

struct Vectors256 {
  using Floats = __m256;
  static constexpr int kWidth = 8;

  STRATAD_INLINE Floats load(const float* address) { return _mm256_loadu_ps(address); }
  STRATAD_INLINE Floats load_halves(const ggml_fp16_t* address) {
    return _mm256_cvtph_ps(avx2::load_lane(address));
  }
  STRATAD_INLINE void store(float* address, Floats values) { _mm256_storeu_ps(address, values); }
  STRATAD_INLINE Floats all(float value) { return _mm256_set1_ps(value); }
  STRATAD_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  STRATAD_INLINE Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }
  STRATAD_INLINE Floats shift_exponent(Floats value, Floats power) {
    const __m256i exponents = _mm256_slli_epi32(_mm256_cvtps_epi32(power), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(value), exponents));
  }
  STRATAD_INLINE Floats zero_below(float limit, Floats x, Floats value) {
    return _mm256_and_ps(_mm256_cmp_ps(x, all(limit), _CMP_GE_OQ), value);
  }
  STRATAD_INLINE bool is_any_different(Floats x, Floats y) {
    return _mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_NEQ_UQ)) != 0;
  }
};

constexpr AttentionKernel kKernel = attention_kernel_of<Vectors256>();

}  // namespace

const AttentionKernel& avx2_attention_kernel() noexcept {
  return kKernel;
}

}  // namespace stratad
