// The two jobs the pool runs for a layer's experts: the whole chain, or one product by itself.
//
// Rows of every matrix are cut by slice (arena/row_cut.hpp), so a worker reads weights of its own node only.
// A row's sum is computed by one worker in one order: any number of slices and workers gives the same bits.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "arena/row_cut.hpp"
#include "backend/expert_chain.hpp"
#include "backend/routing.hpp"
#include "backend/row_tasks.hpp"
#include "backend/scratch.hpp"
#include "pool/pool.hpp"

namespace stratad {

// gate, up, activation, down, router weights, sum. Phases: quantise the input (several tokens only), gate and
// up with the activation, quantise the hidden rows (each slice for itself, so that no slice waits twice for
// another), down with the weighted sum.
class ChainJob final : public Job {
 public:
  // Takes over what it needs of ids and router weights before anything is written: the graph allocator may
  // give the result the memory of either. Choices that are computed elsewhere (kElsewhere) are left out of
  // the sums; a token without any other gets zeros.
  void prepare(const ExpertChain& chain, const Pool& pool);

  int phase_count() const noexcept override { return kPhases - first_phase_; }
  uint32_t task_count(int phase, int slice) const noexcept override;
  bool joins_slices(int phase) const noexcept override;
  void run(int phase, int slice, uint32_t task, int worker) noexcept override;
  // Weight bytes that the slice reads for this job.
  uint64_t weight_bytes(int slice) const noexcept;

 private:
  enum Phase { kQuantiseInput, kGateUp, kQuantiseHidden, kDown, kPhases };
  struct SlicePlan {
    RowTasks hidden, embedding;
    uint32_t workers = 1;
    char* quantised_hidden = nullptr;          // (slot) rows of down.activation_row_bytes
    std::atomic<int>* experts_left = nullptr;  // by run of embedding rows: experts not yet multiplied
  };

  void quantise_input(int token) noexcept;
  void gate_up(const SlicePlan& plan, uint32_t task) noexcept;
  RowRun run_of(const RowTasks& tasks, uint32_t task) const noexcept;
  std::span<const int> slots_of(const RowTasks& tasks, uint32_t task) const noexcept;
  uint32_t following(const SlicePlan& plan, const RowTasks& tasks, uint32_t task) const noexcept;
  void activate(int64_t count, float* gate, const float* up) const noexcept;
  void down(const SlicePlan& plan, uint32_t task) noexcept;
  void sum(RowRange rows) noexcept;
  void add_weighted(int slot, RowRange rows, bool is_first, float* output) const noexcept;

  ExpertChain chain_;
  Routing routing_;
  int first_phase_ = 0;
  int slice_count_ = 1;
  std::vector<SlicePlan> plans_;
  std::vector<float> weights_;    // (slot)
  std::vector<int> summed_;       // the slots that are summed, by token
  std::vector<int> summed_ends_;  // (token): where its own end in summed_
  char* quantised_input_ = nullptr;
  float* hidden_ = nullptr;   // (slot, hidden): first gate's product, then the activation
  float* up_ = nullptr;       // (slot, hidden)
  float* partial_ = nullptr;  // (slot, embedding): one expert's product each, before weighting
  Scratch<char> input_memory_, quantised_memory_;
  Scratch<float> hidden_memory_, up_memory_, partial_memory_;
  Scratch<std::atomic<int>> left_memory_;
};

// One MUL_MAT_ID node.
class ProductJob final : public Job {
 public:
  void prepare(ggml_tensor* node, const Pool& pool, const ProductSettings& settings);

  int phase_count() const noexcept override { return 2; }
  uint32_t task_count(int phase, int slice) const noexcept override;
  bool joins_slices(int) const noexcept override { return true; }
  void run(int phase, int slice, uint32_t task, int worker) noexcept override;
  uint64_t weight_bytes(int slice) const noexcept;

 private:
  void quantise(uint32_t row) noexcept;
  RowRun run_of(const RowTasks& plan, uint32_t task) const noexcept;

  ggml_tensor* node_ = nullptr;
  WeightProduct product_;
  Routing routing_;
  int slice_count_ = 1;
  int parts_ = 1;
  std::vector<RowTasks> plans_;
  std::vector<uint32_t> workers_;  // by slice
  char* quantised_ = nullptr;
  Scratch<char> memory_;
};

}  // namespace stratad
