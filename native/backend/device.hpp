// The ggml device of type ACCEL that brings our pool into an unpatched ggml, registered once.
//
// Each context gets a backend of one of two modes. Structural: it claims the expert chains of a graph, and
// ggml's CPU backend computes the rest. Own: the whole graph is one split of ours (own_backend.hpp).
//
// One device serves every context of the process (ggml has no way to unregister one), so the pool it uses is
// attached to it and can be exchanged between computations.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backend/batch_limits.hpp"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "pool/pool.hpp"

namespace stratad {

inline constexpr int kRowByRowTokens = 8;

struct DeviceOptions {
  // Batches of more tokens are left to ggml's CPU backend, which computes them on our arena in place. None:
  // what was measured for the weight's type (BatchLimits). Without that the pool takes any batch whose
  // weights have panels (RowKernel::multiply_panels), and of others only kRowByRowTokens, from where ggml's
  // tiled kernels win (ADR 0001).
  std::optional<int> max_pool_tokens;
  bool fuse_chains = true;  // off: op by op, for tests
  ProductSettings products;
  // Own mode: a smaller dense product is not worth waking the pool for.
  size_t smallest_product_bytes = size_t{16} << 10;
};

struct DeviceCounters {
  uint64_t fused_chains = 0;
  uint64_t fallback_operations = 0;    // of expert chains: operations that ran by themselves
  std::vector<uint64_t> expert_bytes;  // by slice: weight bytes read
  // Own mode only.
  uint64_t graphs = 0;                // that ggml's scheduler handed over; one for each pass over a model
  uint64_t dense_jobs = 0;            // products of one input, multiplied by rows
  uint64_t lane_products = 0;         // products of several tokens, in row slices of ggml's kernel
  uint64_t attentions = 0;            // cut by heads
  uint64_t stretches = 0;             // runs of small operations on the calling thread
  uint64_t whole_graphs = 0;          // handed to ggml's CPU backend with all its threads
  std::vector<uint64_t> dense_bytes;  // by slice
};

enum class DeviceMode { kStructural, kOwn };

// What a context wants of the backend that ggml makes for it.
struct BackendSettings {
  DeviceMode mode = DeviceMode::kStructural;
  ggml_threadpool_t threadpool = nullptr;  // own mode: for what is handed to ggml; outlives the backend
  ggml_abort_callback abort = nullptr;     // own mode: asked between the jobs of a graph
  void* abort_data = nullptr;
};

// While it lives, backends that ggml makes on this thread get these settings: ggml's call has no room for
// any.
class ScopedBackendSettings {
 public:
  explicit ScopedBackendSettings(const BackendSettings& settings) noexcept;
  ~ScopedBackendSettings();
  ScopedBackendSettings(const ScopedBackendSettings&) = delete;
  ScopedBackendSettings& operator=(const ScopedBackendSettings&) = delete;
};

// Those of the calling thread; the defaults where none are set.
BackendSettings current_backend_settings() noexcept;

ggml_backend_dev_t pool_device();

// Registers the device with ggml. Idempotent.
void register_pool_device();

// The pool and options used from the next computation on. Never null once a model was loaded into an arena.
void attach_pool(std::shared_ptr<Pool> pool);
void set_device_options(const DeviceOptions& options);

// From any thread at any time: it waits for no computation, and none waits for it.
DeviceCounters device_counters();

}  // namespace stratad
