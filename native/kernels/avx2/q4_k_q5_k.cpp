// Q4_K and Q5_K: 256 weights a block, each eighth of it with a 6-bit scale and a 6-bit minimum.
//
// weight = d * scale * quant - dmin * minimum, hence the row's sum is that of d * scale * (quant . values)
// less that of dmin * minimum * (sum of values). Both are exact integers within a block.
#include "kernels/avx2/activations.hpp"
#include "kernels/avx2/kernels.hpp"
#include "kernels/avx2/vectors.hpp"

namespace stratad::avx2 {
namespace {

enum class QuantBits { kFour, kFive };

// Where the parts of a block lie. The header is d and dmin (half floats), then 12 bytes of scales and
// minimums: 16 bytes, so that two rows' headers fill a register and are unpacked together.
template <QuantBits kBits>
struct Block {
  static constexpr int kHighBits = 16;
  static constexpr int kNibbles = kBits == QuantBits::kFive ? kHighBits + kBlockColumns : kHighBits;
  static constexpr int kBytes = kNibbles + kStepColumns / 2;
};

// In each lane scales 0-3, minimums 0-3, scales 4-7, minimums 4-7, a byte each. Numbers 0-3 are the low 6
// bits of bytes 0-3 (scales) and 4-7 (minimums); numbers 4-7 are nibbles of bytes 8-11 under the top 2 bits
// of those.
STRATAD_INLINE __m256i unpack_scales(__m256i headers) {
  const __m256i first_eight = _mm256_shuffle_epi32(headers, _MM_SHUFFLE(2, 1, 2, 1));
  const __m256i last_four = _mm256_shuffle_epi32(headers, _MM_SHUFFLE(3, 3, 3, 3));
  const __m256i six_or_top_bits =
      _mm256_and_si256(_mm256_srlv_epi32(first_eight, _mm256_setr_epi32(0, 0, 2, 2, 0, 0, 2, 2)),
                       _mm256_setr_epi32(0x3f3f3f3f, 0x3f3f3f3f, 0x30303030, 0x30303030, 0x3f3f3f3f,
                                         0x3f3f3f3f, 0x30303030, 0x30303030));
  const __m256i nibbles =
      _mm256_and_si256(_mm256_srlv_epi32(last_four, _mm256_setr_epi32(0, 0, 0, 4, 0, 0, 0, 4)),
                       _mm256_setr_epi32(0, 0, 0x0f0f0f0f, 0x0f0f0f0f, 0, 0, 0x0f0f0f0f, 0x0f0f0f0f));
  return _mm256_or_si256(six_or_top_bits, nibbles);
}

// The eight minimums of a lane as words.
STRATAD_INLINE __m256i minimum_words(__m256i unpacked) {
  return _mm256_shuffle_epi8(unpacked,
                             _mm256_setr_epi8(4, -1, 5, -1, 6, -1, 7, -1, 12, -1, 13, -1, 14, -1, 15, -1,  //
                                              4, -1, 5, -1, 6, -1, 7, -1, 12, -1, 13, -1, 14, -1, 15, -1));
}

// Scale number `index` in every word.
STRATAD_INLINE __m256i scale_words(__m256i unpacked, int index) {
  const int byte = index < 4 ? index : index + 4;
  return _mm256_shuffle_epi8(unpacked, _mm256_set1_epi16(static_cast<short>(0x8000 | byte)));
}

// Bit `index` of every byte as bit 4.
STRATAD_INLINE __m256i fifth_bit(__m256i high_bits, int index) {
  const __m256i moved =
      index < 4 ? _mm256_slli_epi16(high_bits, 4 - index) : _mm256_srli_epi16(high_bits, index - 4);
  return _mm256_and_si256(moved, _mm256_set1_epi8(16));
}

template <QuantBits kBits>
struct Format {
  using Activations = PlainActivations;
  static constexpr int kRows = 4;

  // Adds one block of one row to `totals`, a lane of partial sums per token. A word of maddubs is at most
  // 31 * 128 * 2 = 7936, a madd at most 63 * 2 times that, and a lane adds 8 of those: below 2^23.
  template <int kTokens>
  STRATAD_INLINE void add_block(const char* block, __m256i scales, const Activations* const* tokens,
                                int64_t step, __m256i* totals) {
    const __m256i high_bits = kBits == QuantBits::kFive ? load(block + Block<kBits>::kHighBits) : __m256i{};
    for (int token = 0; token < kTokens; ++token) totals[token] = _mm256_setzero_si256();
    for (int pair = 0; pair < 4; ++pair) {
      const __m256i nibbles = load(block + Block<kBits>::kNibbles + 32 * pair);
      __m256i low = low_nibbles(nibbles), high = high_nibbles(nibbles);
      if constexpr (kBits == QuantBits::kFive) {
        low = _mm256_or_si256(low, fifth_bit(high_bits, 2 * pair));
        high = _mm256_or_si256(high, fifth_bit(high_bits, 2 * pair + 1));
      }
      const __m256i low_scale = scale_words(scales, 2 * pair), high_scale = scale_words(scales, 2 * pair + 1);
      for (int token = 0; token < kTokens; ++token) {
        const int8_t* values = tokens[token][step].values + 64 * pair;
        const __m256i low_sums = _mm256_madd_epi16(_mm256_maddubs_epi16(low, load(values)), low_scale);
        const __m256i high_sums =
            _mm256_madd_epi16(_mm256_maddubs_epi16(high, load(values + 32)), high_scale);
        totals[token] = _mm256_add_epi32(totals[token], _mm256_add_epi32(low_sums, high_sums));
      }
    }
  }

  template <int kRowCount, int kTokens>
  STRATAD_INLINE void group(const char* const* rows, int64_t columns, const Activations* const* tokens,
                            const char* ahead_first, const char* ahead_second, float* sums) {
    constexpr int kBytes = Block<kBits>::kBytes;
    constexpr int kPairs = (kRowCount + 1) / 2;
    // Of the quants: a lane per row. Of the minimums: four lanes per row, two rows a register.
    __m128 quant_sums[kTokens];
    __m256 minimum_sums[kPairs][kTokens];
    for (__m128& sum : quant_sums) sum = _mm_setzero_ps();
    for (auto& pair : minimum_sums)
      for (__m256& sum : pair) sum = _mm256_setzero_ps();

    for (int64_t step = 0; step < columns / kStepColumns; ++step) {
      if (ahead_first != nullptr) {
        constexpr int kConsumed = kRowCount * kBytes / 2;
        prefetch_lines<kConsumed>(ahead_first + step * kConsumed);
        prefetch_lines<kConsumed>(ahead_second + step * kConsumed);
      }
      __m256i totals[2 * kPairs][kTokens];
      __m128 factors[kPairs][kTokens];
      for (int pair = 0; pair < kPairs; ++pair) {
        // A single row is its own companion: it goes the same way, and half of the result is dropped.
        const char* blocks[2] = {rows[2 * pair] + step * kBytes,
                                 rows[kRowCount > 1 ? 2 * pair + 1 : 0] + step * kBytes};
        const __m256i headers = load_lanes(blocks[0], blocks[1]);
        const __m256i unpacked = unpack_scales(headers);
        const __m256i minimums = minimum_words(unpacked);
        // d and dmin of the first row, then of the second.
        const __m128 weight_factors = _mm_cvtph_ps(
            _mm_unpacklo_epi32(_mm256_castsi256_si128(headers), _mm256_extracti128_si256(headers, 1)));
        for (int token = 0; token < kTokens; ++token) {
          const Activations& activations = tokens[token][step];
          factors[pair][token] = _mm_mul_ps(weight_factors, _mm_broadcast_ss(activations.scales));
          const __m256 dmin = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(factors[pair][token]),
                                                       _mm256_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3));
          const __m256i products = _mm256_madd_epi16(minimums, load_into_both_lanes(activations.sums_of_32));
          minimum_sums[pair][token] =
              _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), dmin, minimum_sums[pair][token]);
        }
        alignas(32) char scale_bytes[32];
        _mm256_store_si256(reinterpret_cast<__m256i*>(scale_bytes), unpacked);
        keep_in_memory(scale_bytes);
        for (int row = 0; row < 2; ++row)
          add_block<kTokens>(blocks[row], load_into_both_lanes(scale_bytes + 16 * row), tokens, step,
                             totals[2 * pair + row]);
      }
      constexpr int kThird = kRowCount > 2 ? 2 : 0, kFourth = kThird + 1;
      for (int token = 0; token < kTokens; ++token) {
        const __m128i block_sums =
            sum_lanes(totals[0][token], totals[1][token], totals[kThird][token], totals[kFourth][token]);
        const __m128 d =
            _mm_shuffle_ps(factors[0][token], factors[kThird / 2][token], _MM_SHUFFLE(2, 0, 2, 0));
        quant_sums[token] = _mm_fmadd_ps(_mm_cvtepi32_ps(block_sums), d, quant_sums[token]);
      }
    }

    for (int token = 0; token < kTokens; ++token) {
      float quants[4];
      _mm_storeu_ps(quants, quant_sums[token]);
      for (int row = 0; row < kRowCount; ++row) {
        const __m256 pair = minimum_sums[row / 2][token];
        const __m128 minimums = row % 2 == 0 ? _mm256_castps256_ps128(pair) : _mm256_extractf128_ps(pair, 1);
        sums[token * kRowCount + row] = quants[row] - sum_lanes(minimums);
      }
    }
  }
};

}  // namespace

void multiply_q4_k(const RowStreams& streams, const void* const* activations, int token_count,
                   float* const* first_output, float* const* second_output) noexcept {
  multiply<Format<QuantBits::kFour>>(streams, activations, token_count, first_output, second_output);
}

void multiply_q5_k(const RowStreams& streams, const void* const* activations, int token_count,
                   float* const* first_output, float* const* second_output) noexcept {
  multiply<Format<QuantBits::kFive>>(streams, activations, token_count, first_output, second_output);
}

}  // namespace stratad::avx2
