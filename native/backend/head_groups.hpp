// How attention is dealt out: query heads in groups that read one key-value head, a slice's groups together.
#pragma once

#include <cstdint>
#include <vector>

#include "ggml.h"
#include "pool/pool.hpp"

namespace stratad {

// The sources of a FLASH_ATTN_EXT node.
enum AttentionSource { kQuery, kKey, kValue, kMask, kSinks };

struct HeadGroups {
  int64_t heads = 1;             // of a group
  std::vector<int64_t> borders;  // slice s has the groups [borders[s], borders[s + 1])

  // Of a FLASH_ATTN_EXT node. At least two groups for each worker where there are as many heads.
  void deal(const ggml_tensor* node, const Pool& pool);
  int64_t count(int slice) const noexcept { return borders[slice + 1] - borders[slice]; }
};

}  // namespace stratad
