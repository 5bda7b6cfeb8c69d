#include "backend/head_groups.hpp"

namespace stratad {
namespace {

// Groups for each worker, at least: with fewer, one that lags keeps the others waiting for a whole group.
constexpr int64_t kGroupsPerWorker = 2;

// The most heads of one key-value head that still make enough groups: heads of one group share what they read
// in the worker's cache.
int64_t heads_per_group(int64_t key_heads, int64_t heads_per_key, int64_t wanted_groups) noexcept {
  for (int64_t cuts = 1; cuts < heads_per_key; ++cuts)
    if (heads_per_key % cuts == 0 && key_heads * cuts >= wanted_groups) return heads_per_key / cuts;
  return 1;
}

}  // namespace

void HeadGroups::deal(const ggml_tensor* node, const Pool& pool) {
  const int64_t all = node->src[kQuery]->ne[2], key_heads = node->src[kKey]->ne[2];
  heads = heads_per_group(key_heads, all / key_heads, kGroupsPerWorker * pool.worker_count());
  int64_t total = 0, before = 0;
  for (const SliceSeat& slice : pool.layout().slices) total += slice.weight;
  borders.assign(1, 0);
  for (const SliceSeat& slice : pool.layout().slices) {
    before += slice.weight;
    borders.push_back(all / heads * before / total);
  }
}

}  // namespace stratad
