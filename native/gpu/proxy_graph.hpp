// One computation of a graph by a proxy device: stretches of operations go to the inner device as they are,
// and between them the expert chains are computed where it is fastest:
//
// - few tokens: on the pool, out of the arena. The GPU's part of the work goes on meanwhile: the layer's hot
//   experts, and whatever of the graph does not need the result.
// - many tokens: on the inner device, out of areas that the used experts are copied to.
//
// Nothing here waits for the GPU but to fetch a layer's input.
#pragma once

#include <chrono>
#include <list>
#include <unordered_map>
#include <vector>

#include "backend/device_state.hpp"
#include "backend/expert_chain.hpp"
#include "gpu/host_area.hpp"
#include "gpu/hot_graph.hpp"
#include "gpu/proxy_device.hpp"

namespace stratad {

// What a proxy backend keeps from graph to graph.
struct ProxyMemory {
  explicit ProxyMemory(ggml_backend_dev_t inner)
      : input(inner),
        ids(inner),
        weights(inner),
        output(inner),
        hot_ids(inner),
        hot_weights(inner),
        hot(inner) {}

  HostArea input, ids, weights, output, hot_ids, hot_weights;
  HotGraphs hot;
  std::vector<int32_t> cold_ids, used_experts;
  std::vector<bool> is_used;
  // Biases of experts, fetched once: they are constants, in VRAM, and the pool adds them.
  struct Mirror {
    std::vector<char> bytes;
    ggml_tensor tensor;
  };
  std::unordered_map<const ggml_tensor*, Mirror> biases;
};

class ProxyGraph {
 public:
  // The pool device's mutex must be held.
  ProxyGraph(DeviceState& device, ProxyDevice& proxy, const BackendSettings& settings, ggml_backend_t inner,
             ProxyMemory& memory, ggml_cgraph* graph)
      : device_(device), proxy_(proxy), settings_(settings), inner_(inner), memory_(memory), graph_(graph) {}

  // Throws what the inner device's driver throws.
  ggml_status compute();

 private:
  bool is_experts(int index) const noexcept;
  bool is_staged(int index) const;
  int next_experts(int begin) const noexcept;
  int independent_end(int begin, const ggml_tensor* result) const noexcept;
  ggml_status submit(int begin, int end);
  void wait();
  void give_up_cache();

  // Both give the node where the next stretch begins; what lies before it is submitted.
  ggml_status run_on_pool(int index, int* end);
  ggml_status run_staged(int index, int* end);

  ggml_status run_chain(ExpertChain& chain, int begin, int* end);
  ggml_status run_product(ggml_tensor* node);
  int split_by_residence(CachedLayer* layer, const ggml_tensor& ids);
  HotGraph* prepare_hot(CachedLayer& layer, const ExpertChain& chain, const ggml_tensor& ids,
                        const ggml_tensor& weights, int width, bool has_cold);
  void run_pool_job(const ExpertChain& chain, const ggml_tensor& ids, const ggml_tensor& weights,
                    const ggml_tensor& input, ggml_tensor& output);
  const ggml_tensor* mirror(const ggml_tensor* bias);

  ggml_tensor host_copy(const ggml_tensor* tensor, HostArea& area);
  void fetch(const ggml_tensor& copy, const ggml_tensor* tensor);
  void check(const ggml_tensor& ids, int64_t expert_count) const;
  void read_used_experts(const ggml_tensor* ids, int64_t expert_count);

  DeviceState& device_;
  ProxyDevice& proxy_;
  const BackendSettings& settings_;
  ggml_backend_t inner_;
  ProxyMemory& memory_;
  ggml_cgraph* graph_;
  const ggml_tensor* read_ids_ = nullptr;  // whose experts memory_.used_experts holds
  bool has_waited_ = false;
};

}  // namespace stratad
