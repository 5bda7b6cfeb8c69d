// Many tokens at once: panels of 16 rows, whose weights are rearranged once and used for all tokens.
//
// Row r of a panel is 32-bit lane r of every vector, so a token's values are broadcast four at a time and
// nothing is summed across lanes. A row's sum depends on the row and the token only.
//
// The two pipes that multiply bound this on Zen 4; all else has to hide behind them. Hence two panels are
// multiplied together, so that a broadcast serves both, and what is rearranged next is prefetched row by row
// while tokens are multiplied (docs/BENCHMARKS.md).
#pragma once

#include "kernels/avx512/panel_steps.hpp"

namespace stratad {
namespace {

constexpr int kPanelGroup = 64;  // tokens for which a panel is rearranged once; their sums are 4 KiB a panel
constexpr int kPanelTile = 4;    // tokens multiplied together: two panels' sums of them fit the registers

// Prefetches a step of some rows while a number of blocks is multiplied, a row at a time: all at once they
// would fill the queue of misses, and everything would wait for it.
template <class Panel>
class RowsAhead {
 public:
  [[gnu::always_inline]] RowsAhead(PanelRows rows, int row_count, int block_count)
      : next_(rows.first),
        stride_(rows.stride),
        rows_at_a_time_((row_count + block_count - 1) / block_count),
        blocks_between_(block_count < row_count ? 1 : block_count / row_count) {}

  // To be called for every block.
  [[gnu::always_inline]] void prefetch() {
    if (--blocks_left_ != 0) return;
    blocks_left_ = blocks_between_;
#pragma GCC unroll 1
    for (int row = 0; row < rows_at_a_time_; ++row, next_ += stride_)
      prefetch_lines<Panel::kStepBytes + 62>(next_);  // so many bytes, wherever in a line they begin
  }

 private:
  const char* next_;
  int64_t stride_;
  int rows_at_a_time_, blocks_between_, blocks_left_ = 1;
};

// One block of some panels times its values of some tokens, as exact integers.
template <class Panel, int kPanels, int kTokens>
STRATAD_INLINE void multiply_block(const typename Panel::Step* steps, int block,
                                   const typename Panel::Activations* const* records,
                                   __m512i (*products)[kPanels]) {
  constexpr int kParts = Panel::kBlockColumns / 4;
  for (int token = 0; token < kTokens; ++token)
    for (int panel = 0; panel < kPanels; ++panel)
      products[token][panel] = Panel::start(*records[token], block);
  const int first = Panel::value_offset(block, 0);
#pragma GCC unroll 8
  for (int part = 0; part < kParts; ++part) {
    __m512i weights[kPanels];
    for (int panel = 0; panel < kPanels; ++panel)
      weights[panel] = steps[panel].weights[kParts * block + part];
#pragma GCC unroll 4
    for (int token = 0; token < kTokens; ++token) {
      __m512i values = broadcast_32(records[token]->values + first + Panel::value_offset(0, part));
      // Or gcc would fold the load into each of its uses.
      if constexpr (kPanels > 1) __asm__("" : "+v"(values));
      for (int panel = 0; panel < kPanels; ++panel)
        products[token][panel] = _mm512_dpbusd_epi32(products[token][panel], weights[panel], values);
    }
  }
}

// One step of some panels times the same step of some tokens, added to their sums.
template <class Panel, int kPanels, int kTokens>
STRATAD_INLINE void add_tile(const typename Panel::Step* steps, const void* const* activations, int64_t step,
                             RowsAhead<Panel>& rows_ahead, __m512 (*sums)[kPanels]) {
  using Activations = typename Panel::Activations;
  const Activations* records[kTokens];
  __m512 totals[kTokens][kPanels];
  for (int token = 0; token < kTokens; ++token) {
    records[token] = static_cast<const Activations*>(activations[token]) + step;
    for (int panel = 0; panel < kPanels; ++panel) totals[token][panel] = _mm512_setzero_ps();
  }
#pragma GCC unroll 1
  for (int block = 0; block < Panel::kStepColumns / Panel::kBlockColumns; ++block) {
    __m512i products[kTokens][kPanels];
    rows_ahead.prefetch();
    multiply_block<Panel, kPanels, kTokens>(steps, block, records, products);
    for (int token = 0; token < kTokens; ++token)
      for (int panel = 0; panel < kPanels; ++panel) {
        const __m512 factor = Panel::factor(steps[panel].scales[block], *records[token], block);
        totals[token][panel] =
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[token][panel]), factor, totals[token][panel]);
      }
  }
  for (int token = 0; token < kTokens; ++token)
    for (int panel = 0; panel < kPanels; ++panel)
      sums[token][panel] =
          Panel::finish(totals[token][panel], steps[panel], *records[token], sums[token][panel]);
}

// The same for any number of tokens.
template <class Panel, int kPanels>
STRATAD_INLINE void add_tokens(const typename Panel::Step* steps, const void* const* activations,
                               int token_count, int64_t step, PanelRows next_rows, __m512 (*sums)[kPanels]) {
  const int tile_count = (token_count + kPanelTile - 1) / kPanelTile;
  RowsAhead<Panel> ahead(next_rows, kPanels * kPanelRows,
                         tile_count * (Panel::kStepColumns / Panel::kBlockColumns));
  int token = 0;
  for (; token + kPanelTile <= token_count; token += kPanelTile)
    add_tile<Panel, kPanels, kPanelTile>(steps, activations + token, step, ahead, sums + token);
  switch (token_count - token) {
    case 1:
      return add_tile<Panel, kPanels, 1>(steps, activations + token, step, ahead, sums + token);
    case 2:
      return add_tile<Panel, kPanels, 2>(steps, activations + token, step, ahead, sums + token);
    case 3:
      return add_tile<Panel, kPanels, 3>(steps, activations + token, step, ahead, sums + token);
    default:
      return;
  }
}

// A step that is not full, or of fewer rows than a panel has, with zeros in the place of what is missing:
// the activations are zero there too or the row is not written, and zero bytes give finite weights in every
// type.
template <class Panel>
struct PaddedStep {
  static constexpr int kRowBytes = (Panel::kStepBytes + 63) / 64 * 64;
  alignas(64) char bytes[kPanelRows][kRowBytes];

  PanelRows copy(PanelRows rows, int64_t row_count, int64_t columns) {
    constexpr int kUnitBytes = Panel::kStepBytes / (Panel::kStepColumns / Panel::kUnitColumns);
    const int64_t given =
        columns < Panel::kStepColumns ? columns / Panel::kUnitColumns * kUnitBytes : Panel::kStepBytes;
    for (int64_t row = 0; row < kPanelRows; ++row) {
      const bool is_given = row < row_count;
      copy_padded<kRowBytes>(rows.first + (is_given ? row * rows.stride : 0), is_given ? given : 0,
                             bytes[row]);
    }
    return {bytes[0], kRowBytes};
  }
};

// Steps of kPanels panels, of which the last may have fewer rows, times at most kPanelGroup tokens.
template <class Panel, int kPanels>
void multiply_panel(PanelRows rows, int64_t row_count, int64_t columns, const void* const* activations,
                    int token_count, __m512 (*sums)[kPanels]) noexcept {
  typename Panel::Step steps[kPanels];
  PaddedStep<Panel> padded;
  const char* const following = rows.first + kPanels * kPanelRows * rows.stride;
  for (int64_t left = columns, step = 0; left > 0; left -= Panel::kStepColumns, ++step) {
    PanelRows next{left > Panel::kStepColumns ? rows.first + Panel::kStepBytes : following, rows.stride};
    // One copy of the code that rearranges is enough.
#pragma GCC unroll 1
    for (int panel = 0; panel < kPanels; ++panel) {
      const int64_t rows_left = row_count - panel * kPanelRows;
      PanelRows place{rows.first + panel * kPanelRows * rows.stride, rows.stride};
      if (rows_left < kPanelRows || left < Panel::kStepColumns) place = padded.copy(place, rows_left, left);
      Panel::rearrange(place, steps[panel]);
    }
    add_tokens<Panel, kPanels>(steps, activations, token_count, step, next, sums);
    rows.first += Panel::kStepBytes;
  }
}

// The same from nothing to the outputs.
template <class Panel, int kPanels>
void multiply_rows(PanelRows rows, int64_t row_count, int64_t columns, const void* const* activations,
                   int token_count, float* const* outputs, int64_t first_row) noexcept {
  __m512 sums[kPanelGroup][kPanels];
  for (int token = 0; token < token_count; ++token)
    for (int panel = 0; panel < kPanels; ++panel) {
      sums[token][panel] = _mm512_setzero_ps();
      // Many tokens' outputs do not fit the cache: without this the stores at the end wait for memory.
      __builtin_prefetch(outputs[token] + first_row + panel * kPanelRows, 1);
    }
  rows.first += first_row * rows.stride;
  multiply_panel<Panel, kPanels>(rows, row_count - first_row, columns, activations, token_count, sums);
  for (int panel = 0; panel < kPanels; ++panel) {
    const int64_t row = first_row + panel * kPanelRows, left = row_count - row;
    const __mmask16 given = left >= kPanelRows ? 0xffff : static_cast<__mmask16>((1 << left) - 1);
    for (int token = 0; token < token_count; ++token)
      _mm512_mask_storeu_ps(outputs[token] + row, given, sums[token][panel]);
  }
}

// RowKernel::multiply_panels of a type.
template <class Panel>
void multiply_panels(const char* rows, int64_t row_count, size_t row_bytes, int64_t columns,
                     const void* const* activations, int token_count, float* const* outputs) noexcept {
  const PanelRows all{rows, static_cast<int64_t>(row_bytes)};
  for (int token = 0; token < token_count; token += kPanelGroup) {
    const int count = token_count - token < kPanelGroup ? token_count - token : kPanelGroup;
    int64_t row = 0;
    for (; row_count - row > kPanelRows; row += 2 * kPanelRows)
      multiply_rows<Panel, 2>(all, row_count, columns, activations + token, count, outputs + token, row);
    if (row < row_count)
      multiply_rows<Panel, 1>(all, row_count, columns, activations + token, count, outputs + token, row);
  }
}

}  // namespace
}  // namespace stratad
