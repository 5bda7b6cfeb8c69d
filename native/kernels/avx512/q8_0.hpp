// Q8_0: blocks of 32 weights of 8 bits, a 16-bit float scale in front of each.
#pragma once

#include "kernels/avx512/activations.hpp"

namespace stratad {
namespace {

struct Q80Type {
  static constexpr ggml_type kWeightType = GGML_TYPE_Q8_0;
  static constexpr int kRows = 2, kUnitColumns = 32, kBlockBytes = 34;
  static constexpr int kStepColumns = 8 * kUnitColumns, kStepBytes = 8 * kBlockBytes;

  struct alignas(64) Activations {
    int8_t values[256];
    // -128 times each sum of four values: where an accumulator starts, to take back the 128 by which weights
    // are shifted to make them unsigned.
    int32_t offsets[64];
    float scales[8];
    int32_t block_offsets[8];  // each the sum of a block's offsets, for panels
  };

  static void arrange(const int8_t* values, const float* scales, Activations& record) {
    std::memcpy(record.values, values, sizeof record.values);
    std::memcpy(record.scales, scales, sizeof record.scales);
    for (int lane = 0; lane < 64; ++lane) record.offsets[lane] = -128 * sum_of(values + 4 * lane, 4);
    for (int block = 0; block < 8; ++block)
      record.block_offsets[block] = -128 * sum_of(values + 32 * block, 32);
  }

  STRATAD_INLINE __m256 load_scales(const char* blocks) { return load_halves<kBlockBytes>(blocks); }

  // Of the pair of blocks that begins here the weights, plus 128.
  STRATAD_INLINE __m512i load_pair(const char* blocks) {
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(load_256(blocks + 2)),
                                            load_256(blocks + kBlockBytes + 2), 1);
    return _mm512_xor_si512(both, _mm512_set1_epi8(static_cast<char>(0x80)));
  }

  STRATAD_INLINE void unpack(const char* step, __m512i* weights) {
    for (int pair = 0; pair < 4; ++pair) weights[pair] = load_pair(step + 2 * pair * kBlockBytes);
  }

  template <int kRowCount, int kTokens>
  struct Sums : RowSums<kRowCount, kTokens> {
    using RowSums<kRowCount, kTokens>::products;

    [[gnu::always_inline]] void add(const char* const* rows, int64_t offset, const Activations* const* tokens,
                                    int64_t step) {
      const __m512i pair_lanes = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
      __m512 scales[kTokens][kRowCount];
      for (int row = 0; row < kRowCount; ++row) {
        const __m256 row_scales = load_scales(rows[row] + offset);
        for (int token = 0; token < kTokens; ++token)
          scales[token][row] =
              _mm512_castps256_ps512(_mm256_mul_ps(row_scales, _mm256_load_ps(tokens[token][step].scales)));
      }
#pragma GCC unroll 4
      for (int pair = 0; pair < 4; ++pair) {
        const __m512i lanes = _mm512_add_epi32(pair_lanes, _mm512_set1_epi32(2 * pair));
        __m512i weights[kRowCount];
        for (int row = 0; row < kRowCount; ++row) {
          weights[row] = load_pair(rows[row] + offset + 2 * pair * kBlockBytes);
        }
        for (int token = 0; token < kTokens; ++token) {
          const Activations& activations = tokens[token][step];
          const __m512i start = load_512(activations.offsets + 16 * pair);
          const __m512i values = load_512(activations.values + 64 * pair);
          for (int row = 0; row < kRowCount; ++row) {
            const __m512i sum = _mm512_dpbusd_epi32(start, weights[row], values);
            products[token][row] =
                _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_permutexvar_ps(lanes, scales[token][row]),
                                products[token][row]);
          }
        }
      }
    }
  };
};

using Q80Format = SteppedFormat<Q80Type>;

}  // namespace
}  // namespace stratad
