// Format (kernels/walk.hpp) of a type whose rows are multiplied one after the other, step by step.
//
// `Step` gives, for one weight type:
//   using Activations                      the record per step
//   static constexpr int kRows             as in Format
//   static constexpr int kBytes            weights of one row in a step
//   template <int kTokens>
//   static void add(const char* weights, const Activations* const* tokens, int64_t step, __m256* sums)
// which adds the step's products to sums[token], the same way whatever is multiplied beside it.
#pragma once

#include "kernels/avx2/activations.hpp"
#include "kernels/avx2/vectors.hpp"

namespace stratad::avx2 {
namespace {

template <class Step>
struct StepFormat {
  using Activations = typename Step::Activations;
  static constexpr int kRows = Step::kRows;

  template <int kRowCount, int kTokens>
  STRATAD_INLINE void group(const char* const* rows, int64_t columns, const Activations* const* tokens,
                            const char* ahead_first, const char* ahead_second, float* sums) {
    const GroupPrefetch<kRowCount, Step::kBytes> prefetch{ahead_first, ahead_second};
    __m256 row_sums[kRowCount][kTokens];
    for (auto& row : row_sums)
      for (__m256& sum : row) sum = _mm256_setzero_ps();

    const int64_t whole_steps = columns / kStepColumns;
    for (int64_t step = 0; step < whole_steps; ++step) {
#pragma GCC unroll 4
      for (int row = 0; row < kRowCount; ++row) {
        prefetch.for_row(row, step);
        Step::template add<kTokens>(rows[row] + step * Step::kBytes, tokens, step, row_sums[row]);
      }
    }

    if (const int64_t blocks = columns % kStepColumns / kBlockColumns; blocks != 0) {
      // A row may end where readable memory ends. Zeros add nothing: their scale is zero, the activations'
      // too.
      alignas(32) char last[Step::kBytes];
      for (int row = 0; row < kRowCount; ++row) {
        __builtin_memset(last, 0, sizeof last);
        __builtin_memcpy(last, rows[row] + whole_steps * Step::kBytes,
                         static_cast<size_t>(blocks * Step::kBytes / kStepBlocks));
        Step::template add<kTokens>(last, tokens, whole_steps, row_sums[row]);
      }
    }

    for (int token = 0; token < kTokens; ++token)
      for (int row = 0; row < kRowCount; ++row)
        sums[token * kRowCount + row] = sum_elements(row_sums[row][token]);
  }
};

}  // namespace
}  // namespace stratad::avx2
