// Host memory that an inner device copies to and from, pinned where its backend has such memory.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "gpu/device_memory.hpp"

namespace stratad {

class HostArea {
 public:
  explicit HostArea(ggml_backend_dev_t device) : type_(ggml_backend_dev_host_buffer_type(device)) {}

  // At least `bytes`. When it has to grow the former contents are gone: no copy may be under way then.
  char* of(size_t bytes) {
    if (bytes <= size_) return base_;
    base_ = nullptr;
    size_ = 0;
    pinned_.reset(type_ == nullptr ? nullptr : ggml_backend_buft_alloc_buffer(type_, bytes));
    plain_.reset(pinned_ ? nullptr : static_cast<char*>(std::malloc(bytes)));
    base_ = pinned_ ? static_cast<char*>(ggml_backend_buffer_get_base(pinned_.get())) : plain_.get();
    if (base_ == nullptr) throw std::bad_alloc();
    size_ = bytes;
    return base_;
  }

 private:
  struct FreeMemory {
    void operator()(char* memory) const noexcept { std::free(memory); }
  };
  ggml_backend_buffer_type_t type_;
  DeviceBuffer pinned_;
  std::unique_ptr<char, FreeMemory> plain_;
  char* base_ = nullptr;
  size_t size_ = 0;
};

}  // namespace stratad
