// BF16 and F16: weights that are widened to 32-bit floats, 32 of them a step.
#pragma once

#include "kernels/avx512/activations.hpp"

namespace stratad {
namespace {

// One step of a token: rounded as ggml rounds it, then widened again.
struct alignas(64) FloatActivations {
  float values[32];
};

// RowKernel::quantise of both.
template <class Format>
void round_to_16_bits(const float* values, int64_t columns, void* activations) noexcept {
  const ggml_from_float_t round = rounding_for(Format::kWeightType);
  auto* record = static_cast<FloatActivations*>(activations);
  for (int64_t column = 0; column < columns; column += Format::kStepColumns) {
    alignas(64) uint16_t rounded[Format::kStepColumns];
    __m512 widened[2];
    round(values + column, rounded, Format::kStepColumns);
    Format::widen(rounded, widened);
    _mm512_store_ps(record->values, widened[0]);
    _mm512_store_ps(record->values + 16, widened[1]);
    ++record;
  }
}

// `Layout::widen` makes two vectors of 32 numbers, of weights and of activations in the same order.
template <class Layout>
struct FloatType : Layout {
  static constexpr int kRows = 2, kStepColumns = 32, kUnitColumns = 32, kStepBytes = 64;
  using Activations = FloatActivations;

  template <int kRowCount>
  struct Step {
    __m512 weights[kRowCount][2];

    [[gnu::always_inline]] void unpack(const char* const* rows, int64_t offset) {
      for (int row = 0; row < kRowCount; ++row) Layout::widen(rows[row] + offset, weights[row]);
    }
  };

  template <int kRowCount, int kTokens>
  struct Sums : RowSums<kRowCount, kTokens> {
    using RowSums<kRowCount, kTokens>::products;

    [[gnu::always_inline]] void add(const Step<kRowCount>& step, const Activations& activations, int token) {
      const __m512 first = _mm512_load_ps(activations.values);
      const __m512 second = _mm512_load_ps(activations.values + 16);
      for (int row = 0; row < kRowCount; ++row) {
        products[token][row] = _mm512_fmadd_ps(step.weights[row][0], first, products[token][row]);
        products[token][row] = _mm512_fmadd_ps(step.weights[row][1], second, products[token][row]);
      }
    }
  };
};

struct BF16Layout {
  static constexpr ggml_type kWeightType = GGML_TYPE_BF16;

  // The upper halves of floats: those at even places, then those at odd places.
  STRATAD_INLINE void widen(const void* numbers, __m512* widened) {
    const __m512i both = load_once(numbers);
    const __m512i upper_half = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    widened[0] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    widened[1] = _mm512_castsi512_ps(_mm512_and_si512(both, upper_half));
  }
};

struct F16Layout {
  static constexpr ggml_type kWeightType = GGML_TYPE_F16;

  STRATAD_INLINE void widen(const void* numbers, __m512* widened) {
    const char* bytes = static_cast<const char*>(numbers);
    widened[0] = _mm512_cvtph_ps(load_256(bytes));
    widened[1] = _mm512_cvtph_ps(load_256(bytes + 32));
  }
};

using BF16Format = SteppedFormat<FloatType<BF16Layout>>;
using F16Format = SteppedFormat<FloatType<F16Layout>>;

}  // namespace
}  // namespace stratad
