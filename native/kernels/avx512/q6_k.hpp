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

  struct alignas(64) Activations {
    int8_t values[256];
    // -32 times each sum of four values: where an accumulator starts, to take back the 32 by which weights
    // are shifted to make them unsigned.
    int32_t offsets[64];
    int32_t block_offsets[16];  // each the sum of a block's offsets, for panels
    float scale;
  };

  static void arrange(const int8_t* values, float scale, Activations& record) {
    record.scale = scale;
    std::memcpy(record.values, values, sizeof record.values);
    for (int lane = 0; lane < 64; ++lane) record.offsets[lane] = -32 * sum_of(values + 4 * lane, 4);
    for (int block = 0; block < 16; ++block)
      record.block_offsets[block] = -32 * sum_of(values + 16 * block, 16);
  }

  // Weights plus 32: 0 to 63.
  STRATAD_INLINE void unpack(const char* step, __m512i* weights) {
    const __m512i low_bits = _mm512_set1_epi8(15), all_bits = _mm512_set1_epi8(63);
    const __m512i left = _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(2), 1);
    const __m512i right = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(2), 1);
    constexpr int kSelectSecondOrThird = 0xca;
    for (int half = 0; half < 2; ++half) {
      const __m512i lower = load_once(step + 64 * half);
      const __m512i upper = _mm512_broadcast_i64x4(load_256(step + kUpperBits + 32 * half));
      weights[2 * half] = _mm512_and_si512(
          all_bits,
          _mm512_ternarylogic_epi32(low_bits, lower, _mm512_sllv_epi16(upper, left), kSelectSecondOrThird));
      weights[2 * half + 1] = _mm512_and_si512(
          all_bits, _mm512_ternarylogic_epi32(low_bits, _mm512_srli_epi16(lower, 4),
                                              _mm512_srlv_epi16(upper, right), kSelectSecondOrThird));
    }
  }

  template <int kRowCount, int kTokens>
  struct Sums : RowSums<kRowCount, kTokens> {
    using RowSums<kRowCount, kTokens>::products;

    [[gnu::always_inline]] void add(const char* const* rows, int64_t offset, const Activations* const* tokens,
                                    int64_t step) {
      // 16-bit scales as _mm512_packs_epi32 leaves the products: lane L has four of block L, four of 4 + L.
      const __m512i lower_order =
          _mm512_setr_epi32(twice(0), twice(0), twice(4), twice(4), twice(1), twice(1), twice(5), twice(5),
                            twice(2), twice(2), twice(6), twice(6), twice(3), twice(3), twice(7), twice(7));
      const __m512i upper_order = _mm512_add_epi16(lower_order, _mm512_set1_epi16(8));
      __m512i weights[kRowCount][4], lower_scales[kRowCount], upper_scales[kRowCount];
      float scale[kRowCount];
      for (int row = 0; row < kRowCount; ++row) {
        const char* bytes = rows[row] + offset;
        unpack(bytes, weights[row]);
        const __m512i scales = _mm512_zextsi256_si512(_mm256_cvtepi8_epi16(load_128(bytes + kBlockScales)));
        lower_scales[row] = _mm512_permutexvar_epi16(lower_order, scales);
        upper_scales[row] = _mm512_permutexvar_epi16(upper_order, scales);
        scale[row] = load_half(bytes + kScale);
      }
      for (int token = 0; token < kTokens; ++token) {
        const Activations& activations = tokens[token][step];
        for (int row = 0; row < kRowCount; ++row) {
          const __m512i lower =
              pack_products(weights[row][0], weights[row][1], activations.values, activations.offsets);
          const __m512i upper = pack_products(weights[row][2], weights[row][3], activations.values + 128,
                                              activations.offsets + 32);
          const __m512i sum =
              _mm512_dpwssd_epi32(_mm512_madd_epi16(lower, lower_scales[row]), upper, upper_scales[row]);
          products[token][row] = _mm512_fmadd_ps(
              _mm512_cvtepi32_ps(sum), _mm512_set1_ps(scale[row] * activations.scale), products[token][row]);
        }
      }
    }

    // A sum of four products is at most 32 * 127 * 4 = 16256 in magnitude: it fits 16 bits. Of every 128-bit
    // lane four sums come from `first`, four from `second`.
    STRATAD_INLINE __m512i pack_products(__m512i first, __m512i second, const int8_t* values,
                                         const int32_t* offsets) {
      return _mm512_packs_epi32(_mm512_dpbusd_epi32(load_512(offsets), first, load_512(values)),
                                _mm512_dpbusd_epi32(load_512(offsets + 16), second, load_512(values + 64)));
    }
  };
};

using Q6KFormat = SteppedFormat<Q6KType>;

}  // namespace
}  // namespace stratad
