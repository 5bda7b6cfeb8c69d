// Format (kernels/walk.hpp) of a type with one half float as scale per 256 weights.
//
// A row's products are summed to one integer per block, so what cancels within a block cancels exactly,
// offsets included. Four rows then share one conversion and one multiplication. Integer sums are the same in
// any order, hence a row's bits do not depend on its companions.
//
// `Block` gives, for one weight type:
//   using Activations                      the record per step
//   static constexpr int kBytes            of a block
//   static constexpr int kFactor           where the block's scale lies in it
//   static __m256i scales(const char* block)   its scales, unpacked
//   template <int kTokens>
//   static void sum(const char* block, __m256i scales, const Activations* const* tokens, int64_t step,
//                   __m256i* totals)
// which sets totals[token] to eight partial sums of the block's products.
#pragma once

#include "kernels/avx2/activations.hpp"
#include "kernels/avx2/vectors.hpp"

namespace stratad::avx2 {
namespace {

template <class Block>
struct SingleScaleFormat {
  using Activations = typename Block::Activations;
  static constexpr int kRows = 4;

  template <int kRowCount, int kTokens>
  STRATAD_INLINE void group(const char* const* rows, int64_t columns, const Activations* const* tokens,
                            const char* ahead_first, const char* ahead_second, float* sums) {
    static_assert(kRowCount <= 4);
    // Where rows are missing, the last one stands in and its sum is dropped.
    constexpr int kSecond = kRowCount > 1 ? 1 : 0, kThird = kRowCount > 2 ? 2 : kSecond,
                  kFourth = kRowCount > 3 ? 3 : kThird;
    const GroupPrefetch<kRowCount, Block::kBytes> prefetch{ahead_first, ahead_second};
    __m128 row_sums[kTokens];
    for (__m128& sum : row_sums) sum = _mm_setzero_ps();
    // Scales are unpacked one step ahead: by the time that products wait for them they are there.
    const int64_t step_count = columns / kStepColumns;
    __m256i scales[kRowCount];
    for (int row = 0; row < kRowCount; ++row) scales[row] = Block::scales(rows[row]);
    for (int64_t step = 0; step < step_count; ++step) {
      const int64_t next_step = step + 1 < step_count ? step + 1 : step;
      __m256i totals[kRowCount][kTokens], next_scales[kRowCount];
#pragma GCC unroll 4
      for (int row = 0; row < kRowCount; ++row)
        next_scales[row] = Block::scales(rows[row] + next_step * Block::kBytes);
#pragma GCC unroll 4
      for (int row = 0; row < kRowCount; ++row) {
        prefetch.for_row(row, step);
        Block::template sum<kTokens>(rows[row] + step * Block::kBytes, scales[row], tokens, step,
                                     totals[row]);
        scales[row] = next_scales[row];
      }
      const int64_t factor = step * Block::kBytes + Block::kFactor;
      const __m128 factors = load_half_floats(rows[0] + factor, rows[kSecond] + factor, rows[kThird] + factor,
                                              rows[kFourth] + factor);
      for (int token = 0; token < kTokens; ++token) {
        const __m128i block_sums = sum_elements(totals[0][token], totals[kSecond][token],
                                                totals[kThird][token], totals[kFourth][token]);
        const __m128 scaled = _mm_mul_ps(factors, _mm_broadcast_ss(tokens[token][step].scales));
        row_sums[token] = _mm_fmadd_ps(_mm_cvtepi32_ps(block_sums), scaled, row_sums[token]);
      }
    }
    for (int token = 0; token < kTokens; ++token) {
      float four_sums[4];
      _mm_storeu_ps(four_sums, row_sums[token]);
      for (int row = 0; row < kRowCount; ++row) sums[token * kRowCount + row] = four_sums[row];
    }
  }
};

}  // namespace
}  // namespace stratad::avx2
