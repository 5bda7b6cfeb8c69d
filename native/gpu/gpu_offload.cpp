#include "gpu/gpu_offload.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>

#include "backend/device_state.hpp"

namespace stratad {
namespace {

// "blk.7.ffn_up_exps.weight" is of layer 7; anything else of none.
std::optional<int> layer_of(const std::string& name) {
  constexpr const char* kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  return std::atoi(name.c_str() + 4);
}

// Gate, up, down: the order in which a chain is computed.
int rank_of(const std::string& name) {
  if (name.find("ffn_down_exps") != std::string::npos) return 2;
  return name.find("ffn_up_exps") != std::string::npos ? 1 : 0;
}

ggml_backend_dev_t device_of(const ggml_tensor* tensor) {
  if (tensor->buffer == nullptr) return nullptr;
  return ggml_backend_buft_get_device(ggml_backend_buffer_get_type(tensor->buffer));
}

// CUDA's backend ends the process on errors of the driver. Without this, ggml would look for a debugger to
// print a trace with, while requests wait; the supervisor restarts what has ended.
void say_why_and_end(const char* message) {
  std::fprintf(stderr,
               "error: a GPU has failed\n  tried:   computing on the GPU\n  because: %s\n"
               "  remedy:  look at the driver's messages (`dmesg`); gpu.mode = \"off\" never uses it\n",
               message);
  std::_Exit(1);
}

uint64_t cache_budget(const MemorySettings& settings, uint64_t free_bytes) {
  const uint64_t available = free_bytes > settings.reserve_bytes ? free_bytes - settings.reserve_bytes : 0;
  return std::min(settings.cache_bytes.value_or(available), available);
}

}  // namespace

GpuOffload::GpuOffload(const std::vector<std::string>& names) {
  const std::vector<InnerDevice> found = stratad::inner_devices();
  std::string known;
  for (const InnerDevice& device : found) known += (known.empty() ? "" : ", ") + device.name;
  for (const std::string& name : names) {
    const auto device =
        std::find_if(found.begin(), found.end(), [&](const InnerDevice& one) { return one.name == name; });
    if (device == found.end())
      throw std::invalid_argument("there is no GPU " + name + ", only: " + (known.empty() ? "none" : known));
    proxies_.push_back(std::make_unique<ProxyDevice>(*device));
  }
  if (proxies_.empty()) throw std::invalid_argument("no GPU is named");
  ggml_set_abort_callback(say_why_and_end);
}

std::vector<ggml_backend_dev_t> GpuOffload::devices() const {
  std::vector<ggml_backend_dev_t> devices;
  for (const auto& proxy : proxies_) devices.push_back(proxy.get());
  devices.push_back(nullptr);
  return devices;
}

std::vector<InnerDevice> GpuOffload::inner_devices() const {
  std::vector<InnerDevice> devices;
  for (const auto& proxy : proxies_) devices.push_back(describe_inner_device(proxy->inner()));
  return devices;
}

void GpuOffload::bind(const std::vector<NamedTensor>& experts, const std::vector<NamedTensor>& others) {
  std::map<int, std::map<int, const ggml_tensor*>> layers;  // by layer and rank
  for (const auto& [name, tensor] : experts)
    if (const auto layer = layer_of(name)) layers[*layer][rank_of(name)] = tensor;
  std::map<int, ggml_backend_dev_t> homes;
  for (const auto& [name, tensor] : others) {
    const auto layer = layer_of(name);
    if (layer && !homes[*layer]) homes[*layer] = device_of(tensor);
  }
  for (const auto& proxy : proxies_) {
    std::vector<ExpertMatrices> assigned;
    for (const auto& [layer, matrices] : layers) {
      if (homes[layer] != proxy->inner()) continue;
      ExpertMatrices& one = assigned.emplace_back();
      one.layer = layer;
      for (const auto& [rank, tensor] : matrices) one.weights.push_back(tensor);
    }
    proxy->assign(std::move(assigned));
  }
}

std::vector<MemoryOutcome> GpuOffload::open_memory(const MemorySettings& settings,
                                                   const ExpertProfile& profile,
                                                   const std::function<bool(double)>& progress) {
  const std::lock_guard guard(DeviceState::instance().mutex);
  std::vector<MemoryOutcome> outcomes;
  for (size_t index = 0; index < proxies_.size(); ++index) {
    ProxyDevice& proxy = *proxies_[index];
    MemoryOutcome& outcome = outcomes.emplace_back();
    outcome.device = proxy.name();
    outcome.expert_layers = static_cast<int>(proxy.layers().size());
    outcome.free_bytes = describe_inner_device(proxy.inner()).free_bytes;
    if (proxy.layers().empty()) continue;
    proxy.close_cache();
    outcome.has_staging = proxy.open_staging();
    const CacheSettings cache{
        .budget_bytes = cache_budget(settings, describe_inner_device(proxy.inner()).free_bytes),
        .is_frozen = settings.is_frozen};
    outcome.asked_bytes = cache.budget_bytes;
    if (cache.budget_bytes == 0 || !proxy.open_cache(cache)) continue;
    outcome.was_refused = proxy.cache()->budget_bytes() < cache.budget_bytes;
    outcome.cache_bytes = proxy.cache()->counters().device_bytes;
    outcome.cached_slots = static_cast<int>(proxy.cache()->counters().slots);
    const double share = 1.0 / static_cast<double>(proxies_.size());
    proxy.cache()->fill(profile, [&](double done) {
      return !progress || progress((static_cast<double>(index) + done) * share);
    });
  }
  return outcomes;
}

ExpertProfile GpuOffload::profile() const {
  const std::lock_guard guard(DeviceState::instance().mutex);
  ExpertProfile profile;
  for (const auto& proxy : proxies_)
    if (proxy->cache() != nullptr) profile.merge(proxy->cache()->profile());
  return profile;
}

void GpuOffload::set_pool_tokens(int tokens) noexcept {
  for (const auto& proxy : proxies_) proxy->set_pool_tokens(tokens);
}

std::optional<std::string> GpuOffload::failure() const {
  for (const auto& proxy : proxies_)
    if (auto failure = proxy->failure()) return failure;
  return std::nullopt;
}

void GpuOffload::fail(const std::string& what) noexcept {
  for (const auto& proxy : proxies_) proxy->fail(what);
}

std::vector<std::pair<std::string, GpuCounters>> GpuOffload::counters() const {
  std::vector<std::pair<std::string, GpuCounters>> counters;
  for (const auto& proxy : proxies_) counters.emplace_back(proxy->name(), proxy->counters());
  return counters;
}

}  // namespace stratad
