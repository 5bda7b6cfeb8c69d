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

// The eight scales, each in both words of an element, for broadcasting loads. Both lanes hold the same row.
STRATAD_INLINE void store_scales(__m256i unpacked, int32_t* scales) {
  const __m256i words = _mm256_shuffle_epi8(
      unpacked, _mm256_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1,  //
                                 8, -1, 8, -1, 9, -1, 9, -1, 10, -1, 10, -1, 11, -1, 11, -1));
  _mm256_store_si256(reinterpret_cast<__m256i*>(scales), words);
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

  // How many rows' blocks are unpacked side by side: as many as leave room for their partial sums. They share
  // the loads of the activations.
  template <int kTokens>
  static constexpr int kSideBySide = kTokens <= 2 ? 4 : 2;

  // Sets totals[row][token] to eight partial sums of the block's scale * (quant . values). A word of maddubs
  // is at most 31 * 128 * 2 = 7936, a madd at most 63 * 2 times that, and a block adds 64 of those: below
  // 2^26.
  template <int kRowCount, int kTokens, class Prefetch>
  STRATAD_INLINE void sum_blocks(const char* const* blocks, const int32_t (*scales)[8],
                                 const Activations* const* tokens, int64_t step, __m256i (*totals)[kTokens],
                                 const Prefetch& prefetch, int first_row) {
    __m256i high_bits[kRowCount];
    for (int row = 0; row < kRowCount; ++row) {
      if constexpr (kBits == QuantBits::kFive) high_bits[row] = load(blocks[row] + Block<kBits>::kHighBits);
      for (int token = 0; token < kTokens; ++token) totals[row][token] = _mm256_setzero_si256();
    }
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; ++pair) {
      if (pair < kRowCount) prefetch.for_row(first_row + pair, step);
#pragma GCC unroll 4
      for (int row = 0; row < kRowCount; ++row) {
        __m256i nibbles = load(blocks[row] + Block<kBits>::kNibbles + 32 * pair);
        keep_in_register(nibbles);
        __m256i low = low_nibbles(nibbles), high = high_nibbles(nibbles);
        if constexpr (kBits == QuantBits::kFive) {
          low = _mm256_or_si256(low, fifth_bit(high_bits[row], 2 * pair));
          high = _mm256_or_si256(high, fifth_bit(high_bits[row], 2 * pair + 1));
        }
        const __m256i low_scale = _mm256_set1_epi32(scales[row][2 * pair]),
                      high_scale = _mm256_set1_epi32(scales[row][2 * pair + 1]);
#pragma GCC unroll 4
        for (int token = 0; token < kTokens; ++token) {
          const int8_t* values = tokens[token][step].values + 64 * pair;
          const __m256i low_sums = _mm256_madd_epi16(_mm256_maddubs_epi16(low, load(values)), low_scale);
          const __m256i high_sums =
              _mm256_madd_epi16(_mm256_maddubs_epi16(high, load(values + 32)), high_scale);
          totals[row][token] = _mm256_add_epi32(totals[row][token], _mm256_add_epi32(low_sums, high_sums));
          keep_in_register(totals[row][token]);
        }
      }
    }
  }

  // What the headers of some rows' blocks say.
  template <int kRowCount, int kTokens>
  struct Headers {
    alignas(32) int32_t scales[kRowCount][8];
    // d of each row, times the scale of the token's activations.
    alignas(16) float factors[kTokens][4];
  };

  // Unpacks the headers and adds the minimums to minimum_sums[row / 2][token], four lanes per row.
  template <int kRowCount, int kTokens>
  STRATAD_INLINE void unpack_headers(const char* const* rows, int64_t step, const Activations* const* tokens,
                                     __m256 (*minimum_sums)[kTokens], Headers<kRowCount, kTokens>& result) {
    __m128 factors[kRowCount / 2];
#pragma GCC unroll 2
    for (int pair = 0; pair < kRowCount / 2; ++pair) {
      const __m256i headers = load_lanes(rows[2 * pair] + step * Block<kBits>::kBytes,
                                         rows[2 * pair + 1] + step * Block<kBits>::kBytes);
      const __m256i unpacked = unpack_scales(headers);
      const __m256i minimums = minimum_words(unpacked);
      store_scales(_mm256_permute4x64_epi64(unpacked, 0x44), result.scales[2 * pair]);
      store_scales(_mm256_permute4x64_epi64(unpacked, 0xee), result.scales[2 * pair + 1]);
      // d and dmin of the first row, then of the second.
      factors[pair] = _mm_cvtph_ps(
          _mm_unpacklo_epi32(_mm256_castsi256_si128(headers), _mm256_extracti128_si256(headers, 1)));
      const __m256 dmin = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(factors[pair]),
                                                   _mm256_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3));
#pragma GCC unroll 4
      for (int token = 0; token < kTokens; ++token) {
        const Activations& activations = tokens[token][step];
        const __m256i products = _mm256_madd_epi16(minimums, load_into_both_lanes(activations.sums_of_32));
        minimum_sums[pair][token] = _mm256_fmadd_ps(
            _mm256_cvtepi32_ps(products), _mm256_mul_ps(dmin, _mm256_broadcast_ss(activations.scales)),
            minimum_sums[pair][token]);
      }
    }
    const __m128 d = _mm_shuffle_ps(factors[0], factors[kRowCount / 2 - 1], _MM_SHUFFLE(2, 0, 2, 0));
#pragma GCC unroll 4
    for (int token = 0; token < kTokens; ++token)
      _mm_store_ps(result.factors[token], _mm_mul_ps(d, _mm_broadcast_ss(tokens[token][step].scales)));
    keep_in_memory(result);
  }

  template <int kRowCount, int kTokens>
  STRATAD_INLINE void group(const char* const* rows, int64_t columns, const Activations* const* tokens,
                            const char* ahead_first, const char* ahead_second, float* sums) {
    if constexpr (kRowCount == 1) {
      // The row is its own companion, so that it goes the same way as in company.
      const char* const twice[2] = {rows[0], rows[0]};
      float twin_sums[2 * kTokens];
      group<2, kTokens>(twice, columns, tokens, ahead_first, ahead_second, twin_sums);
      for (int token = 0; token < kTokens; ++token) sums[token] = twin_sums[2 * token];
    } else {
      constexpr int kBytes = Block<kBits>::kBytes;
      constexpr int kTogether = kSideBySide<kTokens> < kRowCount ? kSideBySide<kTokens> : kRowCount;
      const GroupPrefetch<kRowCount, kBytes> prefetch{ahead_first, ahead_second};
      __m128 quant_sums[kTokens];
      __m256 minimum_sums[kRowCount / 2][kTokens];
      for (__m128& sum : quant_sums) sum = _mm_setzero_ps();
      for (auto& pair : minimum_sums)
        for (__m256& sum : pair) sum = _mm256_setzero_ps();

      // Headers are unpacked one step ahead: by the time that products wait for a scale it is there.
      Headers<kRowCount, kTokens> headers[2];
      const int64_t step_count = columns / kStepColumns;
      unpack_headers<kRowCount, kTokens>(rows, 0, tokens, minimum_sums, headers[0]);
      for (int64_t step = 0; step < step_count; ++step) {
        if (step + 1 < step_count)
          unpack_headers<kRowCount, kTokens>(rows, step + 1, tokens, minimum_sums, headers[(step + 1) % 2]);
        const auto& current = headers[step % 2];
        const char* blocks[kRowCount];
        for (int row = 0; row < kRowCount; ++row) blocks[row] = rows[row] + step * kBytes;
        __m256i totals[kRowCount][kTokens];
#pragma GCC unroll 2
        for (int row = 0; row < kRowCount; row += kTogether)
          sum_blocks<kTogether, kTokens>(blocks + row, current.scales + row, tokens, step, totals + row,
                                         prefetch, row);
#pragma GCC unroll 4
        for (int token = 0; token < kTokens; ++token) {
          const __m128i block_sums = sum_elements(totals[0][token], totals[1][token],
                                                  totals[kRowCount - 2][token], totals[kRowCount - 1][token]);
          quant_sums[token] = _mm_fmadd_ps(_mm_cvtepi32_ps(block_sums), _mm_load_ps(current.factors[token]),
                                           quant_sums[token]);
        }
      }

      for (int token = 0; token < kTokens; ++token) {
        float quants[4];
        _mm_storeu_ps(quants, quant_sums[token]);
        for (int row = 0; row < kRowCount; ++row) {
          const __m256 pair = minimum_sums[row / 2][token];
          const __m128 minimums =
              row % 2 == 0 ? _mm256_castps256_ps128(pair) : _mm256_extractf128_ps(pair, 1);
          sums[token * kRowCount + row] = quants[row] - sum_elements(minimums);
        }
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
