// A MUL_MAT of several tokens in row slices, each computed by ggml's own kernel on the worker's lane: the
// bits of ggml's CPU backend, which has other kernels for several tokens than for one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "arena/row_cut.hpp"
#include "backend/lane.hpp"
#include "backend/scratch.hpp"
#include "backend/weight_product.hpp"
#include "pool/pool.hpp"

namespace stratad {

// Whether ggml picks the same kernel for a slice of the weight's rows as for all of them.
bool is_lane_product(const ggml_tensor* node) noexcept;

class LaneProductJob final : public Job {
 public:
  // lanes: one for each worker of the pool.
  void prepare(const ggml_tensor* node, const Pool& pool, std::span<const std::unique_ptr<Lane>> lanes);

  int phase_count() const noexcept override { return kPhases - first_phase_; }
  uint32_t task_count(int phase, int slice) const noexcept override;
  bool joins_slices(int) const noexcept override { return true; }
  void run(int phase, int slice, uint32_t task, int worker) noexcept override;
  ggml_status status() const noexcept { return status_.load(std::memory_order_relaxed); }
  uint64_t weight_bytes(int slice) const noexcept;

 private:
  enum Phase { kQuantise, kMultiply, kPhases };

  void quantise(int64_t row) noexcept;
  void multiply(Lane& lane, RowRange rows) noexcept;
  RowRange piece(int slice, uint32_t task) const noexcept;

  const ggml_tensor* node_ = nullptr;
  std::span<const std::unique_ptr<Lane>> lanes_;
  WeightProduct product_;
  ggml_tensor input_{};  // the activations as the lanes read them: quantised once, or as they are
  int first_phase_ = kMultiply;
  int slice_count_ = 1;
  std::vector<RowRange> rows_;     // by slice
  std::vector<uint32_t> workers_;  // by slice
  std::atomic<ggml_status> status_{GGML_STATUS_SUCCESS};
  Scratch<char> memory_;
};

}  // namespace stratad
