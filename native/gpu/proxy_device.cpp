#include "gpu/proxy_device.hpp"

#include "backend/arena_buffer.hpp"
#include "backend/device_state.hpp"
#include "gpu/proxy_backend.hpp"

namespace stratad {
namespace {

ProxyDevice& proxy(ggml_backend_dev_t device) {
  return *static_cast<ProxyDevice*>(device);
}

const char* get_name(ggml_backend_dev_t device) {
  return proxy(device).name().c_str();
}
const char* get_description(ggml_backend_dev_t device) {
  return ggml_backend_dev_description(proxy(device).inner());
}
void get_memory(ggml_backend_dev_t device, size_t* free, size_t* total) {
  ggml_backend_dev_memory(proxy(device).inner(), free, total);
}
enum ggml_backend_dev_type get_type(ggml_backend_dev_t) {
  return GGML_BACKEND_DEVICE_TYPE_GPU;
}
void get_properties(ggml_backend_dev_t device, ggml_backend_dev_props* properties) {
  ggml_backend_dev_get_props(proxy(device).inner(), properties);
  properties->name = get_name(device);
  properties->type = get_type(device);
  // Our backend waits for its inner one within a graph, so it is no stream that others could wait for.
  properties->caps.async = properties->caps.events = false;
  properties->caps.buffer_from_host_ptr = false;
}
ggml_backend_t init_backend(ggml_backend_dev_t device, const char*) {
  try {
    return make_proxy_backend(proxy(device), current_backend_settings());
  } catch (const std::exception&) {
    return nullptr;  // llama.cpp reports it
  }
}
ggml_backend_buffer_type_t get_buffer_type(ggml_backend_dev_t device) {
  return ggml_backend_dev_buffer_type(proxy(device).inner());
}
ggml_backend_buffer_type_t get_host_buffer_type(ggml_backend_dev_t device) {
  return ggml_backend_dev_host_buffer_type(proxy(device).inner());
}

bool reads_arena(const ggml_tensor* operation) {
  for (const ggml_tensor* source : operation->src)
    if (source != nullptr && is_in_arena(source->view_src != nullptr ? source->view_src : source))
      return true;
  return false;
}

bool supports_operation(ggml_backend_dev_t device, const ggml_tensor* operation) {
  if (reads_arena(operation)) return proxy(device).takes(operation);
  return ggml_backend_dev_supports_op(proxy(device).inner(), operation);
}
bool supports_buffer(ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
  return type == arena_buffer_type() || ggml_backend_dev_supports_buft(proxy(device).inner(), type);
}
bool offloads_operation(ggml_backend_dev_t device, const ggml_tensor* operation) {
  return !reads_arena(operation) && ggml_backend_dev_offload_op(proxy(device).inner(), operation);
}

const char* registry_name(ggml_backend_reg_t) {
  return "STRATAD_GPU";
}
size_t registry_count(ggml_backend_reg_t) {
  return 0;
}
ggml_backend_dev_t registry_device(ggml_backend_reg_t, size_t) {
  return nullptr;
}
void* registry_address(ggml_backend_reg_t, const char*) {
  return nullptr;
}
ggml_backend_reg_t registry() {
  static ggml_backend_reg made = {
      GGML_BACKEND_API_VERSION, {registry_name, registry_count, registry_device, registry_address}, nullptr};
  return &made;
}

double seconds(const std::atomic<uint64_t>& nanoseconds) noexcept {
  return static_cast<double>(nanoseconds.load(std::memory_order_relaxed)) * 1e-9;
}

}  // namespace

ProxyDevice::ProxyDevice(const InnerDevice& inner_device)
    : ggml_backend_device{}, inner_(inner_device), name_("STRATAD-" + inner_device.name) {
  iface.get_name = get_name;
  iface.get_description = get_description;
  iface.get_memory = get_memory;
  iface.get_type = get_type;
  iface.get_props = get_properties;
  iface.init_backend = init_backend;
  iface.get_buffer_type = get_buffer_type;
  iface.get_host_buffer_type = get_host_buffer_type;
  iface.supports_op = supports_operation;
  iface.supports_buft = supports_buffer;
  iface.offload_op = offloads_operation;
  reg = registry();
}

void ProxyDevice::assign(std::vector<ExpertMatrices> layers) {
  layers_ = std::move(layers);
  weights_.clear();
  for (const ExpertMatrices& layer : layers_) weights_.insert(layer.weights.begin(), layer.weights.end());
}

bool ProxyDevice::takes(const ggml_tensor* operation) const noexcept {
  return operation->op == GGML_OP_MUL_MAT_ID && weights_.contains(operation->src[0]) &&
         DeviceState::instance().has_pool.load(std::memory_order_relaxed) &&
         operation->src[1]->type == GGML_TYPE_F32 && operation->src[1]->nb[0] == sizeof(float) &&
         has_row_product(operation->src[0]);
}

bool ProxyDevice::inner_takes(const ggml_tensor* operation) const {
  ggml_tensor weight = *operation->src[0];
  weight.buffer = nullptr;
  ggml_tensor asked = *operation;
  asked.src[0] = &weight;
  return ggml_backend_dev_supports_op(inner_.device, &asked);
}

bool ProxyDevice::open_staging() {
  staging_.reset();  // first: the device may have no room for both
  staging_ = StagedWeights::create(inner_.device, layers_, uploader_);
  return staging_ != nullptr;
}

bool ProxyDevice::open_cache(const CacheSettings& settings) {
  auto cache = ExpertCache::create(inner_.device, layers_, settings, uploader_);
  const std::lock_guard guard(cache_mutex_);
  cache_ = std::move(cache);
  return cache_ != nullptr;
}

void ProxyDevice::close_cache() {
  const std::lock_guard guard(cache_mutex_);
  cache_.reset();
}

std::optional<std::string> ProxyDevice::failure() const {
  const std::lock_guard guard(failure_mutex_);
  return failure_.empty() ? std::nullopt : std::optional(failure_);
}

void ProxyDevice::fail(const std::string& what) noexcept {
  const std::lock_guard guard(failure_mutex_);
  if (failure_.empty()) failure_ = name_ + ": " + what;
  has_failed_.store(true, std::memory_order_release);
}

GpuCounters ProxyDevice::counters() const {
  const auto count = [](const std::atomic<uint64_t>& value) { return value.load(std::memory_order_relaxed); };
  GpuCounters counters{.graphs = count(totals_.graphs),
                       .stretches = count(totals_.stretches),
                       .pool_chains = count(totals_.pool_chains),
                       .staged_products = count(totals_.staged_products),
                       .gpu_wait_seconds = seconds(totals_.gpu_wait_nanoseconds),
                       .pool_seconds = seconds(totals_.pool_nanoseconds),
                       .copy_seconds = seconds(totals_.copy_nanoseconds),
                       .upload_seconds = uploader_.seconds()};
  {
    const std::lock_guard guard(cache_mutex_);
    if (cache_) counters.cache = cache_->counters();
  }
  counters.staged_bytes = count(totals_.staged_bytes);
  return counters;
}

}  // namespace stratad
