#include "gpu/proxy_backend.hpp"

#include <exception>
#include <memory>
#include <stdexcept>

#include "backend/device_state.hpp"
#include "gpu/device_memory.hpp"
#include "gpu/proxy_graph.hpp"

namespace stratad {
namespace {

struct ProxyBackend : ggml_backend {
  ProxyBackend(ProxyDevice& proxy_device, const BackendSettings& wanted, ggml_backend_t inner_backend)
      : ggml_backend{}, proxy(proxy_device), settings(wanted), inner(inner_backend), memory(proxy.inner()) {}

  ProxyDevice& proxy;
  BackendSettings settings;
  InnerBackend inner;
  ProxyMemory memory;
};

ProxyBackend& own(ggml_backend_t backend) {
  return *static_cast<ProxyBackend*>(backend);
}

// Drivers report a lost device by an exception where they can; it must not fly through ggml's C, and nothing
// that the device holds is worth anything afterwards.
template <class Action>
void guarded(ggml_backend_t backend, const char* doing, Action action) noexcept {
  ProxyDevice& proxy = own(backend).proxy;
  if (proxy.has_failed()) return;
  try {
    action(own(backend).inner.get());
  } catch (const std::exception& error) {
    proxy.fail(std::string(doing) + ": " + error.what());
  }
}

const char* get_name(ggml_backend_t backend) {
  return own(backend).proxy.name().c_str();
}

void free_backend(ggml_backend_t backend) {
  ProxyDevice& proxy = own(backend).proxy;
  {
    const std::lock_guard guard(DeviceState::instance().mutex);
    guarded(backend, "waiting for the GPU", [](ggml_backend_t inner) { ggml_backend_synchronize(inner); });
    if (proxy.last_backend == own(backend).inner.get()) proxy.last_backend = nullptr;
  }
  delete &own(backend);
}

void set_async(ggml_backend_t backend, ggml_tensor* tensor, const void* data, size_t offset, size_t size) {
  guarded(backend, "copying to the GPU",
          [&](ggml_backend_t inner) { ggml_backend_tensor_set_async(inner, tensor, data, offset, size); });
}
void get_async(ggml_backend_t backend, const ggml_tensor* tensor, void* data, size_t offset, size_t size) {
  guarded(backend, "copying from the GPU",
          [&](ggml_backend_t inner) { ggml_backend_tensor_get_async(inner, tensor, data, offset, size); });
}
void synchronize(ggml_backend_t backend) {
  guarded(backend, "waiting for the GPU", [](ggml_backend_t inner) { ggml_backend_synchronize(inner); });
}

ggml_status compute(ggml_backend_t backend, ggml_cgraph* graph) {
  ProxyBackend& self = own(backend);
  if (self.proxy.has_failed()) return GGML_STATUS_FAILED;
  DeviceState& device = DeviceState::instance();
  const std::lock_guard guard(device.mutex);
  try {
    // Slots and areas are shared: another context's work with them must be over.
    ggml_backend_t inner = self.inner.get();
    if (self.proxy.last_backend != nullptr && self.proxy.last_backend != inner)
      ggml_backend_synchronize(self.proxy.last_backend);
    self.proxy.last_backend = inner;
    ProxyGraph computation(device, self.proxy, self.settings, inner, self.memory, graph);
    return computation.compute();
  } catch (const std::exception& error) {
    self.proxy.fail(error.what());
    return GGML_STATUS_FAILED;
  }
}

ggml_guid_t guid() {
  static ggml_guid value = {0x73, 0x74, 0x72, 0x61, 0x74, 0x61, 0x64, 0x2d,
                            0x67, 0x70, 0x75, 0x2d, 0x70, 0x78, 0x79, 0x31};
  return &value;
}

}  // namespace

ggml_backend_t make_proxy_backend(ProxyDevice& device, const BackendSettings& settings) {
  ggml_backend_t inner = ggml_backend_dev_init(device.inner(), nullptr);
  if (inner == nullptr) throw std::runtime_error(device.name() + " gives no backend");
  auto backend = std::make_unique<ProxyBackend>(device, settings, inner);
  backend->guid = guid();
  backend->iface.get_name = get_name;
  backend->iface.free = free_backend;
  backend->iface.set_tensor_async = set_async;
  backend->iface.get_tensor_async = get_async;
  backend->iface.synchronize = synchronize;
  backend->iface.graph_compute = compute;
  backend->device = &device;
  return backend.release();
}

}  // namespace stratad
