// Products of dense weights with the same activations (Q, K and V; or a single one) as one job of the pool.
//
// Rows are cut by slice exactly as the arena placed them, so a worker reads weights of its own node only. A
// row's sum is computed by one worker in one order: any number of slices and workers gives the same bits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "backend/row_tasks.hpp"
#include "backend/scratch.hpp"
#include "backend/weight_product.hpp"
#include "pool/pool.hpp"

namespace stratad {

// Whether a MUL_MAT node can be multiplied by rows: float activations and a weight with a row product.
bool is_row_product(const ggml_tensor* node) noexcept;

class DenseJob final : public Job {
 public:
  // nodes: MUL_MAT nodes for which is_row_product() holds, with one src[1].
  void prepare(std::span<ggml_tensor* const> nodes, const Pool& pool, const ProductSettings& settings);

  int phase_count() const noexcept override { return kPhases - first_phase_; }
  uint32_t task_count(int phase, int slice) const noexcept override;
  bool joins_slices(int) const noexcept override { return true; }
  void run(int phase, int slice, uint32_t task, int worker) noexcept override;
  // Weight bytes that the slice reads for this job.
  uint64_t weight_bytes(int slice) const noexcept;

 private:
  enum Phase { kQuantise, kMultiply, kPhases };
  // One product. Its activations are planes of `tokens` rows; plane p is multiplied by matrix p / `repeats`.
  struct Part {
    ggml_tensor* node = nullptr;
    WeightProduct product;
    char* quantised = nullptr;
    bool quantises = false;       // false: another part with the same form does
    std::vector<RowTasks> tasks;  // by slice
  };

  void describe(Part& part, ggml_tensor* node, const Pool& pool, const ProductSettings& settings) const;
  void share_activations();
  std::span<Part> parts() noexcept { return std::span(memory_of_parts_).first(part_count_); }
  std::span<const Part> parts() const noexcept { return std::span(memory_of_parts_).first(part_count_); }
  void quantise(int64_t row) noexcept;
  void multiply(const Part& part, int slice, uint32_t task) noexcept;
  RowRun run_of(const Part& part, int slice, uint32_t task) const noexcept;
  uint32_t tasks_in(const Part& part, int slice) const noexcept {
    return part.tasks[slice].count() * static_cast<uint32_t>(planes_);
  }

  std::vector<Part> memory_of_parts_;  // kept from call to call, so that decoding allocates nothing
  size_t part_count_ = 0;
  const ggml_tensor* input_ = nullptr;  // (columns, tokens, planes, further planes), float
  int64_t tokens_ = 1, planes_ = 1;
  int slice_count_ = 1;
  int first_phase_ = kMultiply;
  std::vector<uint32_t> workers_;  // by slice
  Scratch<char> memory_;
};

}  // namespace stratad
