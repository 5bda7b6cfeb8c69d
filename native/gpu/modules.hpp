// Loadable GPU backends of ggml: loading one, and what devices it brought.
//
// A module stays loaded until the process ends: GPU runtimes do not survive being unloaded.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "ggml-backend.h"

namespace stratad {

struct GpuModule {
  std::string path;
  std::string backend;  // "CUDA", "ROCm", "Vulkan"; empty when it was not loaded
  std::string error;    // why not: the loader's own words
  size_t device_count = 0;
};

struct GpuDevice {
  ggml_backend_dev_t handle = nullptr;
  std::string name;         // "CUDA0"
  std::string description;  // the card's name
  std::string backend;
  std::optional<std::string> device_id;  // as the backend gives it, nullopt when it does not know
  size_t memory_free_bytes = 0;
  size_t memory_total_bytes = 0;
  bool is_integrated = false;      // shares the host's memory
  bool can_register_host = false;  // can read host memory that it did not allocate without a staged copy
};

// Never throws for a module that cannot be used (no driver, other version, no module at all): `error` says
// why. Call it before other threads run: it sets the environment variable that ggml's CUDA backend asks for
// before it registers host memory.
GpuModule load_gpu_module(const std::string& path);

// Every GPU that the loaded modules found, in the backends' order.
std::vector<GpuDevice> gpu_devices();

// Throws std::invalid_argument when no GPU goes by that name.
GpuDevice gpu_device(const std::string& name);

}  // namespace stratad
