#include "kernels/avx2/activations.hpp"

#include <cstring>

#include "ggml-cpu.h"
#include "kernels/avx2/kernels.hpp"

namespace stratad::avx2 {
namespace {

// One step as ggml rounds it, in the order of the columns.
struct RoundedStep {
  int8_t values[kStepColumns] = {};
  float scales[kStepBlocks] = {};
};

// ggml's block_q8_K, which its public headers do not show: one scale, 256 values, 16 sums. The sums are not
// used: ggml leaves them unset where all values are zero.
struct Q8KBlock {
  float scale;
  int8_t values[kStepColumns];
  int16_t sums[16];
};

// ggml's block_q8_0.
struct Q8Block {
  ggml_fp16_t scale;
  int8_t values[kBlockColumns];
};

// Rounds up to 256 columns; fewer at the end of a row whose length is a multiple of 32 only.
template <ggml_type kType>
void round_step(const float* values, int64_t columns, RoundedStep& step);

template <>
void round_step<GGML_TYPE_Q8_K>(const float* values, int64_t columns, RoundedStep& step) {
  Q8KBlock block;
  ggml_get_type_traits_cpu(GGML_TYPE_Q8_K)->from_float(values, &block, columns);
  std::memcpy(step.values, block.values, sizeof block.values);
  for (float& scale : step.scales) scale = block.scale;
}

template <>
void round_step<GGML_TYPE_Q8_0>(const float* values, int64_t columns, RoundedStep& step) {
  Q8Block blocks[kStepBlocks];
  ggml_get_type_traits_cpu(GGML_TYPE_Q8_0)->from_float(values, blocks, columns);
  for (int64_t block = 0; block < columns / kBlockColumns; ++block) {
    std::memcpy(step.values + block * kBlockColumns, blocks[block].values, kBlockColumns);
    step.scales[block] = ggml_fp16_to_fp32(blocks[block].scale);
  }
}

int sum(const int8_t* values, int count) {
  int total = 0;
  for (int index = 0; index < count; ++index) total += values[index];
  return total;
}

void arrange(const RoundedStep& step, PlainActivations& activations) {
  std::memcpy(activations.values, step.values, kStepColumns);
  std::memcpy(activations.scales, step.scales, sizeof step.scales);
  for (int sixteen = 0; sixteen < 16; ++sixteen)
    activations.sums_of_16[sixteen / 2 + sixteen % 2 * 8] =
        static_cast<int16_t>(sum(step.values + 16 * sixteen, 16));
  for (int block = 0; block < kStepBlocks; ++block)
    activations.sums_of_32[block] =
        static_cast<int16_t>(sum(step.values + kBlockColumns * block, kBlockColumns));
}

void arrange(const RoundedStep& step, PairedActivations& activations) {
  constexpr int kHalf = kBlockColumns / 2;
  for (int block = 0; block < kStepBlocks; ++block) {
    const int8_t* values = step.values + kBlockColumns * block;
    const int pair = block / 2, lane = block % 2;
    int8_t* first_half = activations.values + 64 * pair + kHalf * lane;
    std::memcpy(first_half, values, kHalf);
    std::memcpy(first_half + kBlockColumns, values + kHalf, kHalf);
    activations.sums[4 * lane + pair] = sum(values, kBlockColumns);
    activations.scales[4 * lane + pair] = step.scales[block];
  }
  for (int column = 0; column < kStepColumns; ++column) {
    const int value = activations.values[column];
    activations.magnitudes[column] = static_cast<uint8_t>(value < 0 ? -value : value);
  }
}

int64_t step_count(int64_t columns) {
  return (columns + kStepColumns - 1) / kStepColumns;
}

template <ggml_type kType, class Activations>
void quantise(const float* values, int64_t columns, void* activations) {
  Activations* record = static_cast<Activations*>(activations);
  for (int64_t column = 0; column < columns; column += kStepColumns) {
    const int64_t left = columns - column;
    RoundedStep step;
    round_step<kType>(values + column, left < kStepColumns ? left : kStepColumns, step);
    arrange(step, *record++);
  }
}

// Rounds through a 16-bit float type and back, 256 columns at a time.
template <ggml_type kType>
void round_floats(const float* values, int64_t columns, float* rounded) {
  uint16_t bits[kStepColumns];
  for (int64_t column = 0; column < columns; column += kStepColumns) {
    const int64_t left = columns - column, count = left < kStepColumns ? left : kStepColumns;
    ggml_get_type_traits_cpu(kType)->from_float(values + column, bits, count);
    ggml_get_type_traits(kType)->to_float(bits, rounded + column, count);
  }
}

}  // namespace

size_t float_activation_bytes(int64_t columns) noexcept {
  constexpr size_t kLine = 64;
  return (static_cast<size_t>(columns) * sizeof(float) + kLine - 1) / kLine * kLine;
}

void quantise_f16(const float* values, int64_t columns, void* activations) noexcept {
  round_floats<GGML_TYPE_F16>(values, columns, static_cast<float*>(activations));
}

void quantise_bf16(const float* values, int64_t columns, void* activations) noexcept {
  float* rounded = static_cast<float*>(activations);
  round_floats<GGML_TYPE_BF16>(values, columns, rounded);
  for (int64_t column = 0; column < columns; column += 16) {
    float sorted[16];
    for (int index = 0; index < 16; ++index) sorted[index / 2 + index % 2 * 8] = rounded[column + index];
    std::memcpy(rounded + column, sorted, sizeof sorted);
  }
}

size_t plain_activation_bytes(int64_t columns) noexcept {
  return static_cast<size_t>(step_count(columns)) * sizeof(PlainActivations);
}

size_t paired_activation_bytes(int64_t columns) noexcept {
  return static_cast<size_t>(step_count(columns)) * sizeof(PairedActivations);
}

void quantise_plain_q8_k(const float* values, int64_t columns, void* activations) noexcept {
  quantise<GGML_TYPE_Q8_K, PlainActivations>(values, columns, activations);
}

void quantise_plain_q8_0(const float* values, int64_t columns, void* activations) noexcept {
  quantise<GGML_TYPE_Q8_0, PlainActivations>(values, columns, activations);
}

void quantise_paired_q8_k(const float* values, int64_t columns, void* activations) noexcept {
  quantise<GGML_TYPE_Q8_K, PairedActivations>(values, columns, activations);
}

void quantise_paired_q8_0(const float* values, int64_t columns, void* activations) noexcept {
  quantise<GGML_TYPE_Q8_0, PairedActivations>(values, columns, activations);
}

}  // namespace stratad::avx2
