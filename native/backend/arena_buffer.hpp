// The ggml buffer type whose memory is an Arena, and the load session that turns reservations into arenas.
//
// ggml allocates the buffer, then announces every tensor with its name, shape and final address, and only
// then writes the first byte. So allocation reserves, announcements collect, and the session places: once,
// before the first write.
#pragma once

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

// One model load. While it lives, arena buffers that ggml allocates belong to it; one session at a time.
class LoadSession {
 public:
  LoadSession(std::shared_ptr<Pool> pool, PlaceOptions options, Progress progress);
  ~LoadSession();
  LoadSession(const LoadSession&) = delete;
  LoadSession& operator=(const LoadSession&) = delete;

  // Places every reservation of this session; does nothing the second time.
  void place();
  // The placed arena that holds `address`, or null.
  Arena* arena_at(const void* address) const noexcept;
  std::vector<std::shared_ptr<Arena>> arenas() const;
  const Progress& progress() const noexcept { return progress_; }

  static LoadSession* current() noexcept;
  void adopt(ArenaBuffer* buffer) { buffers_.push_back(buffer); }
  void forget(ArenaBuffer* buffer) { std::erase(buffers_, buffer); }

 private:
  std::shared_ptr<Pool> pool_;
  PlaceOptions options_;
  Progress progress_;
  bool is_placed_ = false;
  std::vector<ArenaBuffer*> buffers_;  // owned by ggml
};

ggml_backend_buffer_type_t arena_buffer_type();

// Whether the tensor's data lies in an arena buffer.
bool is_in_arena(const ggml_tensor* tensor) noexcept;

}  // namespace stratad
