#include "kernels/attention_steps.hpp"
#include "kernels/avx512/vectors.hpp"
#include "kernels/kernel_table.hpp"

namespace stratad {
namespace {

struct Vectors512 {
  using Floats = __m512;
  static constexpr int kWidth = 16;

  STRATAD_INLINE Floats load(const float* address) { return _mm512_loadu_ps(address); }
  STRATAD_INLINE Floats load_halves(const ggml_fp16_t* address) { return _mm512_cvtph_ps(load_256(address)); }
  STRATAD_INLINE void store(float* address, Floats values) { _mm512_storeu_ps(address, values); }
  STRATAD_INLINE Floats all(float value) { return _mm512_set1_ps(value); }
  STRATAD_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  STRATAD_INLINE Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
  STRATAD_INLINE Floats shift_exponent(Floats value, Floats power) {
    const __m512i exponents = _mm512_slli_epi32(_mm512_cvtps_epi32(power), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(value), exponents));
  }
  STRATAD_INLINE Floats zero_below(float limit, Floats x, Floats value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, all(limit), _CMP_GE_OQ), value);
  }
  STRATAD_INLINE bool is_any_different(Floats x, Floats y) {
    return _mm512_cmp_ps_mask(x, y, _CMP_NEQ_UQ) != 0;
  }
};

constexpr AttentionKernel kKernel = attention_kernel_of<Vectors512>();

}  // namespace

const AttentionKernel& avx512_attention_kernel() noexcept {
  return kKernel;
}

}  // namespace stratad
