// The expert chain of one layer over its slots in VRAM, as a small graph for the inner device: gate, up,
// activation, down, router weights, sum over the choices that are hot, and the sum of the others added on.
//
// The hot choices of a token are `width` at most; a token that has fewer takes the first slot with weight 0
// for the rest.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "backend/expert_chain.hpp"
#include "gpu/device_memory.hpp"
#include "gpu/expert_cache.hpp"

namespace stratad {

// What a hot graph is built for.
struct HotShape {
  int width = 0, tokens = 0;
  bool has_cold = false;  // the pool's sum is added at the end
  auto operator<=>(const HotShape&) const = default;
};

// Device memory for the results inside hot graphs, one for each backend: everything in it is in order of the
// backend's stream.
class HotMemory {
 public:
  explicit HotMemory(ggml_backend_dev_t device) : device_(device) {}
  // At least `bytes`; false when the device has no more. When it grows `generation` does, and graphs that
  // were built in the former memory are void: nothing may be running in it then.
  bool reserve(size_t bytes);
  ggml_backend_buffer_t buffer() const noexcept { return buffer_.get(); }
  uint64_t generation() const noexcept { return generation_; }
  ggml_backend_dev_t device() const noexcept { return device_; }

 private:
  ggml_backend_dev_t device_;
  DeviceBuffer buffer_;
  size_t size_ = 0, refused_ = SIZE_MAX;
  uint64_t generation_ = 0;
};

class HotGraph {
 public:
  // `chain`: as matched in the device's graph, with the tensors there.
  HotGraph(const CachedLayer& layer, const ExpertChain& chain, const HotShape& shape);

  size_t memory_bytes(ggml_backend_buffer_type_t type) const;
  bool place(HotMemory& memory);
  // Puts the graph between this input and this output: where they lie changes from graph to graph.
  void connect(const ExpertChain& chain) noexcept;

  ggml_tensor* slot_ids() const noexcept { return slot_ids_; }      // (width, tokens)
  ggml_tensor* expert_ids() const noexcept { return expert_ids_; }  // the same choices; null without biases
  ggml_tensor* weights() const noexcept { return weights_; }        // (1, width, tokens)
  ggml_tensor* cold() const noexcept { return cold_; }              // (embedding, tokens); null without cold
  ggml_cgraph* graph() const noexcept { return graph_; }
  // The last node writes the output; with cold choices it reads their sum and nothing else does.
  int node_count() const noexcept;

 private:
  ggml_tensor* product(ggml_tensor* slots, ggml_tensor* input, const ggml_tensor* bias);
  ggml_tensor* hidden(const CachedLayer& layer, const ExpertChain& chain);
  ggml_tensor* weighted_sum(ggml_tensor* products);

  HotShape shape_;
  TensorContext context_;
  ggml_tensor *input_ = nullptr, *slot_ids_ = nullptr, *expert_ids_ = nullptr, *weights_ = nullptr,
              *cold_ = nullptr, *output_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
};

// The hot graphs of one backend, kept so that a device that records graphs sees the same ones again.
class HotGraphs {
 public:
  explicit HotGraphs(ggml_backend_dev_t device) : memory_(device) {}
  // Null when the device has no memory for it. `wait` is called before memory that may be in use goes.
  template <class Wait>
  HotGraph* get(const CachedLayer& layer, const ExpertChain& chain, const HotShape& shape, Wait wait);
  // Nothing may be running in them.
  void clear() noexcept { graphs_.clear(); }

 private:
  struct Entry {
    std::unique_ptr<HotGraph> graph;
    uint64_t generation = 0;
  };
  HotMemory memory_;
  std::map<std::pair<uint64_t, HotShape>, Entry> graphs_;  // by the layer's serial number
};

template <class Wait>
HotGraph* HotGraphs::get(const CachedLayer& layer, const ExpertChain& chain, const HotShape& shape,
                         Wait wait) {
  constexpr size_t kMostGraphs = 4096;
  if (graphs_.size() > kMostGraphs) {
    wait();
    graphs_.clear();
  }
  Entry& entry = graphs_[{layer.serial, shape}];
  if (entry.graph && entry.generation == memory_.generation()) return entry.graph.get();
  wait();
  entry.graph = std::make_unique<HotGraph>(layer, chain, shape);
  if (!entry.graph->place(memory_)) {
    entry.graph.reset();
    return nullptr;
  }
  entry.generation = memory_.generation();
  return entry.graph.get();
}

}  // namespace stratad
