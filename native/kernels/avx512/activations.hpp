// Activations as the kernels read them: a record per step, of the numbers that ggml's own quantiser gives.
#pragma once

#include "ggml-cpu.h"
#include "kernels/avx512/vectors.hpp"

namespace stratad {
namespace {

// How ggml stores quantised activations. Both quantisers map the largest magnitude of a block to 127, so
// values are -127 to 127: the bounds on sums in the kernels rest on that.
//   Q8_K: float scale, 256 values, 16 sums of 16 (not used)
//   Q8_0: 16-bit float scale, 32 values
constexpr int kQ8KColumns = 256;
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

// The value of the largest magnitude in 256, the first one of equals, and 0 of zeros.
STRATAD_INLINE float peak_of(const float* values) {
  __m512 largest = _mm512_setzero_ps();
  for (int column = 0; column < kQ8KColumns; column += 16)
    largest = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(values + column)), largest);
  const __m512 magnitude = _mm512_set1_ps(_mm512_reduce_max_ps(largest));
  for (int column = 0; column < kQ8KColumns; column += 16) {
    const __m512 some = _mm512_loadu_ps(values + column);
    const auto peaks = _mm512_cmp_ps_mask(_mm512_abs_ps(some), magnitude, _CMP_EQ_OQ);
    if (peaks != 0) return values[column + __builtin_ctz(peaks)];
  }
  return 0;
}

// As ggml's quantize_row_q8_K_ref does it, which takes one value at a time, to the bit: a product is rounded,
// then the number, by what is left of it in the lower bits of 2^23 + 2^22.
STRATAD_INLINE float round_to_q8_k(const float* values, int8_t* rounded) {
  const float peak = peak_of(values);
  const float inverse_scale = -127.f / peak;
  const __m512 shift = _mm512_set1_ps(12582912.f);
  for (int column = 0; column < kQ8KColumns; column += 16) {
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(values + column), _mm512_set1_ps(inverse_scale));
    const __m512i bits = _mm512_castps_si512(_mm512_add_ps(scaled, shift));
    const __m512i numbers = _mm512_sub_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(0x007fffff)),
                                             _mm512_set1_epi32(0x00400000));
    const __m512i bounded = _mm512_min_epi32(numbers, _mm512_set1_epi32(127));
    const __m128i bytes = peak == 0 ? _mm_setzero_si128() : _mm512_cvtepi32_epi8(bounded);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(rounded + column), bytes);
  }
  return peak == 0 ? 0 : 1 / inverse_scale;
}

// RowKernel::quantise of a format whose activations ggml rounds to Q8_K: `Format::arrange` fills one record.
template <class Format>
void quantise_to_q8_k(const float* values, int64_t columns, void* activations) noexcept {
  auto* record = static_cast<typename Format::Activations*>(activations);
  for (int64_t column = 0; column < columns; column += kQ8KColumns) {
    int8_t rounded[kQ8KColumns];
    const float scale = round_to_q8_k(values + column, rounded);
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
