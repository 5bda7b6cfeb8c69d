// Loads one GPU backend of ggml from its file, and says why when that cannot be.
//
// A module stays loaded until the process ends: GPU runtimes do not survive being unloaded.
#pragma once

#include <cstddef>
#include <string>

namespace stratad {

struct GpuModule {
  std::string path;
  std::string backend;  // "CUDA", "ROCm", "Vulkan"; empty when it was not loaded
  std::string error;    // why not, in the loader's or ggml's own words; also what made it find no device
  size_t device_count = 0;
};

// Never throws for a module that cannot be used (no driver, other version, no module at all): `error` says
// why. Call it before other threads run: it sets the environment variable that ggml's CUDA backend asks for
// before it registers host memory.
GpuModule load_gpu_module(const std::string& path);

}  // namespace stratad
