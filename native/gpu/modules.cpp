#include "gpu/modules.hpp"

#include <dlfcn.h>

#include <cstdlib>

#include "ggml-backend.h"
#include "ggml.h"

namespace stratad {
namespace {

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

}  // namespace stratad
