#include "backend/device.hpp"

#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>

#include "backend/arena_buffer.hpp"
#include "backend/device_state.hpp"
#include "backend/own_backend.hpp"
#include "backend/structural_backend.hpp"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"

namespace stratad {
namespace {

thread_local const BackendSettings* current_settings = nullptr;

// ---------------------------------------------------------------- ggml's interface

ggml_backend_t device_init(ggml_backend_dev_t device, const char*) {
  const BackendSettings settings = current_backend_settings();
  try {
    // The CPU's device and not ours: what llama.cpp asks about a device (does attention lie where its layer
    // does, may operations be fused) then has the answers it would have without us.
    if (settings.mode == DeviceMode::kOwn)
      return make_own_backend(settings, ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
    return make_structural_backend(device);
  } catch (const std::exception&) {
    return nullptr;  // ggml's contract for "no memory": llama.cpp reports it
  }
}

const char* device_name(ggml_backend_dev_t) {
  return "STRATAD";
}
const char* device_description(ggml_backend_dev_t) {
  return "stratad worker pool";
}
void device_memory(ggml_backend_dev_t, size_t* free, size_t* total) {
  *free = *total = 0;
}
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) {
  return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}
void device_properties(ggml_backend_dev_t device, ggml_backend_dev_props* properties) {
  *properties = {};
  properties->name = device_name(device);
  properties->description = device_description(device);
  properties->type = device_type(device);
}
// Activations stay in the CPU's own buffers, so nothing is copied between us and ggml's CPU backend. The
// arena is reached through tensor overrides only: were it the default, ggml would put scratch memory into it.
ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t) {
  return ggml_backend_cpu_buffer_type();
}
bool device_supports_buffer(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
  return type == arena_buffer_type() || ggml_backend_buft_is_host(type);
}
bool device_supports_operation(ggml_backend_dev_t, const ggml_tensor* operation) {
  return is_claimed_by_structure(operation);
}

const char* registry_name(ggml_backend_reg_t) {
  return "STRATAD";
}
size_t registry_device_count(ggml_backend_reg_t) {
  return 1;
}
ggml_backend_dev_t registry_device(ggml_backend_reg_t registry, size_t) {
  static ggml_backend_device device = [registry] {
    ggml_backend_device made{};
    made.iface.get_name = device_name;
    made.iface.get_description = device_description;
    made.iface.get_memory = device_memory;
    made.iface.get_type = device_type;
    made.iface.get_props = device_properties;
    made.iface.init_backend = device_init;
    made.iface.get_buffer_type = device_buffer_type;
    made.iface.supports_op = device_supports_operation;
    made.iface.supports_buft = device_supports_buffer;
    made.reg = registry;
    return made;
  }();
  return &device;
}
void* registry_proc_address(ggml_backend_reg_t, const char*) {
  return nullptr;
}

ggml_backend_reg_t registry() {
  static ggml_backend_reg made = {
      GGML_BACKEND_API_VERSION,
      {registry_name, registry_device_count, registry_device, registry_proc_address},
      nullptr};
  return &made;
}

}  // namespace

ScopedBackendSettings::ScopedBackendSettings(const BackendSettings& settings) noexcept {
  current_settings = &settings;
}

ScopedBackendSettings::~ScopedBackendSettings() {
  current_settings = nullptr;
}

BackendSettings current_backend_settings() noexcept {
  return current_settings != nullptr ? *current_settings : BackendSettings{};
}

ggml_backend_dev_t pool_device() {
  return registry_device(registry(), 0);
}

void register_pool_device() {
  static std::once_flag once;
  std::call_once(once, [] { ggml_backend_register(registry()); });
}

void attach_pool(std::shared_ptr<Pool> pool) {
  if (pool != nullptr && pool->slice_count() > kMostSlices)
    throw std::invalid_argument("the device counts for at most " + std::to_string(kMostSlices) + " slices");
  DeviceState& device = DeviceState::instance();
  const std::lock_guard guard(device.mutex);
  device.lanes.resize(pool == nullptr ? 1 : static_cast<size_t>(pool->worker_count()));
  for (auto& lane : device.lanes)
    if (!lane) lane = std::make_unique<Lane>();
  device.has_pool.store(pool != nullptr, std::memory_order_relaxed);
  if (pool != nullptr) device.slice_count.store(pool->slice_count(), std::memory_order_relaxed);
  device.pool = std::move(pool);
}

void set_device_options(const DeviceOptions& options) {
  DeviceState& device = DeviceState::instance();
  device.max_pool_tokens.store(options.max_pool_tokens, std::memory_order_relaxed);
  device.fuse_chains.store(options.fuse_chains, std::memory_order_relaxed);
  const std::lock_guard guard(device.mutex);
  device.kernels = options.products.kernels;
  for (size_t type = 0; type < GGML_TYPE_COUNT; ++type) {
    device.expert_pool_tokens[type] = options.products.limits[type].expert_pool_tokens;
    device.dense_pool_tokens[type] = options.products.limits[type].dense_pool_tokens;
  }
  device.products = options.products;
  device.smallest_product_bytes = options.smallest_product_bytes;
}

DeviceCounters device_counters() {
  const DeviceState& device = DeviceState::instance();
  return device.counters.copy(device.slice_count.load(std::memory_order_relaxed));
}

}  // namespace stratad
