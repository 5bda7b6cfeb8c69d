// Decode attention on the pool: query heads are dealt out in groups that read one key-value head, and each
// group runs as ggml's own FLASH_ATTN_EXT on the worker's lane.
//
// A head is computed by one thread in ggml's order, so the bits are those of ggml's CPU backend on one thread
// for any number of slices and workers. (ggml itself cuts long caches by thread: there the number shows.)
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "backend/head_groups.hpp"
#include "backend/lane.hpp"
#include "backend/scratch.hpp"

namespace stratad {

// Whether a FLASH_ATTN_EXT node can be cut by heads. Not with position biases by head (ALiBi), which ggml
// derives from a head's number among all.
bool is_cut_by_heads(const ggml_tensor* node) noexcept;

class AttentionJob final : public Job {
 public:
  // lanes: one for each worker of the pool.
  void prepare(const ggml_tensor* node, const Pool& pool, std::span<const std::unique_ptr<Lane>> lanes);

  int phase_count() const noexcept override { return 1; }
  uint32_t task_count(int phase, int slice) const noexcept override;
  bool joins_slices(int) const noexcept override { return true; }
  void run(int phase, int slice, uint32_t task, int worker) noexcept override;
  ggml_status status() const noexcept { return status_.load(std::memory_order_relaxed); }

 private:
  void narrow_to(Lane& lane, int64_t first_head) const noexcept;
  void copy_out(int64_t first_head, const float* values) const noexcept;

  const ggml_tensor* node_ = nullptr;
  std::span<const std::unique_ptr<Lane>> lanes_;
  HeadGroups groups_;
  bool is_direct_ = true;  // results go straight into the node's tensor
  size_t result_floats_ = 0;
  float* results_ = nullptr;  // by worker: one group's result, where it is not direct
  std::atomic<ggml_status> status_{GGML_STATUS_SUCCESS};
  Scratch<float> memory_;
};

}  // namespace stratad
