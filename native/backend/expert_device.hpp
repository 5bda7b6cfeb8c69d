// The ggml device that computes expert chains out of the arena on our pool: type ACCEL, registered once with
// an unpatched ggml. Attention and everything else stay with ggml's CPU backend.
//
// One device serves every context of the process (ggml has no way to unregister one), so the pool it uses is
// attached to it and can be exchanged between computations.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ggml-backend.h"
#include "kernels/row_kernel.hpp"
#include "pool/pool.hpp"

namespace stratad {

struct DeviceOptions {
  // Batches of more tokens are declined, and ggml's CPU backend computes them on our arena in place: its
  // tiled kernel wins from about 8 rows an expert (ADR 0001).
  int max_pool_tokens = 8;
  bool fuse_chains = true;  // off: op by op, for tests
  // Row kernels for the types that have them; none: ggml's dot products, with ggml's bits.
  std::optional<InstructionSet> kernels;
};

struct DeviceCounters {
  uint64_t fused_chains = 0;
  uint64_t fallback_operations = 0;    // claimed operations that ran by themselves
  std::vector<uint64_t> expert_bytes;  // by slice: weight bytes read
};

ggml_backend_dev_t expert_device();

// Registers the device with ggml. Idempotent.
void register_expert_device();

// The pool and options used from the next computation on. Never null once a model was loaded into an arena.
void attach_pool(std::shared_ptr<Pool> pool);
void set_device_options(const DeviceOptions& options);

DeviceCounters device_counters();

}  // namespace stratad
