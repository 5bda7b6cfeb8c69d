// Many tokens at once: panels of 16 rows, whose weights are rearranged once and used for all tokens.
//
// Row r of a panel is 32-bit lane r of every vector, so a token's values are broadcast four at a time and
// nothing is summed across lanes. A row's sum depends on the row and the token only.
#pragma once

#include "kernels/avx512/code_books.hpp"
#include "kernels/avx512/k_quants.hpp"
#include "kernels/avx512/q6_k.hpp"
#include "kernels/avx512/q8_0.hpp"

namespace stratad {
namespace {

constexpr int kPanelRows = 16;
constexpr int kPanelGroup = 64;  // tokens for which a panel is rearranged once; their sums are 4 KiB

// Columns become rows of 16 x 16 32-bit elements.
STRATAD_INLINE void transpose_16(__m512i* rows) {
  __m512i pairs[16];
  for (int row = 0; row < 16; row += 2) {
    pairs[row] = _mm512_unpacklo_epi32(rows[row], rows[row + 1]);
    pairs[row + 1] = _mm512_unpackhi_epi32(rows[row], rows[row + 1]);
  }
  // Lane L of quads[4 * q + c]: column 4 L + c of the rows 4 q to 4 q + 3.
  __m512i quads[16];
  for (int row = 0; row < 16; row += 4) {
    quads[row] = _mm512_unpacklo_epi64(pairs[row], pairs[row + 2]);
    quads[row + 1] = _mm512_unpackhi_epi64(pairs[row], pairs[row + 2]);
    quads[row + 2] = _mm512_unpacklo_epi64(pairs[row + 1], pairs[row + 3]);
    quads[row + 3] = _mm512_unpackhi_epi64(pairs[row + 1], pairs[row + 3]);
  }
  for (int column = 0; column < 4; ++column) {
    const __m512i even_low = _mm512_shuffle_i32x4(quads[column], quads[4 + column], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(quads[column], quads[4 + column], 0xdd);
    const __m512i even_high = _mm512_shuffle_i32x4(quads[8 + column], quads[12 + column], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(quads[8 + column], quads[12 + column], 0xdd);
    rows[column] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    rows[8 + column] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    rows[4 + column] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    rows[12 + column] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
}

// Any 16 rows: what is left over at the end repeats the last row, and is not written.
struct PanelRows {
  const char* addresses[kPanelRows];

  PanelRows(const char* rows, int64_t row_count, size_t row_bytes) {
    for (int64_t row = 0; row < kPanelRows; ++row)
      addresses[row] = rows + (row < row_count ? row : row_count - 1) * static_cast<int64_t>(row_bytes);
  }
};

STRATAD_INLINE __m512i broadcast_32(const void* address) {
  int value;
  std::memcpy(&value, address, sizeof value);
  return _mm512_set1_epi32(value);
}

// The weights of one block of 32 times as many values of each token, as exact integers.
template <class Type, int kTokens>
STRATAD_INLINE void multiply_block(const __m512i* weights, int block,
                                   const typename Type::Activations* const* records, __m512i* products) {
  for (int part = 0; part < 8; ++part) {
    const int element = Type::panel_element(block, part);
    for (int token = 0; token < kTokens; ++token)
      products[token] = _mm512_dpbusd_epi32(products[token], weights[element],
                                            broadcast_32(records[token]->values + 4 * element));
  }
}

// Blocks of 32 with a float scale each, weights raised by Type's offset: Q8_0 and the code books.
template <class Type>
struct BlockPanel : Type {
  struct Scales {
    alignas(64) float blocks[8][kPanelRows];

    void load(const char* const* steps) {
      for (int row = 0; row < kPanelRows; ++row) {
        alignas(32) float scales[8];
        _mm256_store_ps(scales, Type::load_scales(steps[row]));
        for (int block = 0; block < 8; ++block) blocks[block][row] = scales[block];
      }
    }
  };

  template <int kTokens>
  STRATAD_INLINE void add(const __m512i* weights, const Scales& scales,
                          const typename Type::Activations* const* records, __m512* sums) {
    for (int block = 0; block < 8; ++block) {
      __m512i products[kTokens];
      for (int token = 0; token < kTokens; ++token)
        products[token] = _mm512_set1_epi32(records[token]->block_offsets[block]);
      multiply_block<Type, kTokens>(weights, block, records, products);
      const __m512 row_scales = _mm512_load_ps(scales.blocks[block]);
      for (int token = 0; token < kTokens; ++token) {
        const __m512 both = _mm512_mul_ps(row_scales, _mm512_set1_ps(records[token]->scales[block]));
        sums[token] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[token]), both, sums[token]);
      }
    }
  }
};

// Q4_K and Q5_K.
template <class Type>
struct KQuantPanel : Type {
  struct Scales {
    alignas(64) int32_t scales[8][kPanelRows];
    alignas(64) int16_t minima[4][kPanelRows][2];  // of two blocks side by side
    alignas(64) float scale[kPanelRows];
    alignas(64) float minimum_scale[kPanelRows];

    void load(const char* const* steps) {
      alignas(64) uint8_t unpacked[4][16];
      for (int row = 0; row < kPanelRows; ++row) {
        if (row % 4 == 0) _mm512_store_si512(unpacked, unpack_scales(load_headers<4>(steps + row, 0)));
        for (int block = 0; block < 8; ++block) {
          const int byte = block / 4 * 8 + block % 4;  // scales 0-3, minima 0-3, scales 4-7, minima 4-7
          scales[block][row] = unpacked[row % 4][byte];
          minima[block / 2][row][block % 2] = unpacked[row % 4][byte + 4];
        }
        scale[row] = load_half(steps[row]);
        minimum_scale[row] = load_half(steps[row] + 2);
      }
    }
  };

  template <int kTokens>
  STRATAD_INLINE void add(const __m512i* weights, const Scales& scales,
                          const KQuantActivations* const* records, __m512* sums) {
    __m512i totals[kTokens];
    for (int token = 0; token < kTokens; ++token) totals[token] = _mm512_setzero_si512();
    for (int block = 0; block < 8; ++block) {
      __m512i products[kTokens];
      for (int token = 0; token < kTokens; ++token) products[token] = _mm512_setzero_si512();
      multiply_block<Type, kTokens>(weights, block, records, products);
      const __m512i row_scales = load_512(scales.scales[block]);
      for (int token = 0; token < kTokens; ++token)
        totals[token] = _mm512_add_epi32(totals[token], _mm512_mullo_epi32(products[token], row_scales));
    }
    const __m512 scale = _mm512_load_ps(scales.scale), minimum_scale = _mm512_load_ps(scales.minimum_scale);
    for (int token = 0; token < kTokens; ++token) {
      __m512i minimum = _mm512_setzero_si512();
      for (int pair = 0; pair < 4; ++pair)
        minimum = _mm512_dpwssd_epi32(minimum, load_512(scales.minima[pair]),
                                      broadcast_32(records[token]->block_sums + 2 * pair));
      const __m512 taken_off = _mm512_mul_ps(_mm512_cvtepi32_ps(minimum), minimum_scale);
      const __m512 product = _mm512_fmsub_ps(_mm512_cvtepi32_ps(totals[token]), scale, taken_off);
      sums[token] = _mm512_fmadd_ps(product, _mm512_set1_ps(records[token]->scale), sums[token]);
    }
  }
};

// Q6_K: blocks of 16.
struct Q6KPanel : Q6KType {
  struct Scales {
    alignas(64) int32_t scales[16][kPanelRows];
    alignas(64) float scale[kPanelRows];

    void load(const char* const* steps) {
      for (int row = 0; row < kPanelRows; ++row) {
        int8_t bytes[16];
        std::memcpy(bytes, steps[row] + kBlockScales, sizeof bytes);
        for (int block = 0; block < 16; ++block) scales[block][row] = bytes[block];
        scale[row] = load_half(steps[row] + kScale);
      }
    }
  };

  template <int kTokens>
  STRATAD_INLINE void add(const __m512i* weights, const Scales& scales, const Activations* const* records,
                          __m512* sums) {
    __m512i totals[kTokens];
    for (int token = 0; token < kTokens; ++token) totals[token] = _mm512_setzero_si512();
    for (int block = 0; block < 16; ++block) {
      __m512i products[kTokens];
      for (int token = 0; token < kTokens; ++token)
        products[token] = _mm512_set1_epi32(records[token]->block_offsets[block]);
      for (int element = 4 * block; element < 4 * block + 4; ++element)
        for (int token = 0; token < kTokens; ++token)
          products[token] = _mm512_dpbusd_epi32(products[token], weights[element],
                                                broadcast_32(records[token]->values + 4 * element));
      const __m512i row_scales = load_512(scales.scales[block]);
      for (int token = 0; token < kTokens; ++token)
        totals[token] = _mm512_add_epi32(totals[token], _mm512_mullo_epi32(products[token], row_scales));
    }
    const __m512 scale = _mm512_load_ps(scales.scale);
    for (int token = 0; token < kTokens; ++token) {
      const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(records[token]->scale));
      sums[token] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(totals[token]), both, sums[token]);
    }
  }
};

// One step of 16 rows: weights[e] has four weights of each row, those that meet the values 4 e to 4 e + 3.
template <class Panel>
STRATAD_INLINE void rearrange(const char* const* steps, __m512i* weights) {
  for (int row = 0; row < kPanelRows; ++row) {
    __m512i parts[4];
    Panel::unpack(steps[row], parts);
    for (int part = 0; part < 4; ++part) weights[16 * part + row] = parts[part];
  }
  for (int part = 0; part < 4; ++part) transpose_16(weights + 16 * part);
}

// 16 rows (or `row_count`, if that is less) times at most kPanelGroup tokens.
template <class Panel>
void multiply_panel(const char* rows, int64_t row_count, size_t row_bytes, int64_t columns,
                    const void* const* activations, int token_count, float* const* outputs,
                    int64_t first_row) noexcept {
  using Activations = typename Panel::Activations;
  constexpr int kPaddedBytes = (Panel::kStepBytes + 63) / 64 * 64;
  __m512 sums[kPanelGroup];
  __m512i weights[64];
  typename Panel::Scales scales;
  alignas(64) char copies[Panel::kUnitColumns == Panel::kStepColumns ? 1 : kPanelRows][kPaddedBytes];
  for (int token = 0; token < token_count; ++token) sums[token] = _mm512_setzero_ps();
  PanelRows panel(rows, row_count, row_bytes);
  for (int64_t column = 0, step = 0; column < columns; column += Panel::kStepColumns, ++step) {
    if constexpr (Panel::kUnitColumns != Panel::kStepColumns) {
      const int64_t left = columns - column;
      if (left < Panel::kStepColumns)
        for (int row = 0; row < kPanelRows; ++row) {
          copy_padded<kPaddedBytes>(panel.addresses[row], left / Panel::kUnitColumns * Panel::kBlockBytes,
                                    copies[row]);
          panel.addresses[row] = copies[row];
        }
    }
    rearrange<Panel>(panel.addresses, weights);
    scales.load(panel.addresses);
    for (const char*& address : panel.addresses) {
      address += Panel::kStepBytes;
      prefetch_lines<Panel::kStepBytes>(address);
    }
    const auto record = [&](int token) { return static_cast<const Activations*>(activations[token]) + step; };
    int token = 0;
    for (; token + 4 <= token_count; token += 4) {
      const Activations* records[4] = {record(token), record(token + 1), record(token + 2),
                                       record(token + 3)};
      Panel::template add<4>(weights, scales, records, sums + token);
    }
    for (; token < token_count; ++token) {
      const Activations* records[1] = {record(token)};
      Panel::template add<1>(weights, scales, records, sums + token);
    }
  }
  const __mmask16 given = row_count >= kPanelRows ? 0xffff : static_cast<__mmask16>((1 << row_count) - 1);
  for (int token = 0; token < token_count; ++token)
    _mm512_mask_storeu_ps(outputs[token] + first_row, given, sums[token]);
}

// RowKernel::multiply_panels of a type.
template <class Panel>
void multiply_panels(const char* rows, int64_t row_count, size_t row_bytes, int64_t columns,
                     const void* const* activations, int token_count, float* const* outputs) noexcept {
  for (int token = 0; token < token_count; token += kPanelGroup) {
    const int count = token_count - token < kPanelGroup ? token_count - token : kPanelGroup;
    for (int64_t row = 0; row < row_count; row += kPanelRows)
      multiply_panel<Panel>(rows + row * static_cast<int64_t>(row_bytes), row_count - row, row_bytes, columns,
                            activations + token, count, outputs + token, row);
  }
}

}  // namespace
}  // namespace stratad
