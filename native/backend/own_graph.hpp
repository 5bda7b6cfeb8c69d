// One computation of a graph in own mode: which operations the pool takes, and what becomes of the others.
#pragma once

#include <vector>

#include "backend/device_state.hpp"

namespace stratad {

class OwnGraph {
 public:
  // The device's mutex must be held, and a pool attached. `whole`: ggml's CPU backend with all its threads.
  OwnGraph(DeviceState& device, const BackendSettings& settings, ggml_backend_t whole, ggml_cgraph* graph)
      : device_(device), settings_(settings), whole_(whole), graph_(graph) {}

  // Whether the pool has no part in this graph: more tokens than it takes, or nothing that it could take.
  bool is_for_ggml() const noexcept;
  ggml_status compute();

 private:
  enum class Kind { kSmall, kExperts, kDense, kLaneProduct, kAttention };

  int64_t batch_tokens() const noexcept;
  Kind kind_of(const ggml_tensor* node) const noexcept;
  Kind kind_of_product(const ggml_tensor* node) const noexcept;
  int run(Kind kind, int index);
  int run_dense(int first);
  void attend(const ggml_tensor* node);
  ggml_status compute_stretch(int begin, int end);

  DeviceState& device_;
  const BackendSettings& settings_;
  ggml_backend_t whole_;
  ggml_cgraph* graph_;
  ggml_status status_ = GGML_STATUS_SUCCESS;
};

}  // namespace stratad
