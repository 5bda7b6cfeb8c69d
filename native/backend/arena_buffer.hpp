// The ggml buffer type whose memory is an Arena, and the load session that turns reservations into arenas.
//
// llama.cpp allocates the buffer, announces every tensor with its name, shape and final address, and then
// reads all tensors with one thread. Expert tensors it must not read: they are placed first and filled by all
// workers. Its loader passes over a tensor whose name is not in the file, so during a load an announced
// tensor goes by another name; the session remembers the true one, fills the tensor and gives the name back
// (ADR 0004).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arena/arena.hpp"
#include "ggml-backend.h"

namespace stratad {

struct ArenaBuffer {
  explicit ArenaBuffer(size_t size_bytes)
      : reservation(std::in_place, size_bytes), base(reservation->bytes().data()) {}
  std::optional<ArenaReservation> reservation;  // until placed
  std::shared_ptr<Arena> arena;                 // afterwards
  std::byte* base;
};

// A tensor that waits for its bytes.
struct DeferredTensor {
  ggml_tensor* tensor = nullptr;
  std::string name;
};

// One model load. While it lives, arena buffers that ggml allocates belong to it; one session at a time.
class LoadSession {
 public:
  // Reads one tensor's bytes into its place in the arena; throws when it cannot.
  using Fill =
      std::function<void(Arena& arena, std::byte* destination, size_t size, const std::string& name)>;

  LoadSession(std::shared_ptr<Pool> pool, PlaceOptions options, Progress progress);
  ~LoadSession();
  LoadSession(const LoadSession&) = delete;
  LoadSession& operator=(const LoadSession&) = delete;

  // Once llama.cpp has built the model: places every reservation, then fills the deferred tensors.
  void place();
  void fill(const Fill& fill);
  std::vector<std::shared_ptr<Arena>> arenas() const;
  // The arena's tensors, by their true names, in llama.cpp's order.
  const std::vector<DeferredTensor>& tensors() const noexcept { return deferred_; }
  const Progress& progress() const noexcept { return progress_; }

  static LoadSession* current() noexcept;
  void adopt(ArenaBuffer* buffer) { buffers_.push_back(buffer); }
  void defer(ggml_tensor* tensor);
  void forget(ArenaBuffer* buffer) { std::erase(buffers_, buffer); }

 private:
  std::shared_ptr<Pool> pool_;
  PlaceOptions options_;
  Progress progress_;
  std::vector<ArenaBuffer*> buffers_;  // owned by ggml
  std::vector<DeferredTensor> deferred_;
};

ggml_backend_buffer_type_t arena_buffer_type();

// Whether the tensor's data lies in an arena buffer.
bool is_in_arena(const ggml_tensor* tensor) noexcept;

}  // namespace stratad
