#include "backend/structural_backend.hpp"

#include <exception>

#include "backend/arena_buffer.hpp"
#include "backend/device_state.hpp"
#include "backend/expert_chain.hpp"
#include "ggml-backend-impl.h"

namespace stratad {
namespace {

bool is_pool_product(const ggml_tensor* node) {
  const DeviceState& device = DeviceState::instance();
  return node != nullptr && node->op == GGML_OP_MUL_MAT_ID && is_in_arena(node->src[0]) &&
         device.has_pool.load(std::memory_order_relaxed) && device.takes_experts(node);
}

ggml_status compute_graph(DeviceState& device, ggml_cgraph* graph) {
  const std::lock_guard guard(device.mutex);
  const int count = ggml_graph_n_nodes(graph);
  for (int index = 0; index < count; ++index) {
    ggml_tensor* node = ggml_graph_node(graph, index);
    if (is_empty_operation(node)) continue;
    if (is_pool_product(node)) {
      index += device.run_experts(graph, index) - 1;
      continue;
    }
    // A small operation of a chain that was not fused: ggml's own kernel, on the calling thread.
    ++device.counters.fallback_operations;
    if (const ggml_status status = device.lanes[0]->compute(node); status != GGML_STATUS_SUCCESS)
      return status;
  }
  return GGML_STATUS_SUCCESS;
}

ggml_status backend_compute(ggml_backend_t, ggml_cgraph* graph) {
  try {
    return compute_graph(DeviceState::instance(), graph);
  } catch (const std::exception&) {
    return GGML_STATUS_ALLOC_FAILED;  // nothing else throws in here
  }
}

const char* backend_name(ggml_backend_t) {
  return "STRATAD";
}
void backend_free(ggml_backend_t backend) {
  delete backend;
}

ggml_guid_t backend_guid() {
  static ggml_guid guid = {0x73, 0x74, 0x72, 0x61, 0x74, 0x61, 0x64, 0x2d,
                           0x65, 0x78, 0x70, 0x65, 0x72, 0x74, 0x73, 0x31};
  return &guid;
}

}  // namespace

ggml_backend_t make_structural_backend(ggml_backend_dev_t device) {
  auto* backend = new ggml_backend{};
  backend->guid = backend_guid();
  backend->iface.get_name = backend_name;
  backend->iface.free = backend_free;
  backend->iface.graph_compute = backend_compute;
  backend->device = device;
  return backend;
}

bool is_claimed_by_structure(const ggml_tensor* operation) noexcept {
  switch (operation->op) {
    case GGML_OP_NONE:
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
      return true;
    default:
      return belongs_to_chain(operation, is_pool_product);
  }
}

}  // namespace stratad
