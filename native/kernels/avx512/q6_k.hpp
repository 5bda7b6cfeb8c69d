// Q6_K: 256 weights of -32 to 31 in sixteen blocks of 16, an 8-bit scale for each.
//
// Bytes of a step: 128 with the lower 4 bits, 64 with the upper 2, 16 scales, one 16-bit float. Of each half
// of 128 weights, 64 bytes hold the lower bits of weights 0-63 and (high) 64-127, 32 bytes the upper bits of
// the weights 32 k + byte at bit 2 k.
#pragma once

#include "kernels/avx512/activations.hpp"

namespace stratad {
namespace {

struct Q6KType {
  static constexpr ggml_type kWeightType = GGML_TYPE_Q6_K;
  static constexpr int kRows = 2, kStepColumns = 256, kUnitColumns = 256, kStepBytes = 210;
  static constexpr int kUpperBits = 128, kBlockScales = 192, kScale = 208;

  // Values in the order in which the weights come, vector v of four: elements 0 and 2 of lane L have four
  // values each of block L + 4 (v % 2), elements 1 and 3 of the block eight further on: the first eight
  // values of a block in the vectors 0 and 1, the last eight in 2 and 3.
  struct alignas(64) Activations {
    int8_t values[256];
    // -32 times the sums of the eight values that meet in an accumulator: where it starts, to take back the
    // 32 by which weights are shifted to make them unsigned.
    int32_t offsets[32];
    int32_t block_offsets[16];  // each the sum of a block's offsets, for panels
    float scale;
  };

  // Where the four values 4 `part` to 4 `part` + 3 of a block are.
  static constexpr int value_offset(int block, int part) {
    return 64 * (part / 2 * 2 + block % 8 / 4) + 16 * (block % 4) + 8 * (part % 2) + 4 * (block / 8);
  }

  static void arrange(const int8_t* values, float scale, Activations& record) {
    record.scale = scale;
    std::memset(record.offsets, 0, sizeof record.offsets);
    for (int block = 0; block < 16; ++block) {
      record.block_offsets[block] = -32 * sum_of(values + 16 * block, 16);
      for (int part = 0; part < 4; ++part) {
        const int8_t* four = values + 16 * block + 4 * part;
        const int offset = value_offset(block, part);
        std::memcpy(record.values + offset, four, 4);
        record.offsets[offset % 128 / 4] -= 32 * sum_of(four, 4);
      }
    }
  }

  // Weights plus 32: 0 to 63.
  STRATAD_INLINE void unpack(const char* step, __m512i* weights) {
    const __m512i low_bits = _mm512_set1_epi8(15), all_bits = _mm512_set1_epi8(63);
    const __m512i left = _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(2), 1);
    const __m512i right = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(2), 1);
    constexpr int kSelectSecondOrThird = 0xca;
    const __m512i lower_half = load_once(step), upper_half = load_once(step + 64);
    const __m512i lower[2] = {_mm512_unpacklo_epi32(lower_half, upper_half),
                              _mm512_unpackhi_epi32(lower_half, upper_half)};
    // Lanes 0 and 1 of these 64 bytes belong to the lower half; two bits of each serve lanes 0 and 1 of the
    // weights, the next two lanes 2 and 3.
    const __m512i bits = load_once(step + kUpperBits);
    const __m512i order = _mm512_setr_epi32(0, 8, 1, 9, 4, 12, 5, 13, 0, 8, 1, 9, 4, 12, 5, 13);
    for (int part = 0; part < 2; ++part) {
      const __m512i upper =
          _mm512_permutexvar_epi32(_mm512_add_epi32(order, _mm512_set1_epi32(2 * part)), bits);
      weights[2 * part] = _mm512_and_si512(
          all_bits, _mm512_ternarylogic_epi32(low_bits, lower[part], _mm512_sllv_epi16(upper, left),
                                              kSelectSecondOrThird));
      weights[2 * part + 1] = _mm512_and_si512(
          all_bits, _mm512_ternarylogic_epi32(low_bits, _mm512_srli_epi16(lower[part], 4),
                                              _mm512_srlv_epi16(upper, right), kSelectSecondOrThird));
    }
  }

  template <int kRowCount>
  struct Step {
    __m512i weights[kRowCount][4], block_scales[kRowCount];
    __m128 scales;

    [[gnu::always_inline]] void unpack(const char* const* rows, int64_t offset) {
      // 16-bit scales as _mm512_packs_epi32 leaves the products.
      const auto two = [](int block) { return block | (block + 8) << 16; };
      const __m512i order = _mm512_setr_epi32(two(0), two(0), two(4), two(4), two(1), two(1), two(5), two(5),
                                              two(2), two(2), two(6), two(6), two(3), two(3), two(7), two(7));
      scales = load_halves_of_rows<kRowCount>(rows, offset + kScale);
      for (int row = 0; row < kRowCount; ++row) {
        const char* bytes = rows[row] + offset;
        Q6KType::unpack(bytes, weights[row]);
        block_scales[row] = _mm512_permutexvar_epi16(
            order, _mm512_zextsi256_si512(_mm256_cvtepi8_epi16(load_128(bytes + kBlockScales))));
      }
    }
  };

  template <int kRowCount, int kTokens>
  struct Sums : RowSums<kRowCount, kTokens> {
    using RowSums<kRowCount, kTokens>::products;

    [[gnu::always_inline]] void add(const Step<kRowCount>& step, const Activations& activations, int token) {
      const SpreadByLoads scales(_mm_mul_ps(step.scales, _mm_set1_ps(activations.scale)));
      for (int row = 0; row < kRowCount; ++row) {
        const __m512i* weights = step.weights[row];
        // A sum of eight products is at most 32 * 127 * 8 = 32512 in magnitude and fits 16 bits: two vectors
        // become one, and one multiplication scales both.
        const __m512i lower = sum_of_eight(weights[0], weights[2], activations.values, activations.offsets);
        const __m512i upper =
            sum_of_eight(weights[1], weights[3], activations.values + 64, activations.offsets + 16);
        const __m512i sum = _mm512_madd_epi16(_mm512_packs_epi32(lower, upper), step.block_scales[row]);
        products[token][row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scales[row], products[token][row]);
      }
    }

    // In each 32-bit element the products of four weights of each vector with values, and what it starts
    // with.
    STRATAD_INLINE __m512i sum_of_eight(__m512i first, __m512i last, const int8_t* values,
                                        const int32_t* offsets) {
      const __m512i sum = _mm512_dpbusd_epi32(load_512(offsets), first, load_512(values));
      return _mm512_dpbusd_epi32(sum, last, load_512(values + 128));
    }
  };
};

using Q6KFormat = SteppedFormat<Q6KType>;

}  // namespace
}  // namespace stratad
