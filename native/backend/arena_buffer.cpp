#include "backend/arena_buffer.hpp"

#include <cstring>

#include "backend/device.hpp"
#include "backend/weight_product.hpp"
#include "ggml-backend-impl.h"

namespace stratad {
namespace {

// ggml loads one model at a time on one thread here (engine/model.cpp holds the lock), and its allocation
// callback has no user data: the session it belongs to has to be found through this.
LoadSession* current_session = nullptr;

constexpr size_t kAlignmentBytes = 4096;  // every tensor starts on a page of its own
// Load probes allocate buffers of no size and still want a base address that is not null.
std::byte* const kNoMemory = reinterpret_cast<std::byte*>(kAlignmentBytes);

// Not a tensor of any model: llama.cpp's loader finds no bytes for it and passes over it.
constexpr const char* kDeferredName = "(deferred to the arena)";

ArenaBuffer* context_of(ggml_backend_buffer_t buffer) {
  return static_cast<ArenaBuffer*>(buffer->context);
}

void free_buffer(ggml_backend_buffer_t buffer) {
  ArenaBuffer* arena_buffer = context_of(buffer);
  if (current_session != nullptr) current_session->forget(arena_buffer);
  delete arena_buffer;
}

void* get_base(ggml_backend_buffer_t buffer) {
  const ArenaBuffer* arena_buffer = context_of(buffer);
  return arena_buffer == nullptr ? kNoMemory : arena_buffer->base;
}

ggml_status init_tensor(ggml_backend_buffer_t buffer, ggml_tensor* tensor) {
  ArenaBuffer* arena_buffer = context_of(buffer);
  if (arena_buffer == nullptr || !arena_buffer->reservation || tensor->view_src != nullptr)
    return GGML_STATUS_SUCCESS;
  arena_buffer->reservation->announce(
      {.offset = static_cast<size_t>(static_cast<std::byte*>(tensor->data) - arena_buffer->base),
       .row_bytes = tensor->nb[1],
       .row_count = tensor->ne[1],
       .matrix_count = tensor->ne[2],
       .part_count = part_count(tensor)});
  if (current_session != nullptr) current_session->defer(tensor);
  return GGML_STATUS_SUCCESS;
}

char* address_in(const ggml_tensor* tensor, size_t offset) {
  return static_cast<char*>(tensor->data) + offset;
}
void memset_tensor(ggml_backend_buffer_t, ggml_tensor* tensor, uint8_t value, size_t offset, size_t size) {
  std::memset(address_in(tensor, offset), value, size);
}
void set_tensor(ggml_backend_buffer_t, ggml_tensor* tensor, const void* data, size_t offset, size_t size) {
  std::memcpy(address_in(tensor, offset), data, size);
}
void get_tensor(ggml_backend_buffer_t, const ggml_tensor* tensor, void* data, size_t offset, size_t size) {
  std::memcpy(data, address_in(tensor, offset), size);
}
void clear(ggml_backend_buffer_t buffer, uint8_t value) {
  // A fresh arena reads as zeros. Writing them would touch every page before it is placed.
  if (value != 0 && context_of(buffer) != nullptr) std::memset(context_of(buffer)->base, value, buffer->size);
}

const char* get_name(ggml_backend_buffer_type_t) {
  return "STRATAD_ARENA";
}
size_t get_alignment(ggml_backend_buffer_type_t) {
  return kAlignmentBytes;
}
bool is_host(ggml_backend_buffer_type_t) {
  return true;
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
  ggml_backend_buffer_i interface{};
  interface.free_buffer = free_buffer;
  interface.get_base = get_base;
  interface.init_tensor = init_tensor;
  interface.memset_tensor = memset_tensor;
  interface.set_tensor = set_tensor;
  interface.get_tensor = get_tensor;
  interface.clear = clear;
  if (size == 0) return ggml_backend_buffer_init(type, interface, nullptr, 0);
  try {
    auto buffer = std::make_unique<ArenaBuffer>(size);
    if (current_session != nullptr) current_session->adopt(buffer.get());
    return ggml_backend_buffer_init(type, interface, buffer.release(), size);
  } catch (const std::exception&) {
    return nullptr;  // ggml's contract for "no memory": the loader reports it
  }
}

}  // namespace

LoadSession::LoadSession(std::shared_ptr<Pool> pool, PlaceOptions options, Progress progress)
    : pool_(std::move(pool)), options_(options), progress_(std::move(progress)) {
  GGML_ASSERT(current_session == nullptr);
  current_session = this;
}

LoadSession::~LoadSession() {
  current_session = nullptr;
}

LoadSession* LoadSession::current() noexcept {
  return current_session;
}

void LoadSession::defer(ggml_tensor* tensor) {
  deferred_.push_back({tensor, tensor->name});
  ggml_set_name(tensor, kDeferredName);
}

void LoadSession::place() {
  for (ArenaBuffer* buffer : buffers_) {
    // Moved out first: place() consumes it, and a throw must not leave a half-consumed reservation behind.
    ArenaReservation reservation = std::move(*buffer->reservation);
    buffer->reservation.reset();
    buffer->arena = Arena::place(std::move(reservation), pool_, options_, progress_);
  }
}

void LoadSession::fill(const Fill& fill) {
  size_t total = 0, done = 0;
  for (const DeferredTensor& deferred : deferred_) total += ggml_nbytes(deferred.tensor);
  for (const DeferredTensor& deferred : deferred_) {
    if (progress_ && !progress_("loading experts", static_cast<double>(done) / static_cast<double>(total)))
      throw LoadCancelled();
    const size_t size = ggml_nbytes(deferred.tensor);
    Arena& arena = *context_of(deferred.tensor->buffer)->arena;
    fill(arena, static_cast<std::byte*>(deferred.tensor->data), size, deferred.name);
    ggml_set_name(deferred.tensor, deferred.name.c_str());
    done += size;
  }
}

std::vector<std::shared_ptr<Arena>> LoadSession::arenas() const {
  std::vector<std::shared_ptr<Arena>> arenas;
  for (ArenaBuffer* buffer : buffers_)
    if (buffer->arena) arenas.push_back(buffer->arena);
  return arenas;
}

ggml_backend_buffer_type_t arena_buffer_type() {
  static ggml_backend_buffer_type type = {
      {get_name, alloc_buffer, get_alignment, nullptr, nullptr, is_host}, pool_device(), nullptr};
  return &type;
}

bool is_in_arena(const ggml_tensor* tensor) noexcept {
  return tensor != nullptr && tensor->buffer != nullptr && tensor->buffer->buft == arena_buffer_type();
}

}  // namespace stratad
