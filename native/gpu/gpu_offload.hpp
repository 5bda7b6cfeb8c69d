// The GPUs that one model uses: a proxy device for each, and which layers' experts belong to which.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpu/proxy_device.hpp"

namespace stratad {

struct MemorySettings {
  uint64_t reserve_bytes = uint64_t{1} << 30;  // of each device, left free
  std::optional<uint64_t> cache_bytes;         // of each device; none: all that is free beside the reserve
  bool is_frozen = false;
};

// What became of one device's memory.
struct MemoryOutcome {
  std::string device;
  uint64_t free_bytes = 0;   // before
  bool has_staging = false;  // large batches are computed by it
  uint64_t asked_bytes = 0;  // for the cache
  uint64_t cache_bytes = 0;  // what it got: no more than all experts take
  bool was_refused = false;  // it got less because the device refused more
  int cached_slots = 0, expert_layers = 0;
};

class GpuOffload {
 public:
  // names: ggml's of the devices to use, in this order, at least one. Throws std::invalid_argument when one
  // does not exist or none is named.
  explicit GpuOffload(const std::vector<std::string>& names);

  // For llama_model_params: ends with null.
  std::vector<ggml_backend_dev_t> devices() const;
  std::vector<InnerDevice> inner_devices() const;

  using NamedTensor = std::pair<std::string, const ggml_tensor*>;
  // Gives each device the expert layers whose other weights llama.cpp has put there; the rest is the CPU's.
  void bind(const std::vector<NamedTensor>& experts, const std::vector<NamedTensor>& others);

  // Staging and caches, once contexts have taken what they need; `progress` as Progress of a load. Throws
  // std::runtime_error when a device fails.
  std::vector<MemoryOutcome> open_memory(const MemorySettings& settings, const ExpertProfile& profile,
                                         const std::function<bool(double)>& progress);
  ExpertProfile profile() const;

  void set_pool_tokens(int tokens) noexcept;
  std::optional<std::string> failure() const;
  void fail(const std::string& what) noexcept;
  std::vector<std::pair<std::string, GpuCounters>> counters() const;

 private:
  std::vector<std::unique_ptr<ProxyDevice>> proxies_;
};

}  // namespace stratad
