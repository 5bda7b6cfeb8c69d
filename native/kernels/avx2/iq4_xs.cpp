// IQ4_XS: 256 weights a block, d * (scale - 32) * value with a 6-bit scale per 32 and values from a code
// book.
#include "kernels/avx2/code_books.hpp"
#include "kernels/avx2/kernels.hpp"
#include "kernels/avx2/single_scale.hpp"

namespace stratad::avx2 {
namespace {

struct Iq4Xs {
  using Activations = PairedActivations;
  static constexpr int kBytes = 136;
  // The parts of a block: d, eight top pairs of scale bits, eight low nibbles of scales, nibbles of weights.
  static constexpr int kFactor = 0, kLowScales = 4, kNibbles = 8;

  STRATAD_INLINE __m256i load_into_all(const char* address) {
    int32_t bits;
    __builtin_memcpy(&bits, address, sizeof bits);
    return _mm256_set1_epi32(bits);
  }

  // The scales of the even blocks of 32 in the low lane, of the odd ones in the high lane, as the nibbles
  // lie.
  STRATAD_INLINE __m256i scales(const char* block) {
    const __m256i low =
        _mm256_srlv_epi32(load_into_all(block + kLowScales), _mm256_setr_epi32(0, 8, 16, 24, 4, 12, 20, 28));
    // The top pairs start at bit 16 of the block and move to bits 4 and 5.
    const __m256i top =
        _mm256_srlv_epi32(load_into_all(block + kFactor), _mm256_setr_epi32(12, 16, 20, 24, 14, 18, 22, 26));
    const __m256i offset_scales = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(0x0f)),
                                                  _mm256_and_si256(top, _mm256_set1_epi32(0x30)));
    return _mm256_sub_epi32(offset_scales, _mm256_set1_epi32(32));
  }

  // Element `index` of each lane in every word of that lane.
  STRATAD_INLINE __m256i scale_words(__m256i scales, int index) {
    return _mm256_shuffle_epi8(scales, _mm256_set1_epi16(static_cast<short>(0x0100 + 0x0404 * index)));
  }

  // maddubs takes one factor unsigned: |activation|, and its sign goes to the weight, which is never -128. A
  // word is at most 128 * 127 * 2 = 32512, a madd at most 32 * 2 times that, and a block adds 64 of those:
  // below 2^28.
  template <int kTokens>
  STRATAD_INLINE void sum(const char* block, __m256i scales, const Activations* const* tokens, int64_t step,
                          __m256i* totals) {
    for (int token = 0; token < kTokens; ++token) totals[token] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; ++pair) {
      __m256i nibbles = load(block + kNibbles + 32 * pair);
      keep_in_register(nibbles);
      const __m256i first_halves = non_linear_values(low_nibbles(nibbles)),
                    second_halves = non_linear_values(high_nibbles(nibbles));
      const __m256i scale = scale_words(scales, pair);
#pragma GCC unroll 4
      for (int token = 0; token < kTokens; ++token) {
        const int8_t* values = tokens[token][step].values + 64 * pair;
        const uint8_t* magnitudes = tokens[token][step].magnitudes + 64 * pair;
        const __m256i first_sums =
            _mm256_madd_epi16(signed_products(first_halves, values, magnitudes), scale);
        const __m256i second_sums =
            _mm256_madd_epi16(signed_products(second_halves, values + 32, magnitudes + 32), scale);
        totals[token] = _mm256_add_epi32(totals[token], _mm256_add_epi32(first_sums, second_sums));
        keep_in_register(totals[token]);
      }
    }
  }
};

}  // namespace

void multiply_iq4_xs(const RowStreams& streams, const void* const* activations, int token_count,
                     float* const* first_output, float* const* second_output) noexcept {
  multiply<SingleScaleFormat<Iq4Xs>>(streams, activations, token_count, first_output, second_output);
}

}  // namespace stratad::avx2
