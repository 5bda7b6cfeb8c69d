#include "gpu/modules.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>

#include "ggml.h"
#include "gpu/host_registration.hpp"

namespace stratad {
namespace {

GpuDevice describe(ggml_backend_dev_t device) {
  ggml_backend_dev_props properties{};
  ggml_backend_dev_get_props(device, &properties);
  ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(device);
  GpuDevice described;
  described.handle = device;
  described.name = ggml_backend_dev_name(device);
  described.description = ggml_backend_dev_description(device);
  described.backend = ggml_backend_reg_name(registry);
  if (properties.device_id != nullptr && *properties.device_id != '\0')
    described.device_id = properties.device_id;
  described.memory_free_bytes = properties.memory_free;
  described.memory_total_bytes = properties.memory_total;
  described.is_integrated = ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_IGPU;
  described.can_register_host = can_register_host(registry);
  return described;
}

// What ggml warns of while this lives, instead of where it usually goes.
class Overheard {
 public:
  Overheard() {
    ggml_log_get(&callback_, &user_data_);
    ggml_log_set(note, this);
  }
  ~Overheard() { ggml_log_set(callback_, user_data_); }
  Overheard(const Overheard&) = delete;
  Overheard& operator=(const Overheard&) = delete;

  const std::string& text() const noexcept { return text_; }

 private:
  static void note(ggml_log_level level, const char* line, void* self) {
    if (level != GGML_LOG_LEVEL_WARN && level != GGML_LOG_LEVEL_ERROR) return;
    std::string& text = static_cast<Overheard*>(self)->text_;
    if (!text.empty()) text += "; ";
    text += line;
    while (!text.empty() && text.back() == '\n') text.pop_back();
  }

  ggml_log_callback callback_ = nullptr;
  void* user_data_ = nullptr;
  std::string text_;
};

std::string last_loader_error() {
  const char* text = dlerror();
  return text == nullptr ? "the loader gave no reason" : text;
}

}  // namespace

GpuModule load_gpu_module(const std::string& path) {
  GpuModule module{.path = path};
  const Overheard log;
  // ggml's own loader logs why a library cannot be opened; asked first, the system's loader says it.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    module.error = last_loader_error();
    return module;
  }
  // Without it ggml's CUDA and HIP backends refuse to register host memory.
  setenv("GGML_CUDA_REGISTER_HOST", "1", 1);
  ggml_backend_reg_t registry = ggml_backend_load(path.c_str());
  if (registry == nullptr) {
    dlclose(library);
    module.error = log.text().empty() ? "the backend does not support this system" : log.text();
    return module;
  }
  module.backend = ggml_backend_reg_name(registry);
  module.device_count = ggml_backend_reg_dev_count(registry);
  if (module.device_count == 0) module.error = log.text();
  return module;
}

std::vector<GpuDevice> gpu_devices() {
  std::vector<GpuDevice> devices;
  for (size_t index = 0; index < ggml_backend_dev_count(); ++index) {
    ggml_backend_dev_t device = ggml_backend_dev_get(index);
    const auto type = ggml_backend_dev_type(device);
    if (type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU)
      devices.push_back(describe(device));
  }
  return devices;
}

GpuDevice gpu_device(const std::string& name) {
  for (GpuDevice& device : gpu_devices())
    if (device.name == name) return std::move(device);
  throw std::invalid_argument("no GPU is called '" + name + "'");
}

}  // namespace stratad
