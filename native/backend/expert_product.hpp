// One product of expert matrices with activations, computed row by row with ggml's own kernels: the same
// quantiser, the same dot product, so that every row has the bits that ggml's CPU backend gives it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ggml-cpu.h"
#include "ggml.h"

namespace stratad {

struct ExpertProduct {
  const ggml_tensor* weight = nullptr;  // (columns, rows, experts) as ggml counts, fastest first
  const ggml_tensor* bias = nullptr;    // (rows, experts), float; may be absent
  int64_t first_row = 0;                // where this product's rows begin: > 0 for "up" in a merged matrix
  int64_t row_count = 0;
  ggml_vec_dot_t dot = nullptr;
  ggml_from_float_t from_float = nullptr;  // null where activations are used as they are
  ggml_type activation_type = GGML_TYPE_F32;
  size_t activation_row_bytes = 0;

  // Rows [first_row, first_row + row_count) of `weight`; has_row_kernel(weight) must hold.
  ExpertProduct() = default;
  ExpertProduct(const ggml_tensor* weight, int64_t first_row, int64_t row_count) noexcept;

  void quantise(const float* activations, void* quantised) const noexcept;
  // One row of an expert's matrix times the quantised activations, without the bias.
  float row(const char* weights, const void* quantised) const noexcept {
    float sum;
    dot(static_cast<int>(columns()), &sum, 0, weights, 0, quantised, 0, 1);
    return sum;
  }
  // output[r - begin] = row r times the activations, plus the bias.
  void rows(int32_t expert, int64_t begin, int64_t end, const void* quantised, float* output) const noexcept;
  void add_bias(int32_t expert, int64_t begin, int64_t end, float* output) const noexcept;
  // Where row `row` of the expert's matrix lies.
  const char* address(int32_t expert, int64_t row) const noexcept {
    return static_cast<const char*>(weight->data) + static_cast<size_t>(expert) * weight->nb[2] +
           static_cast<size_t>(first_row + row) * weight->nb[1];
  }
  size_t row_bytes() const noexcept { return weight->nb[1]; }
  int64_t columns() const noexcept { return weight->ne[0]; }
};

// Whether ggml has a dot product for this weight type that can be fed from float activations.
bool has_row_kernel(const ggml_tensor* weight) noexcept;

// The parts of a weight that are cut into slices each by itself: 2 for gate and up merged into one, else 1.
int part_count(const ggml_tensor* weight) noexcept;

}  // namespace stratad
