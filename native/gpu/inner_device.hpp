// The GPUs of this machine as ggml's backends show them: CUDA, HIP, Vulkan and SYCL alike, through ggml's
// public device interface only. Our own device wraps one of them (proxy_device.hpp): it is the inner device.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ggml-backend.h"

namespace stratad {

struct InnerDevice {
  ggml_backend_dev_t device = nullptr;
  std::string name;         // ggml's, for example CUDA0
  std::string description;  // the card's own
  std::string backend;      // the registry it comes from, for example CUDA
  std::string pci_address;  // domain:bus:device.function in lower case; empty when the backend does not tell
  size_t free_bytes = 0, total_bytes = 0;  // 0 and 0 when the backend does not tell
};

// Every GPU that the loaded backends offer, in ggml's order, each card once.
std::vector<InnerDevice> inner_devices();

// The same device asked again: its free memory changes.
InnerDevice describe_inner_device(ggml_backend_dev_t device);

}  // namespace stratad
