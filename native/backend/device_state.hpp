// Everything the device keeps between calls, shared by the backends of all contexts.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "backend/attention_job.hpp"
#include "backend/dense_job.hpp"
#include "backend/device.hpp"
#include "backend/expert_jobs.hpp"
#include "backend/lane.hpp"
#include "backend/lane_product_job.hpp"

namespace stratad {

struct DeviceState {
  // One computation at a time: contexts share pool, lanes and jobs. Guards all below but the atomics, which
  // ggml also asks for while it builds a graph.
  std::mutex mutex;
  std::shared_ptr<Pool> pool;
  std::atomic<bool> has_pool{false};
  std::atomic<std::optional<int>> max_pool_tokens;
  std::atomic<bool> fuse_chains{DeviceOptions{}.fuse_chains};
  std::atomic<std::optional<InstructionSet>> kernels;
  size_t smallest_product_bytes = DeviceOptions{}.smallest_product_bytes;
  DeviceCounters counters;
  std::vector<std::unique_ptr<Lane>> lanes;  // one for each worker; the first is the calling thread's
  ChainJob chain_job;
  ProductJob product_job;
  DenseJob dense_job;
  std::vector<ggml_tensor*> dense_nodes;  // those of one job, kept so that decoding allocates nothing
  LaneProductJob lane_product_job;
  AttentionJob attention_job;

  static DeviceState& instance();

  // Whether a batch of so many tokens is the pool's, as far as this weight is concerned.
  bool takes_batch(const ggml_tensor* weight, int64_t tokens) const noexcept;
  // Whether MUL_MAT_ID is one that the pool can take: by type and number of tokens.
  bool takes_experts(const ggml_tensor* node) const noexcept;
  // Computes the chain that begins at node `first`, or else that product alone. Returns how many nodes of the
  // graph that was.
  int run_experts(ggml_cgraph* graph, int first);
  // Runs a job that reads weights, and counts their bytes.
  template <class WeightJob>
  void run(WeightJob& job, std::vector<uint64_t>& bytes);
};

template <class WeightJob>
void DeviceState::run(WeightJob& job, std::vector<uint64_t>& bytes) {
  bytes.resize(static_cast<size_t>(pool->slice_count()));
  for (int slice = 0; slice < pool->slice_count(); ++slice) bytes[slice] += job.weight_bytes(slice);
  pool->run(job);
}

}  // namespace stratad
