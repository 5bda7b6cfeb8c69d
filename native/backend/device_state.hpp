// Everything the device keeps between calls, shared by the backends of all contexts.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/attention_job.hpp"
#include "backend/dense_job.hpp"
#include "backend/device.hpp"
#include "backend/expert_jobs.hpp"
#include "backend/lane.hpp"
#include "backend/lane_product_job.hpp"
#include "backend/prompt_attention_job.hpp"

namespace stratad {

// As many as Linux has NUMA nodes at most.
inline constexpr int kMostSlices = 1024;
using SliceTotals = std::array<std::atomic<uint64_t>, kMostSlices>;

// What DeviceCounters is a copy of. Who computes counts, and holds the device's mutex for a whole graph; who
// reads holds nothing, so a scrape neither waits for a step nor delays one. Nothing is ordered by the counts.
struct DeviceTotals {
  std::atomic<uint64_t> fused_chains{0}, fallback_operations{0};
  std::atomic<uint64_t> graphs{0}, dense_jobs{0}, lane_products{0}, attentions{0}, stretches{0},
      whole_graphs{0};
  SliceTotals expert_bytes{}, dense_bytes{};

  DeviceCounters copy(int slice_count) const;
};

struct DeviceState {
  // One computation at a time: contexts share pool, lanes and jobs. Guards all below but the atomics, which
  // ggml also asks for while it builds a graph.
  std::mutex mutex;
  std::shared_ptr<Pool> pool;
  std::atomic<bool> has_pool{false};
  std::atomic<int> slice_count{0};  // of the pool attached last
  std::atomic<std::optional<int>> max_pool_tokens;
  // Those of `products`, by weight type.
  std::array<std::atomic<std::optional<int>>, GGML_TYPE_COUNT> expert_pool_tokens, dense_pool_tokens;
  std::atomic<bool> fuse_chains{DeviceOptions{}.fuse_chains};
  std::atomic<std::optional<InstructionSet>> kernels;  // those of `products`
  ProductSettings products;
  size_t smallest_product_bytes = DeviceOptions{}.smallest_product_bytes;
  DeviceTotals counters;
  std::vector<std::unique_ptr<Lane>> lanes;  // one for each worker; the first is the calling thread's
  ChainJob chain_job;
  ProductJob product_job;
  DenseJob dense_job;
  std::vector<ggml_tensor*> dense_nodes;  // those of one job, kept so that decoding allocates nothing
  LaneProductJob lane_product_job;
  AttentionJob attention_job;
  PromptAttentionJob prompt_attention_job;

  static DeviceState& instance();

  // Whether a batch of so many tokens is the pool's, as far as this product (MUL_MAT or MUL_MAT_ID) is
  // concerned.
  bool takes_batch(const ggml_tensor* product, int64_t tokens) const noexcept;
  // Whether MUL_MAT_ID is one that the pool can take: by type and number of tokens.
  bool takes_experts(const ggml_tensor* node) const noexcept;
  // Computes the chain that begins at node `first`, or else that product alone. Returns how many nodes of the
  // graph that was.
  int run_experts(ggml_cgraph* graph, int first);
  // Runs a job that reads weights, and counts their bytes.
  template <class WeightJob>
  void run(WeightJob& job, SliceTotals& bytes);
};

template <class WeightJob>
void DeviceState::run(WeightJob& job, SliceTotals& bytes) {
  for (int slice = 0; slice < pool->slice_count(); ++slice)
    bytes[slice].fetch_add(job.weight_bytes(slice), std::memory_order_relaxed);
  pool->run(job);
}

}  // namespace stratad
