// The product of a weight matrix's rows with activations: one of an expert tensor's matrices, or a dense one.
//
// Computed by a row kernel of our own where there is one for the weight's type and the chosen instruction
// set, else by ggml's dot product, row by row, with the bits that ggml's CPU backend gives. Either way a
// row's bits do not depend on how rows are cut or which tokens are multiplied together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "arena/row_cut.hpp"
#include "backend/batch_limits.hpp"
#include "ggml-cpu.h"
#include "ggml.h"

namespace stratad {

// Tokens that one call should get where there are as many: rows are rearranged once for all of them.
inline constexpr int kTokenGroup = 64;

// A run of rows of one matrix.
struct RowRun {
  int32_t matrix = 0;  // the expert; 0 in a dense weight
  RowRange rows;
};

struct WeightProduct {
  const ggml_tensor* weight = nullptr;  // (columns, rows, matrices) as ggml counts, fastest first
  const ggml_tensor* bias = nullptr;    // (rows, matrices), float; may be absent
  int64_t first_row = 0;                // where this product's rows begin: > 0 for "up" in a merged matrix
  int64_t row_count = 0;
  const RowKernel* kernel = nullptr;  // null: ggml's dot product
  ggml_vec_dot_t dot = nullptr;
  ggml_from_float_t from_float = nullptr;  // null where activations are used as they are
  size_t activation_row_bytes = 0;         // of one token, as `quantise` writes them; a multiple of 64

  BatchLimits limits;  // used where there is a kernel

  // Rows [first_row, first_row + row_count) of `weight`; has_row_product(weight) must hold.
  WeightProduct() = default;
  WeightProduct(const ggml_tensor* weight, int64_t first_row, int64_t row_count,
                const ProductSettings& settings) noexcept;

  // One token's activations; `quantised` is 64-byte aligned.
  void quantise(const float* activations, void* quantised) const noexcept;

  // Rows of `run` times each token's activations, plus the bias. outputs[t] receives the run's first row at
  // index 0. `next` is the run that the same worker is likely to multiply next.
  void multiply(const RowRun& run, const RowRun& next, const char* const* activations, int token_count,
                float* const* outputs) const noexcept;

  // Where row `row` of a matrix lies.
  const char* address(int32_t matrix, int64_t row) const noexcept {
    return static_cast<const char*>(weight->data) + static_cast<size_t>(matrix) * weight->nb[2] +
           static_cast<size_t>(first_row + row) * weight->nb[1];
  }
  const char* address(const RowRun& run) const noexcept { return address(run.matrix, run.rows.begin); }
  size_t row_bytes() const noexcept { return weight->nb[1]; }
  int64_t columns() const noexcept { return weight->ne[0]; }
  bool has_panels() const noexcept { return kernel != nullptr && kernel->multiply_panels != nullptr; }
  // What multiplies so many tokens at once, tiles or panels; null: rows one by one.
  using BatchMultiply = decltype(RowKernel::multiply_panels);
  BatchMultiply batch_multiply(int64_t token_count) const noexcept;
  // Whether both read activations in the same form, so that one quantised row serves both.
  bool shares_activations_with(const WeightProduct& other) const noexcept;
};

// The same run of two products with the same activations, walked side by side: gate and up.
void multiply_pair(const WeightProduct& first, const WeightProduct& second, const RowRun& run,
                   const RowRun& next, const char* const* activations, int token_count,
                   float* const* first_outputs, float* const* second_outputs) noexcept;

// Whether this weight can be multiplied by rows: ggml has a dot product for its type, fed from floats.
bool has_row_product(const ggml_tensor* weight) noexcept;

// The parts of a weight that are cut into slices each by itself: 2 for gate and up merged into one, else 1.
int part_count(const ggml_tensor* weight) noexcept;

}  // namespace stratad
