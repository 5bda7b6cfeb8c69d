// Q6_K: 256 weights a block, d * scale * (quant - 32) with a signed 8-bit scale per 16 weights.
#include "kernels/avx2/kernels.hpp"
#include "kernels/avx2/single_scale.hpp"

namespace stratad::avx2 {
namespace {

struct Q6K {
  using Activations = PlainActivations;
  static constexpr int kBytes = 210;
  // The parts of a block; 128 bytes of low nibbles come first.
  static constexpr int kHighBits = 128, kScales = 192, kFactor = 208;

  // Quants of a half block are four vectors of 32: the low nibbles of its first and second 32 bytes, then
  // their high nibbles. Byte l of the high bits has two for each of the four, the first vector's lowest.
  STRATAD_INLINE void unpack_half(const char* block, int half, __m256i* quants) {
    const __m256i top = _mm256_set1_epi8(0x30);
    __m256i first = load(block + 64 * half), second = load(block + 64 * half + 32);
    __m256i high = load(block + kHighBits + 32 * half);
    keep_in_register(first);
    keep_in_register(second);
    keep_in_register(high);
    quants[0] = _mm256_or_si256(low_nibbles(first), _mm256_and_si256(_mm256_slli_epi16(high, 4), top));
    quants[1] = _mm256_or_si256(low_nibbles(second), _mm256_and_si256(_mm256_slli_epi16(high, 2), top));
    quants[2] = _mm256_or_si256(high_nibbles(first), _mm256_and_si256(high, top));
    quants[3] = _mm256_or_si256(high_nibbles(second), _mm256_and_si256(_mm256_srli_epi16(high, 2), top));
  }

  // Scales as words: the even-numbered in the low lane, the odd in the high lane, because a vector of 32
  // quants has one scale in each lane.
  STRATAD_INLINE __m256i scales(const char* block) {
    const __m128i even_odd = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(load_lane(block + kScales), even_odd));
  }

  // Word `index` of each lane in every word of that lane.
  STRATAD_INLINE __m256i scale_words(__m256i scales, int index) {
    return _mm256_shuffle_epi8(scales, _mm256_set1_epi16(static_cast<short>(0x0100 + 0x0202 * index)));
  }

  // A word of maddubs is at most 63 * 128 * 2 = 16128, a madd 128 * 2 times that, and a block adds 64 of
  // those: below 2^28. The offset 32 goes through the sums of the values: 128 * 16 * 128 is 2^18, times 16 *
  // 32 2^27.
  template <int kTokens>
  STRATAD_INLINE void sum(const char* block, __m256i scales, const Activations* const* tokens, int64_t step,
                          __m256i* totals) {
    for (int token = 0; token < kTokens; ++token) {
      const __m256i offsets = _mm256_madd_epi16(scales, load(tokens[token][step].sums_of_16));
      totals[token] = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(offsets, 5));
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i quants[4];
      unpack_half(block, half, quants);
#pragma GCC unroll 4
      for (int part = 0; part < 4; ++part) {
        const __m256i scale = scale_words(scales, 4 * half + part);
#pragma GCC unroll 4
        for (int token = 0; token < kTokens; ++token) {
          const __m256i values = load(tokens[token][step].values + 128 * half + 32 * part);
          const __m256i products = _mm256_madd_epi16(_mm256_maddubs_epi16(quants[part], values), scale);
          totals[token] = _mm256_add_epi32(totals[token], products);
          keep_in_register(totals[token]);
        }
      }
    }
  }
};

}  // namespace

void multiply_q6_k(const RowStreams& streams, const void* const* activations, int token_count,
                   float* const* first_output, float* const* second_output) noexcept {
  multiply<SingleScaleFormat<Q6K>>(streams, activations, token_count, first_output, second_output);
}

}  // namespace stratad::avx2
