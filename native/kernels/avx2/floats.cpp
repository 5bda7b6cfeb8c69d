// BF16 and F16: weights widened to floats, times activations rounded to the same type as ggml does.
#include "kernels/avx2/activations.hpp"
#include "kernels/avx2/kernels.hpp"
#include "kernels/avx2/vectors.hpp"

namespace stratad::avx2 {
namespace {

// Sixteen weights as two vectors. BF16 is the upper half of a float, so the weights at odd columns are there
// but for a mask and those at even columns but for a shift: the first vector has the even columns, the second
// the odd.
struct Bf16 {
  STRATAD_INLINE void widen(const char* weights, __m256& first, __m256& second) {
    __m256i bits = load(weights);
    keep_in_register(bits);
    first = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
    second = _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
};

// In the order of the columns.
struct F16 {
  STRATAD_INLINE void widen(const char* weights, __m256& first, __m256& second) {
    first = _mm256_cvtph_ps(load_lane(weights));
    second = _mm256_cvtph_ps(load_lane(weights + 16));
  }
};

template <class Weights>
struct Format {
  using Activations = FloatActivations;
  static constexpr int kRows = 2;

  template <int kRowCount, int kTokens>
  STRATAD_INLINE void group(const char* const* rows, int64_t columns, const Activations* const* tokens,
                            const char* ahead_first, const char* ahead_second, float* sums) {
    if constexpr (kTokens > 2) {
      // More sums than registers: the rows, by then in cache, are read again for the other tokens.
      group<kRowCount, 2>(rows, columns, tokens, ahead_first, ahead_second, sums);
      group<kRowCount, kTokens - 2>(rows, columns, tokens + 2, nullptr, nullptr, sums + 2 * kRowCount);
    } else {
      // Two sums each, because an addition takes longer than a load.
      __m256 row_sums[kRowCount][kTokens][2];
      for (auto& row : row_sums)
        for (auto& token : row) token[0] = token[1] = _mm256_setzero_ps();
      for (int64_t column = 0; column < columns; column += kBlockColumns) {
        if (ahead_first != nullptr) {
          constexpr int kConsumed = kRowCount * kBlockColumns;
          prefetch_lines<kConsumed>(ahead_first + column * kRowCount);
          prefetch_lines<kConsumed>(ahead_second + column * kRowCount);
        }
#pragma GCC unroll 2
        for (int64_t part = column; part < column + kBlockColumns; part += 16)
#pragma GCC unroll 2
          for (int row = 0; row < kRowCount; ++row) {
            __m256 first, second;
            Weights::widen(rows[row] + 2 * part, first, second);
#pragma GCC unroll 2
            for (int token = 0; token < kTokens; ++token) {
              const float* values = tokens[token]->values + part;
              __m256(&pair)[2] = row_sums[row][token];
              pair[0] = _mm256_fmadd_ps(first, _mm256_load_ps(values), pair[0]);
              pair[1] = _mm256_fmadd_ps(second, _mm256_load_ps(values + 8), pair[1]);
            }
          }
      }
      for (int token = 0; token < kTokens; ++token)
        for (int row = 0; row < kRowCount; ++row)
          sums[token * kRowCount + row] =
              sum_elements(_mm256_add_ps(row_sums[row][token][0], row_sums[row][token][1]));
    }
  }
};

}  // namespace

void multiply_bf16(const RowStreams& streams, const void* const* activations, int token_count,
                   float* const* first_output, float* const* second_output) noexcept {
  multiply<Format<Bf16>>(streams, activations, token_count, first_output, second_output);
}

void multiply_f16(const RowStreams& streams, const void* const* activations, int token_count,
                  float* const* first_output, float* const* second_output) noexcept {
  multiply<Format<F16>>(streams, activations, token_count, first_output, second_output);
}

}  // namespace stratad::avx2
