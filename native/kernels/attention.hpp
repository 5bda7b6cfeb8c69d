// Attention of several tokens at once, a tile of queries over one key-value head.
//
// Queries are lanes: scores, their maxima and their sums run down the keys, so no lane ever meets another and
// neither keys nor values have to be transposed. Queries of several heads that share a key-value head can
// fill one tile. The softmax is taken on the way, as M. Milakov and N. Gimelshein describe it ("Online
// normalizer calculation for softmax", arXiv 1805.02867).
//
// A query's bits depend on its row, its mask and the keys only: not on which queries share its tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ggml.h"
#include "kernels/row_kernel.hpp"

namespace stratad {

struct AttentionQuery {
  const float* values;      // key_columns
  const ggml_fp16_t* mask;  // added to the scores, one for each key; null: all keys are seen
  float* output;            // value_columns
  float sink;               // a score that takes its share and has no value; minus infinity: none
};

struct AttentionTile {
  const AttentionQuery* queries;
  int query_count;  // at most AttentionKernel::query_limit
  // 16-bit floats, `*_stride` bytes from one key to the next.
  const char* keys;
  size_t key_stride;
  const char* values;
  size_t value_stride;
  int64_t key_count;
  int64_t key_columns, value_columns;  // multiples of kAttentionColumns
  float scale;                         // of the scores, before the mask is added
};

inline constexpr int64_t kAttentionColumns = 16;
inline constexpr int kMostAttentionQueries = 32;

struct AttentionKernel {
  int query_limit;  // at most kMostAttentionQueries
  // What `attend` needs of working memory, aligned to 64 bytes.
  size_t (*scratch_floats)(int64_t key_columns, int64_t value_columns) noexcept;
  void (*attend)(const AttentionTile& tile, float* scratch) noexcept;
};

// What the CPU has to have is that of the row kernels of this set.
const AttentionKernel& attention_kernel(InstructionSet set) noexcept;

}  // namespace stratad
