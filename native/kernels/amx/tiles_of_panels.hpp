// Panels (kernels/avx512/panels.hpp) multiplied by tiles, to the same bits.
//
// A block of a panel, as it is rearranged for vectors, is already what the second operand of a tile product
// has to be: four weights of each row in each 32-bit lane, unsigned. The first operand is 16 tokens' values
// of the block, so a product's row is a token and its lanes are the panel's rows. It is an exact integer sum,
// and what is done with it in floats is what panels do, with the same functions in the same order. Hence the
// same bits.
//
// A product is as deep as a block, 32 columns and for Q6_K 16, of the 64 that a tile can have: a deeper one
// would add up what has different scales. Weights lie in the second operand, and not in the first, so that a
// sum's lanes are rows: then what panels have by lane (scales, minima) fits without turning anything around.
//
// What it costs by counting; no CPU with tiles was at hand to measure it. A block of 32 columns of 16 rows
// and 16 tokens is one tile product instead of 128 vector products. What remains is the floats: for each
// token an addition (where weights are shifted), a conversion, a multiplication (where activations have a
// scale for each block) and a multiply-add. So 2 to 4 vector operations do for 16 rows what took 8 more
// before.
//
// Tokens' values lie apart, and in the order in which vectors want them, so they are copied for tiles: once
// for all rows of a call, not for every two panels. Where 16 bytes lie together that is 1024 loads and stores
// for a step of 64 tokens, while the floats of two panels in that step are 1024 times 2 to 4 operations. So
// copying would take about a fifth of a call of 32 rows, and a fiftieth of one of 320.
#pragma once

#include "kernels/amx/tile_registers.hpp"
#include "kernels/avx512/panels.hpp"

namespace stratad {
namespace {

constexpr int kTileTokens = 16;  // rows of a tile
constexpr int kTileGroup = 64;   // tokens for which a panel is rearranged once
// Steps whose values are copied at once: 128 KiB, on the stack. Rows that are longer are multiplied in parts,
// between which their sums lie in the outputs.
constexpr int kTileSteps = 8;

// Registers: products of 2 times 16 tokens with 2 panels, the tokens' values, the panels' weights.
constexpr int kFirstProduct = 0, kFirstValues = 4, kFirstWeights = 6;

template <class Panel>
struct TileShape {
  static constexpr int kBlocks = Panel::kStepColumns / Panel::kBlockColumns;
  static constexpr int kParts = Panel::kBlockColumns / 4;
  static_assert(Panel::kBlockColumns % 16 == 0 && Panel::kBlockColumns <= 64);

  static constexpr TileConfiguration configuration() {
    TileConfiguration shape;
    for (int tile = 0; tile < 8; ++tile) {
      const bool has_values = tile >= kFirstValues && tile < kFirstWeights,
                 has_weights = tile >= kFirstWeights;
      shape.rows[tile] = has_weights ? kParts : kTileTokens;
      shape.row_bytes[tile] = has_values ? Panel::kBlockColumns : 4 * kPanelRows;
    }
    return shape;
  }

  // Parts of a block whose values lie one behind the other in every record, and are copied at once.
  static constexpr int run_parts() {
    for (int parts = 4; parts > 1; parts /= 2)
      if (are_values_in_runs(parts)) return parts;
    return 1;
  }

 private:
  static constexpr bool are_values_in_runs(int parts) {
    for (int block = 0; block < kBlocks; ++block)
      for (int part = 0; part < kParts; ++part)
        if (Panel::value_offset(block, part) !=
            Panel::value_offset(block, part / parts * parts) + part % parts * 4)
          return false;
    return true;
  }
};

template <class Panel>
constexpr TileConfiguration kTileConfiguration = TileShape<Panel>::configuration();

// Values of a group of tokens as tiles want them.
template <class Panel>
class TileValues {
 public:
  // Tokens that fill up the last tile are zeros.
  void copy(const void* const* activations, int token_count, int64_t first_step, int step_count) noexcept {
    const int padded_count = (token_count + kTileTokens - 1) / kTileTokens * kTileTokens;
    for (int token = 0; token < padded_count; ++token)
      for (int step = 0; step < step_count; ++step) {
        if (token >= token_count)
          clear_token(step, token);
        else
          copy_token(static_cast<const typename Panel::Activations*>(activations[token])[first_step + step],
                     step, token);
      }
  }

  // Of a block, from this token on, one token behind the other.
  const int8_t* from(int step, int block, int token) const noexcept { return values_[step][block][token]; }

 private:
  void copy_token(const typename Panel::Activations& record, int step, int token) noexcept {
    constexpr int kRun = TileShape<Panel>::run_parts();
#pragma GCC unroll 16
    for (int block = 0; block < TileShape<Panel>::kBlocks; ++block)
      for (int part = 0; part < TileShape<Panel>::kParts; part += kRun)
        std::memcpy(values_[step][block][token] + 4 * part, record.values + Panel::value_offset(block, part),
                    4 * kRun);
  }
  void clear_token(int step, int token) noexcept {
    for (auto& block : values_[step]) std::memset(block[token], 0, Panel::kBlockColumns);
  }

  alignas(64) int8_t values_[kTileSteps][TileShape<Panel>::kBlocks][kTileGroup][Panel::kBlockColumns];
};

// One block of some panels times its values of some tiles of tokens, without Panel::start.
template <class Panel, class Tiles, int kPanels, int kTiles>
STRATAD_INLINE void multiply_block_by_tiles(const typename Panel::Step* steps, int block,
                                            const int8_t* values, __m512i (*products)[kPanels]) {
  constexpr int kColumns = Panel::kBlockColumns, kSecond = kFirstProduct + 2;
  constexpr bool kHasPair = kPanels == 2, kHasMore = kTiles == 2;
  const int first_weight = TileShape<Panel>::kParts * block;
  Tiles::template load<kFirstWeights>(steps[0].weights + first_weight, sizeof(__m512i));
  if constexpr (kHasPair)
    Tiles::template load<kFirstWeights + 1>(steps[1].weights + first_weight, sizeof(__m512i));
  Tiles::template load<kFirstValues>(values, kColumns);
  if constexpr (kHasMore) Tiles::template load<kFirstValues + 1>(values + kTileTokens * kColumns, kColumns);

  Tiles::template clear<kFirstProduct>();
  if constexpr (kHasPair) Tiles::template clear<kFirstProduct + 1>();
  if constexpr (kHasMore) Tiles::template clear<kSecond>();
  if constexpr (kHasPair && kHasMore) Tiles::template clear<kSecond + 1>();

  Tiles::template multiply<kFirstProduct, kFirstValues, kFirstWeights>();
  if constexpr (kHasPair) Tiles::template multiply<kFirstProduct + 1, kFirstValues, kFirstWeights + 1>();
  if constexpr (kHasMore) Tiles::template multiply<kSecond, kFirstValues + 1, kFirstWeights>();
  if constexpr (kHasPair && kHasMore)
    Tiles::template multiply<kSecond + 1, kFirstValues + 1, kFirstWeights + 1>();

  constexpr int64_t kStride = sizeof(*products);
  Tiles::template store<kFirstProduct>(&products[0][0], kStride);
  if constexpr (kHasPair) Tiles::template store<kFirstProduct + 1>(&products[0][1], kStride);
  if constexpr (kHasMore) Tiles::template store<kSecond>(&products[kTileTokens][0], kStride);
  if constexpr (kHasPair && kHasMore) Tiles::template store<kSecond + 1>(&products[kTileTokens][1], kStride);
}

// A block's products, scaled and added to the totals of its step.
template <class Panel, int kPanels>
STRATAD_INLINE void add_products(const typename Panel::Step* steps, int block,
                                 const typename Panel::Activations* const* records, int token_count,
                                 const __m512i (*products)[kPanels], __m512 (*totals)[kPanels]) {
  for (int token = 0; token < token_count; ++token) {
    const __m512i start = Panel::start(*records[token], block);
    for (int panel = 0; panel < kPanels; ++panel) {
      const __m512 factor = Panel::factor(steps[panel].scales[block], *records[token], block);
      const __m512i product = _mm512_add_epi32(products[token][panel], start);
      totals[token][panel] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(product), factor, totals[token][panel]);
    }
  }
}

// What all panels of a call have in common: a group of tokens and a run of steps.
template <class Panel>
struct TileBatch {
  PanelRows rows;  // at the first step
  int64_t row_count;
  int64_t columns;  // from the first step on
  int64_t first_step;
  int step_count;
  const void* const* activations;
  float* const* outputs;
  int token_count;
  const TileValues<Panel>& values;
};

// One step of some panels times the same step of `token_count` tokens, at most kTiles times 16, added to
// their sums.
//
// A block is multiplied while the one before it is scaled: its products are on their way to memory until
// then.
template <class Panel, class Tiles, int kPanels, int kTiles>
void add_tiles(const typename Panel::Step* steps, const TileBatch<Panel>& batch, int step, int first_token,
               int token_count, RowsAhead<Panel>& rows_ahead, __m512 (*sums)[kPanels]) noexcept {
  constexpr int kTokens = kTiles * kTileTokens, kBlocks = TileShape<Panel>::kBlocks;
  const typename Panel::Activations* records[kTokens];
  __m512 totals[kTokens][kPanels];
  __m512i products[2][kTokens][kPanels];
  for (int token = 0; token < token_count; ++token) {
    records[token] = static_cast<const typename Panel::Activations*>(batch.activations[first_token + token]) +
                     batch.first_step + step;
    for (int panel = 0; panel < kPanels; ++panel) totals[token][panel] = _mm512_setzero_ps();
  }
  const auto multiply = [&](int block) __attribute__((always_inline)) {
    multiply_block_by_tiles<Panel, Tiles, kPanels, kTiles>(
        steps, block, batch.values.from(step, block, first_token), products[block % 2]);
  };
  multiply(0);
#pragma GCC unroll 1
  for (int block = 0; block < kBlocks; ++block) {
    rows_ahead.prefetch();
    if (block + 1 < kBlocks) multiply(block + 1);
    add_products<Panel, kPanels>(steps, block, records, token_count, products[block % 2], totals);
  }
  for (int token = 0; token < token_count; ++token)
    for (int panel = 0; panel < kPanels; ++panel)
      sums[token][panel] =
          Panel::finish(totals[token][panel], steps[panel], *records[token], sums[token][panel]);
}

// The same for all tokens.
template <class Panel, class Tiles, int kPanels>
STRATAD_INLINE void add_tile_group(const typename Panel::Step* steps, const TileBatch<Panel>& batch, int step,
                                   PanelRows next_rows, __m512 (*sums)[kPanels]) {
  constexpr int kPair = 2 * kTileTokens;
  const int pair_count = (batch.token_count + kPair - 1) / kPair;
  RowsAhead<Panel> ahead(next_rows, kPanels * kPanelRows, pair_count * TileShape<Panel>::kBlocks);
  for (int token = 0; token < batch.token_count; token += kPair) {
    const int left = batch.token_count - token;
    if (left > kTileTokens)
      add_tiles<Panel, Tiles, kPanels, 2>(steps, batch, step, token, left < kPair ? left : kPair, ahead,
                                          sums + token);
    else
      add_tiles<Panel, Tiles, kPanels, 1>(steps, batch, step, token, left, ahead, sums + token);
  }
}

// Which rows of a panel there are.
STRATAD_INLINE __mmask16 rows_given(int64_t rows_left) {
  return rows_left >= kPanelRows ? 0xffff : static_cast<__mmask16>((1 << rows_left) - 1);
}

// kPanels panels from `first_row` on, of which the last may have fewer rows: from nothing, or from what the
// steps before have left in the outputs, to the outputs.
template <class Panel, class Tiles, int kPanels>
void multiply_rows_by_tiles(const TileBatch<Panel>& batch, int64_t first_row) noexcept {
  typename Panel::Step steps[kPanels];
  PaddedStep<Panel> padded;
  __m512 sums[kTileGroup][kPanels];
  const auto rows_from = [&](int panel) { return batch.row_count - first_row - panel * kPanelRows; };
  for (int token = 0; token < batch.token_count; ++token)
    for (int panel = 0; panel < kPanels; ++panel) {
      const __mmask16 given = batch.first_step == 0 ? 0 : rows_given(rows_from(panel));
      sums[token][panel] =
          _mm512_maskz_loadu_ps(given, batch.outputs[token] + first_row + panel * kPanelRows);
    }
  PanelRows rows{batch.rows.first + first_row * batch.rows.stride, batch.rows.stride};
  const char* const following = rows.first + kPanels * kPanelRows * rows.stride;
  int64_t columns_left = batch.columns;
  for (int step = 0; step < batch.step_count; ++step, columns_left -= Panel::kStepColumns) {
    const bool is_last = step + 1 == batch.step_count;
#pragma GCC unroll 1
    for (int panel = 0; panel < kPanels; ++panel) {
      PanelRows place{rows.first + panel * kPanelRows * rows.stride, rows.stride};
      if (rows_from(panel) < kPanelRows || columns_left < Panel::kStepColumns)
        place = padded.copy(place, rows_from(panel), columns_left);
      Panel::rearrange(place, steps[panel]);
    }
    add_tile_group<Panel, Tiles, kPanels>(
        steps, batch, step, {is_last ? following : rows.first + Panel::kStepBytes, rows.stride}, sums);
    rows.first += Panel::kStepBytes;
  }
  for (int token = 0; token < batch.token_count; ++token)
    for (int panel = 0; panel < kPanels; ++panel)
      _mm512_mask_storeu_ps(batch.outputs[token] + first_row + panel * kPanelRows,
                            rows_given(rows_from(panel)), sums[token][panel]);
}

// The panel of a weight type.
template <ggml_type kWeightType>
struct PanelOfType;
template <>
struct PanelOfType<GGML_TYPE_Q4_K> {
  using Panel = KQuantPanel<Q4KLayout>;
};
template <>
struct PanelOfType<GGML_TYPE_Q5_K> {
  using Panel = KQuantPanel<Q5KLayout>;
};
template <>
struct PanelOfType<GGML_TYPE_Q6_K> {
  using Panel = Q6KPanel;
};
template <>
struct PanelOfType<GGML_TYPE_IQ4_XS> {
  using Panel = IQ4XSPanel;
};
template <>
struct PanelOfType<GGML_TYPE_Q8_0> {
  using Panel = Q80Panel;
};
template <>
struct PanelOfType<GGML_TYPE_Q4_0> {
  using Panel = CodeBookPanel<Q40Book>;
};
template <>
struct PanelOfType<GGML_TYPE_IQ4_NL> {
  using Panel = CodeBookPanel<IQ4NLBook>;
};
template <>
struct PanelOfType<GGML_TYPE_MXFP4> {
  using Panel = CodeBookPanel<MXFP4Book>;
};
template <ggml_type kWeightType>
using PanelOf = typename PanelOfType<kWeightType>::Panel;

// RowKernel::multiply_tiles of a type.
template <class Panel, class Tiles>
void multiply_tiles(const char* rows, int64_t row_count, size_t row_bytes, int64_t columns,
                    const void* const* activations, int token_count, float* const* outputs) noexcept {
  constexpr int64_t kRunColumns = int64_t{kTileSteps} * Panel::kStepColumns;
  TileValues<Panel> values;
  Tiles::configure(kTileConfiguration<Panel>);
  for (int token = 0; token < token_count; token += kTileGroup)
    for (int64_t column = 0; column < columns; column += kRunColumns) {
      const int64_t first_step = column / Panel::kStepColumns, left = columns - column;
      const int64_t run = left < kRunColumns ? left : kRunColumns;
      const TileBatch<Panel> batch{{rows + first_step * Panel::kStepBytes, static_cast<int64_t>(row_bytes)},
                                   row_count,
                                   left,
                                   first_step,
                                   static_cast<int>((run + Panel::kStepColumns - 1) / Panel::kStepColumns),
                                   activations + token,
                                   outputs + token,
                                   token_count - token < kTileGroup ? token_count - token : kTileGroup,
                                   values};
      values.copy(batch.activations, batch.token_count, first_step, batch.step_count);
      int64_t row = 0;
      for (; row_count - row > kPanelRows; row += 2 * kPanelRows)
        multiply_rows_by_tiles<Panel, Tiles, 2>(batch, row);
      if (row < row_count) multiply_rows_by_tiles<Panel, Tiles, 1>(batch, row);
    }
  Tiles::release();
}

}  // namespace
}  // namespace stratad
