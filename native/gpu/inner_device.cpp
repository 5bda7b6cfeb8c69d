#include "gpu/inner_device.hpp"

#include <algorithm>

namespace stratad {
namespace {

// A second device of one card carries a suffix behind the card's address.
std::string card_address(const char* id) {
  const std::string text = id == nullptr ? "" : id;
  return text.substr(0, text.find("-v"));
}

bool is_gpu(ggml_backend_dev_t device) {
  const auto type = ggml_backend_dev_type(device);
  return type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU;
}

}  // namespace

InnerDevice describe_inner_device(ggml_backend_dev_t device) {
  ggml_backend_dev_props properties{};
  ggml_backend_dev_get_props(device, &properties);
  InnerDevice described{.device = device,
                        .name = ggml_backend_dev_name(device),
                        .description = ggml_backend_dev_description(device),
                        .backend = ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)),
                        .pci_address = card_address(properties.device_id)};
  ggml_backend_dev_memory(device, &described.free_bytes, &described.total_bytes);
  return described;
}

std::vector<InnerDevice> inner_devices() {
  std::vector<InnerDevice> found;
  for (size_t index = 0; index < ggml_backend_dev_count(); ++index) {
    ggml_backend_dev_t device = ggml_backend_dev_get(index);
    if (!is_gpu(device)) continue;
    InnerDevice described = describe_inner_device(device);
    // One card may be offered by two backends, CUDA and Vulkan: the first has it.
    const bool is_known = std::any_of(found.begin(), found.end(), [&](const InnerDevice& other) {
      return !described.pci_address.empty() && other.pci_address == described.pci_address &&
             other.backend != described.backend;
    });
    if (!is_known) found.push_back(std::move(described));
  }
  return found;
}

}  // namespace stratad
