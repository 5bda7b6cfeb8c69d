// The device that llama.cpp is given in place of a GPU: of type GPU, with the inner device's memory and
// operations, and the expert chains of its layers besides, whose weights lie in the arena. So a decode step
// is one split and activations stay in VRAM (ADR 0008).
//
// It is not registered with ggml; a model names it among its devices and must not outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ggml-backend-impl.h"
#include "gpu/expert_cache.hpp"
#include "gpu/inner_device.hpp"
#include "gpu/staged_weights.hpp"
#include "gpu/uploader.hpp"

namespace stratad {

// Batches of more tokens are computed on the GPU unless the operator or a measurement says otherwise. It is
// what llama.cpp's scheduler takes for its own offload.
inline constexpr int kDefaultPoolTokens = 32;

struct GpuCounters {
  uint64_t graphs = 0;           // that ggml's scheduler handed over; one for each pass over a model
  uint64_t stretches = 0;        // of operations handed to the inner device
  uint64_t pool_chains = 0;      // expert layers of which the pool had a part
  uint64_t staged_products = 0;  // expert products of large batches computed on the GPU
  uint64_t staged_bytes = 0;     // copied for them
  double gpu_wait_seconds = 0;   // the decode thread waited for the GPU to reach an expert layer
  double pool_seconds = 0;       // the pool computed experts
  double copy_seconds = 0;       // the decode thread handed over activations, or waited for weights
  double upload_seconds = 0;     // the uploader copied weights, beside all that
  CacheCounters cache;
};

class ProxyDevice : public ggml_backend_device {
 public:
  explicit ProxyDevice(const InnerDevice& inner);
  ProxyDevice(const ProxyDevice&) = delete;
  ProxyDevice& operator=(const ProxyDevice&) = delete;

  ggml_backend_dev_t inner() const noexcept { return inner_.device; }
  const std::string& name() const noexcept { return name_; }
  std::string description() const { return inner_.description; }

  // Which expert layers are this device's, once the model is loaded and before a context is made.
  void assign(std::vector<ExpertMatrices> layers);
  const std::vector<ExpertMatrices>& layers() const noexcept { return layers_; }
  // Whether an operation on arena weights is computed here.
  bool takes(const ggml_tensor* operation) const noexcept;
  // Whether the inner device could compute it with the weights in its own memory.
  bool inner_takes(const ggml_tensor* operation) const;

  // Memory for large batches, and for hot experts; false when there is none. Nothing may be computing.
  bool open_staging();
  bool open_cache(const CacheSettings& settings);
  void close_cache();
  ExpertCache* cache() noexcept { return cache_.get(); }
  StagedWeights* staging() noexcept { return staging_.get(); }
  Uploader& uploader() noexcept { return uploader_; }

  // Batches of more tokens are the GPU's, where there is staging.
  int pool_tokens() const noexcept { return pool_tokens_.load(std::memory_order_relaxed); }
  void set_pool_tokens(int tokens) noexcept { pool_tokens_.store(tokens, std::memory_order_relaxed); }

  // What has failed, once something has. From then on every computation is refused: nobody knows what the
  // device's memory holds.
  std::optional<std::string> failure() const;
  void fail(const std::string& what) noexcept;
  bool has_failed() const noexcept { return has_failed_.load(std::memory_order_acquire); }

  GpuCounters counters() const;
  struct Totals {
    std::atomic<uint64_t> graphs{0}, stretches{0}, pool_chains{0}, staged_products{0}, staged_bytes{0};
    std::atomic<uint64_t> gpu_wait_nanoseconds{0}, pool_nanoseconds{0}, copy_nanoseconds{0};
  };
  Totals& totals() noexcept { return totals_; }

  // The backend that computed last: another one must wait for it, as both use the same slots and areas.
  ggml_backend_t last_backend = nullptr;

 private:
  InnerDevice inner_;
  std::string name_;
  std::vector<ExpertMatrices> layers_;
  std::set<const ggml_tensor*> weights_;
  std::atomic<int> pool_tokens_{kDefaultPoolTokens};
  std::atomic<bool> has_failed_{false};
  mutable std::mutex failure_mutex_;
  std::string failure_;
  Totals totals_;
  Uploader uploader_;
  // Of the pointer to the cache, which counters() reads from any thread; changed with the pool device's mutex
  // held as well, so that whoever holds that one may read it.
  mutable std::mutex cache_mutex_;
  std::unique_ptr<StagedWeights> staging_;
  std::unique_ptr<ExpertCache> cache_;
};

}  // namespace stratad
