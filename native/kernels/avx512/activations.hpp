// Activations as the kernels read them: a record per step, made of what ggml's own quantiser gives.
#pragma once

#include "ggml-cpu.h"
#include "kernels/avx512/vectors.hpp"

namespace stratad {
namespace {

// How ggml stores quantised activations. Both quantisers map the largest magnitude of a block to 127, so
// values are -127 to 127: the bounds on sums in the kernels rest on that.
//   Q8_K: float scale, 256 values, 16 sums of 16 (not used: they are not written for a block of zeros)
//   Q8_0: 16-bit float scale, 32 values
constexpr int kQ8KColumns = 256, kQ8KBytes = 292, kQ8KValues = 4;
constexpr int kQ8Columns = 32, kQ8Bytes = 34, kQ8Values = 2;

// ggml's rounding for the activations that go with a weight type.
STRATAD_INLINE ggml_from_float_t rounding_for(ggml_type weight_type) {
  return ggml_get_type_traits_cpu(ggml_get_type_traits_cpu(weight_type)->vec_dot_type)->from_float;
}

STRATAD_INLINE int sum_of(const int8_t* values, int count) {
  int sum = 0;
  for (int index = 0; index < count; ++index) sum += values[index];
  return sum;
}

// RowKernel::activation_bytes of a format.
template <class Format>
size_t activation_bytes(int64_t columns) noexcept {
  static_assert(sizeof(typename Format::Activations) % 64 == 0);
  const int64_t steps = (columns + Format::kStepColumns - 1) / Format::kStepColumns;
  return static_cast<size_t>(steps) * sizeof(typename Format::Activations);
}

// RowKernel::quantise of a format whose activations ggml rounds to Q8_K: `Format::arrange` fills one record.
template <class Format>
void quantise_to_q8_k(const float* values, int64_t columns, void* activations) noexcept {
  const ggml_from_float_t round = rounding_for(Format::kWeightType);
  auto* record = static_cast<typename Format::Activations*>(activations);
  for (int64_t column = 0; column < columns; column += kQ8KColumns) {
    alignas(64) char block[kQ8KBytes];
    int8_t rounded[kQ8KColumns];
    float scale;
    round(values + column, block, kQ8KColumns);
    std::memcpy(&scale, block, sizeof scale);
    std::memcpy(rounded, block + kQ8KValues, sizeof rounded);
    Format::arrange(rounded, scale, *record++);
  }
}

// The same for Q8_0, eight blocks a record. Blocks behind the last column are zeros.
template <class Format>
void quantise_to_q8_0(const float* values, int64_t columns, void* activations) noexcept {
  constexpr int kBlocks = 8;
  static_assert(Format::kStepColumns == kBlocks * kQ8Columns);
  const ggml_from_float_t round = rounding_for(Format::kWeightType);
  auto* record = static_cast<typename Format::Activations*>(activations);
  for (int64_t column = 0; column < columns; column += Format::kStepColumns) {
    alignas(64) char blocks[kBlocks * kQ8Bytes] = {};
    int8_t rounded[Format::kStepColumns];
    float scales[kBlocks];
    const int64_t left = columns - column;
    round(values + column, blocks, left < Format::kStepColumns ? left : Format::kStepColumns);
    for (int block = 0; block < kBlocks; ++block) {
      scales[block] = load_half(blocks + block * kQ8Bytes);
      std::memcpy(rounded + block * kQ8Columns, blocks + block * kQ8Bytes + kQ8Values, kQ8Columns);
    }
    Format::arrange(rounded, scales, *record++);
  }
}

}  // namespace
}  // namespace stratad
