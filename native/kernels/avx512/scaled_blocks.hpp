// Types with eight blocks of 32 weights a step whose products are summed block by block: how their
// activations are arranged, and the sums of those with a scale in front of each block.
#pragma once

#include "kernels/avx512/activations.hpp"

namespace stratad {
namespace {

// Four vectors of a step, each with eight of the 32 values of every block: lane L of 128 bits has those of
// the blocks L and 4 + L. So one accumulator takes all four, and each of its elements is of one block.
struct BlockValues {
  int8_t values[256];
  // What an accumulator starts with, to take back what weights were raised by to make them unsigned.
  int32_t offsets[16];
  int32_t block_offsets[8];  // each the sum of a block's offsets, for panels
};

// Where the four values 4 `part` to 4 `part` + 3 of a block are.
constexpr int block_value_offset(int block, int part) {
  return part / 2 * 64 + block % 4 * 16 + block / 4 * 8 + part % 2 * 4;
}

// `raised`: what was added to each weight.
STRATAD_INLINE void arrange_blocks(const int8_t* values, int raised, BlockValues& record) {
  std::memset(record.offsets, 0, sizeof record.offsets);
  for (int block = 0; block < 8; ++block) {
    record.block_offsets[block] = -raised * sum_of(values + 32 * block, 32);
    for (int part = 0; part < 8; ++part) {
      const int8_t* four = values + 32 * block + 4 * part;
      const int offset = block_value_offset(block, part);
      std::memcpy(record.values + offset, four, 4);
      record.offsets[offset % 64 / 4] -= raised * sum_of(four, 4);
    }
  }
}

// Two times 64 bytes whose lanes L are of block L and block 4 + L, of 16 weights each, in the order of
// BlockValues: the first eight of all, the last eight.
STRATAD_INLINE void join_blocks(__m512i lower_blocks, __m512i upper_blocks, __m512i* joined) {
  joined[0] = _mm512_unpacklo_epi64(lower_blocks, upper_blocks);
  joined[1] = _mm512_unpackhi_epi64(lower_blocks, upper_blocks);
}

// Numbers of the eight blocks, as the elements of an accumulator are ordered.
STRATAD_INLINE __m512i block_elements() {
  return _mm512_setr_epi32(0, 0, 4, 4, 1, 1, 5, 5, 2, 2, 6, 6, 3, 3, 7, 7);
}

STRATAD_INLINE __m512i multiply_blocks(const __m512i* weights, const BlockValues& activations) {
  __m512i sum = load_512(activations.offsets);
  for (int part = 0; part < 4; ++part)
    sum = _mm512_dpbusd_epi32(sum, weights[part], load_512(activations.values + 64 * part));
  return sum;
}

// `Layout` gives kWeightType, kRows, kBlockBytes, kRaised, load_scales(step) and unpack(step, weights): 256
// unsigned weights in the order of BlockValues.
template <class Layout>
struct ScaledBlockType : Layout {
  static constexpr int kUnitColumns = 32, kStepColumns = 8 * kUnitColumns;
  static constexpr int kStepBytes = 8 * Layout::kBlockBytes;

  struct alignas(64) Activations : BlockValues {
    float scales[8];
  };

  static void arrange(const int8_t* values, const float* scales, Activations& record) {
    arrange_blocks(values, Layout::kRaised, record);
    std::memcpy(record.scales, scales, sizeof record.scales);
  }

  template <int kRowCount>
  struct Step {
    __m512i weights[kRowCount][4];
    __m256 scales[kRowCount];

    [[gnu::always_inline]] void unpack(const char* const* rows, int64_t offset) {
      for (int row = 0; row < kRowCount; ++row) {
        scales[row] = Layout::load_scales(rows[row] + offset);
        Layout::unpack(rows[row] + offset, weights[row]);
      }
    }
  };

  template <int kRowCount, int kTokens>
  struct Sums : RowSums<kRowCount, kTokens> {
    using RowSums<kRowCount, kTokens>::products;

    [[gnu::always_inline]] void add(const Step<kRowCount>& step, const Activations& activations, int token) {
      const __m256 token_scales = _mm256_load_ps(activations.scales);
      for (int row = 0; row < kRowCount; ++row) {
        const __m512 scales = _mm512_castps256_ps512(_mm256_mul_ps(step.scales[row], token_scales));
        const __m512 sums = _mm512_cvtepi32_ps(multiply_blocks(step.weights[row], activations));
        products[token][row] =
            _mm512_fmadd_ps(sums, _mm512_permutexvar_ps(block_elements(), scales), products[token][row]);
      }
    }
  };
};

}  // namespace
}  // namespace stratad
