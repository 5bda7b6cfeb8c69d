// RAII for the pieces of ggml that hold device memory and the tensors in it.
#pragma once

#include <memory>

#include "ggml-backend.h"
#include "ggml.h"

namespace stratad {

struct FreeDeviceBuffer {
  void operator()(ggml_backend_buffer_t buffer) const noexcept { ggml_backend_buffer_free(buffer); }
};
struct FreeTensorContext {
  void operator()(ggml_context* context) const noexcept { ggml_free(context); }
};
struct FreeBackend {
  void operator()(ggml_backend_t backend) const noexcept { ggml_backend_free(backend); }
};
using DeviceBuffer = std::unique_ptr<ggml_backend_buffer, FreeDeviceBuffer>;
using TensorContext = std::unique_ptr<ggml_context, FreeTensorContext>;
using InnerBackend = std::unique_ptr<ggml_backend, FreeBackend>;

// Room for `tensor_count` tensors without data.
inline TensorContext make_tensor_context(size_t tensor_count) {
  return TensorContext(ggml_init({(tensor_count + 1) * ggml_tensor_overhead(), nullptr, true}));
}

inline size_t aligned(size_t size, size_t alignment) noexcept {
  return (size + alignment - 1) / alignment * alignment;
}

// A buffer of the device's own memory, or null when there is no room.
inline DeviceBuffer allocate_on(ggml_backend_dev_t device, size_t bytes) {
  return DeviceBuffer(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device), bytes));
}

}  // namespace stratad
