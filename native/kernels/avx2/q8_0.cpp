// Q8_0: blocks of 32 signed bytes with one half float as scale, 34 bytes.
#include "kernels/avx2/kernels.hpp"
#include "kernels/avx2/steps.hpp"

namespace stratad::avx2 {
namespace {

struct Q8 {
  using Activations = PlainActivations;
  static constexpr int kRows = 2;
  static constexpr int kBlockBytes = 34;
  static constexpr int kBytes = kStepBlocks * kBlockBytes;

  STRATAD_INLINE __m256 block_scales(const char* step) {
    uint16_t bits[kStepBlocks];
    for (int block = 0; block < kStepBlocks; ++block)
      __builtin_memcpy(&bits[block], step + block * kBlockBytes, sizeof bits[block]);
    return _mm256_cvtph_ps(_mm_setr_epi16(static_cast<short>(bits[0]), static_cast<short>(bits[1]),
                                          static_cast<short>(bits[2]), static_cast<short>(bits[3]),
                                          static_cast<short>(bits[4]), static_cast<short>(bits[5]),
                                          static_cast<short>(bits[6]), static_cast<short>(bits[7])));
  }

  // maddubs takes one factor unsigned: |weight|, and the weight's sign goes to the activation. A word is at
  // most 128 * 127 * 2 = 32512. An activation of -128, whose sign cannot change, occurs only where ggml's
  // scale is zero (it divides by the largest magnitude / 127).
  template <int kTokens>
  STRATAD_INLINE void add(const char* weights, const Activations* const* tokens, int64_t step, __m256* sums) {
    const __m256 weight_scales = block_scales(weights);
    alignas(32) float scales[kTokens][kStepBlocks];
    for (int token = 0; token < kTokens; ++token)
      _mm256_store_ps(scales[token],
                      _mm256_mul_ps(weight_scales, _mm256_loadu_ps(tokens[token][step].scales)));
    keep_in_memory(scales);
    // Two sums each: one chain of eight additions would take longer than all the rest.
    __m256 parts[kTokens][2];
#pragma GCC unroll 8
    for (int block = 0; block < kStepBlocks; ++block) {
      __m256i signed_weights = load(weights + block * kBlockBytes + 2);
      keep_in_register(signed_weights);
      const __m256i magnitudes = _mm256_abs_epi8(signed_weights);
#pragma GCC unroll 4
      for (int token = 0; token < kTokens; ++token) {
        const __m256i values = load(tokens[token][step].values + block * kBlockColumns);
        const __m256i products = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(values, signed_weights));
        const __m256 totals = _mm256_cvtepi32_ps(_mm256_madd_epi16(products, _mm256_set1_epi16(1)));
        const __m256 scale = _mm256_broadcast_ss(&scales[token][block]);
        __m256& part = parts[token][block % 2];
        part = block < 2 ? _mm256_mul_ps(totals, scale) : _mm256_fmadd_ps(totals, scale, part);
      }
    }
    for (int token = 0; token < kTokens; ++token)
      sums[token] = _mm256_add_ps(sums[token], _mm256_add_ps(parts[token][0], parts[token][1]));
  }
};

}  // namespace

void multiply_q8_0(const RowStreams& streams, const void* const* activations, int token_count,
                   float* const* first_output, float* const* second_output) noexcept {
  multiply<StepFormat<Q8>>(streams, activations, token_count, first_output, second_output);
}

}  // namespace stratad::avx2
