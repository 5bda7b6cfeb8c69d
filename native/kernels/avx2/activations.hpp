// Activations as the AVX2 kernels read them: one record per step, which is 256 columns for every type.
//
// The 8-bit values and their scales are ggml's own (Q8_K or Q8_0, whichever the weight type's dot product
// asks for), only in another order and with sums added. Columns that the last step lacks are zero, scale
// included.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ggml.h"

namespace stratad::avx2 {

inline constexpr int kStepColumns = 256;
inline constexpr int kBlockColumns = 32;
inline constexpr int kStepBlocks = kStepColumns / kBlockColumns;

// Values in the order of the columns.
struct alignas(64) PlainActivations {
  int8_t values[kStepColumns];
  // Of 16 columns each: the even-numbered sixteens, then the odd-numbered ones.
  int16_t sums_of_16[16];
  int16_t sums_of_32[kStepBlocks];
  // One per block of 32. All alike where the step has one scale.
  float scales[kStepBlocks];
};

// For 4-bit types whose byte holds column c of a block in the low and column c + 16 in the high nibble. 32
// bytes of two blocks give two vectors: the first halves of both blocks, then the second halves.
struct alignas(64) PairedActivations {
  int8_t values[kStepColumns];
  // |value|, for products with signed weights: of the two factors one must be unsigned.
  uint8_t magnitudes[kStepColumns];
  // Per block, in the order 0 2 4 6 1 3 5 7: the even blocks are summed in the low lane.
  int32_t sums[kStepBlocks];
  float scales[kStepBlocks];
};

// For BF16 and F16: the values as floats. Those for BF16 are sorted by sixteens, even columns before odd.
struct FloatActivations {
  float values[1];
};

}  // namespace stratad::avx2
