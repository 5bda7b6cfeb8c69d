// An arena made known to a GPU runtime, so that the GPU reads its pages in place by DMA.
//
// Registering pins every page where it lies; so the arena is placed and verified first, and while this object
// lives the arena moves nothing (Arena::repair). It shares the arena, so pages are unregistered before they
// are unmapped whatever is dropped first. All of the arena is registered or nothing: what was done before a
// refusal is undone.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "arena/arena.hpp"
#include "ggml-backend.h"

namespace stratad {

// One call for 512 GiB fails on some drivers (DESIGN.md, section 5); 64 GiB has room to spare.
inline constexpr size_t kRegistrationChunkBytes = size_t{64} << 30;

enum class RegistrationState {
  kPinned,
  kUnsupported,  // the backend cannot register memory that it did not allocate
  kRefused,      // the runtime or the kernel said no
};

class HostRegistration {
 public:
  // `backend` is the name of a loaded one ("CUDA"). Chunks end where tensors do as far as chunk_bytes allows:
  // a copy must not span two of them. Throws std::invalid_argument for an unknown backend.
  HostRegistration(std::shared_ptr<Arena> arena, const std::string& backend,
                   size_t chunk_bytes = kRegistrationChunkBytes);
  ~HostRegistration();
  HostRegistration(const HostRegistration&) = delete;
  HostRegistration& operator=(const HostRegistration&) = delete;

  RegistrationState state() const noexcept { return state_; }
  size_t pinned_bytes() const noexcept;
  size_t chunk_count() const noexcept { return chunks_.size(); }
  // Of a refusal: how much had been registered before it, and the chunk that was refused.
  size_t bytes_before_refusal() const noexcept { return bytes_before_refusal_; }
  size_t refused_chunk_bytes() const noexcept { return refused_chunk_bytes_; }
  // Unregisters now; the destructor then has nothing left to do.
  void release() noexcept;

 private:
  std::shared_ptr<Arena> arena_;
  void (*unregister_)(void*) = nullptr;
  std::vector<std::span<std::byte>> chunks_;
  RegistrationState state_ = RegistrationState::kUnsupported;
  size_t bytes_before_refusal_ = 0;
  size_t refused_chunk_bytes_ = 0;
};

bool can_register_host(ggml_backend_reg_t registry) noexcept;

// The arena's bytes as chunks of at most chunk_bytes, cut where a tensor starts, or at page borders within a
// tensor that is larger.
std::vector<std::span<std::byte>> registration_chunks(const Arena& arena, size_t chunk_bytes);

}  // namespace stratad
