// Hot experts in VRAM: for every layer the same number of slots, each with the gate, up and down of one
// expert.
//
// The decode thread asks where experts lie and says which were used; between steps a few are exchanged. A
// slot that is to be given away is out of use at once, but kernels of the current step may still read it: its
// copy is handed to the uploader only after the device has been waited for in the next step (release_swaps),
// and is in use again when the copy is complete (begin_step). So nothing ever waits for a swap.
//
// Everything but counters() belongs to the thread that holds the pool's device (DeviceState::mutex).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "gpu/device_memory.hpp"
#include "gpu/slot_table.hpp"
#include "gpu/uploader.hpp"

namespace stratad {

// A layer's expert weights in the arena: gate, up and down, or gate and up merged and down.
struct ExpertMatrices {
  int layer = 0;
  std::vector<const ggml_tensor*> weights;

  int64_t expert_count() const noexcept { return weights.front()->ne[2]; }
  uint64_t expert_bytes() const noexcept {
    uint64_t bytes = 0;
    for (const ggml_tensor* weight : weights) bytes += weight->nb[2];
    return bytes;
  }
};

struct CacheSettings {
  uint64_t budget_bytes = 0;  // of VRAM; what does not fit is asked for again, smaller
  bool is_frozen = false;     // filled at the start and never changed
  uint64_t swap_bytes_per_step = uint64_t{32} << 20;  // at least one expert
};

struct CacheCounters {
  uint64_t hits = 0, misses = 0;       // choices of the router computed in VRAM, or by the pool
  uint64_t hit_bytes = 0;              // of weights that the pool did not have to read
  uint64_t swaps = 0, swap_bytes = 0;  // after the start
  uint64_t slots = 0, resident = 0, device_bytes = 0;
};

// Scores by layer and expert; see SlotTable::profile.
using ExpertProfile = std::map<int, std::vector<float>>;

struct CachedLayer {
  CachedLayer(const ExpertMatrices& experts, int slot_count)
      : matrices(experts), table(static_cast<int>(experts.expert_count()), slot_count) {}

  // Of no other layer of any cache, before or after: what is kept for a layer is kept by it.
  const uint64_t serial = next_serial();
  ExpertMatrices matrices;
  SlotTable table;
  TensorContext context;
  DeviceBuffer buffer;
  std::vector<ggml_tensor*> slots;  // by matrix: (columns, rows, slot)
  std::vector<ggml_tensor*> bytes;  // by matrix: the same memory, for the uploader

 private:
  static uint64_t next_serial() noexcept;
};

class ExpertCache {
 public:
  // As many slots as the budget holds, on every layer alike, one more on the first ones where it does not
  // come out even. Half the budget when the device refuses that much, and so on; null when there is no room
  // for one expert.
  static std::unique_ptr<ExpertCache> create(ggml_backend_dev_t device,
                                             const std::vector<ExpertMatrices>& layers,
                                             const CacheSettings& settings, Uploader& uploader);
  ~ExpertCache();

  // Copies what an earlier run used most, before the first step. Without a profile: everything when all fits
  // or the cache is frozen, else nothing, and slots are filled as experts are used. `progress` is given the
  // fraction done and says false to leave off.
  void fill(const ExpertProfile& profile, const std::function<bool(double)>& progress);
  ExpertProfile profile() const;

  // The layer that this down matrix belongs to; null when it is not cached.
  CachedLayer* find(const ggml_tensor* down) noexcept;
  void note_use(CachedLayer& layer, int32_t expert, bool is_hit) noexcept;

  // Around each step, in this order.
  void begin_step() noexcept;
  void release_swaps();  // the device has done all of the steps before
  void plan_swaps();

  CacheCounters counters() const noexcept;
  // The budget that it was made by: less than was given when the device refused that much.
  uint64_t budget_bytes() const noexcept { return settings_.budget_bytes; }

 private:
  struct PendingSwap {
    CachedLayer* layer = nullptr;
    Swap swap;
    Upload upload;
    bool is_released = false;
  };

  ExpertCache(const CacheSettings& settings, Uploader& uploader) : settings_(settings), uploader_(uploader) {}
  bool allocate(ggml_backend_dev_t device, const std::vector<ExpertMatrices>& layers);
  bool allocate_layer(ggml_backend_dev_t device, CachedLayer& layer);
  void start(CachedLayer& layer, const Swap& swap);

  CacheSettings settings_;
  Uploader& uploader_;
  std::vector<std::unique_ptr<CachedLayer>> layers_;
  std::map<const ggml_tensor*, CachedLayer*> by_down_;
  std::list<PendingSwap> pending_;
  bool is_filling_ = false;
  size_t next_layer_ = 0;  // where the search for a swap goes on
  std::atomic<uint64_t> hits_{0}, misses_{0}, hit_bytes_{0}, swaps_{0}, swap_bytes_{0}, resident_{0};
  uint64_t slot_count_ = 0, device_bytes_ = 0;
};

}  // namespace stratad
