#include "backend/own_backend.hpp"

#include <exception>
#include <memory>

#include "backend/device_state.hpp"
#include "backend/graph_order.hpp"
#include "backend/own_graph.hpp"
#include "ggml-backend-impl.h"

namespace stratad {
namespace {

struct BackendFree {
  void operator()(ggml_backend_t backend) const noexcept { ggml_backend_free(backend); }
};

// A copy of the original's head, with its context: what casts the backend to a CPU backend finds one.
struct OwnBackend : ggml_backend {
  std::unique_ptr<ggml_backend, BackendFree> original;
  BackendSettings settings;
};

OwnBackend* own(ggml_backend_t backend) {
  return static_cast<OwnBackend*>(backend);
}

const char* backend_name(ggml_backend_t) {
  return "STRATAD";
}

void backend_free(ggml_backend_t backend) {
  delete own(backend);
}

ggml_status backend_compute(ggml_backend_t backend, ggml_cgraph* graph) {
  DeviceState& device = DeviceState::instance();
  try {
    const std::lock_guard guard(device.mutex);
    ++device.counters.graphs;
    OwnGraph computation(device, own(backend)->settings, own(backend)->original.get(), graph);
    if (device.pool && !computation.is_for_ggml()) return computation.compute();
    ++device.counters.whole_graphs;
  } catch (const std::exception&) {
    return GGML_STATUS_ALLOC_FAILED;  // nothing else throws in here
  }
  return ggml_backend_graph_compute(own(backend)->original.get(), graph);
}

void backend_optimise(ggml_backend_t, ggml_cgraph* graph, ggml_backend_graph_optimize_params*) {
  gather_products(graph);
}

}  // namespace

ggml_backend_t make_own_backend(const BackendSettings& settings, ggml_backend_dev_t device) {
  auto backend = std::make_unique<OwnBackend>();
  backend->original.reset(ggml_backend_cpu_init());
  backend->settings = settings;
  if (settings.threadpool != nullptr)
    ggml_backend_cpu_set_threadpool(backend->original.get(), settings.threadpool);
  static_cast<ggml_backend&>(*backend) = *backend->original;
  backend->device = device;
  backend->iface.get_name = backend_name;
  backend->iface.free = backend_free;
  backend->iface.graph_compute = backend_compute;
  backend->iface.graph_optimize = backend_optimise;
  return backend.release();
}

}  // namespace stratad
