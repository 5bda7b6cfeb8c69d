#include "gpu/host_registration.hpp"

#include <algorithm>
#include <stdexcept>

namespace stratad {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr const char* kRegister = "ggml_backend_register_host_buffer";
constexpr const char* kUnregister = "ggml_backend_unregister_host_buffer";

using Register = bool (*)(void*, size_t);
using Unregister = void (*)(void*);

template <class Function>
Function find(ggml_backend_reg_t registry, const char* name) noexcept {
  return reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(registry, name));
}

}  // namespace

bool can_register_host(ggml_backend_reg_t registry) noexcept {
  return find<Register>(registry, kRegister) != nullptr && find<Unregister>(registry, kUnregister) != nullptr;
}

std::vector<std::span<std::byte>> registration_chunks(const Arena& arena, size_t chunk_bytes) {
  const size_t limit = std::max(chunk_bytes / kPageBytes, size_t{1}) * kPageBytes;
  std::vector<size_t> borders = arena.tensor_begins();
  borders.push_back(arena.bytes().size());
  std::vector<std::span<std::byte>> chunks;
  size_t begin = 0;
  size_t end = 0;  // the furthest border within reach
  const auto close = [&](size_t at) {
    if (at > begin) chunks.push_back(arena.bytes().subspan(begin, at - begin));
    begin = at;
  };
  for (const size_t border : borders) {
    if (border - begin > limit) close(end);
    while (border - begin > limit) close(begin + limit);
    end = border;
  }
  close(arena.bytes().size());
  return chunks;
}

HostRegistration::HostRegistration(std::shared_ptr<Arena> arena, const std::string& backend,
                                   size_t chunk_bytes)
    : arena_(std::move(arena)) {
  ggml_backend_reg_t registry = ggml_backend_reg_by_name(backend.c_str());
  if (registry == nullptr) throw std::invalid_argument("no backend is called '" + backend + "'");
  if (!can_register_host(registry)) return;
  const auto register_chunk = find<Register>(registry, kRegister);
  unregister_ = find<Unregister>(registry, kUnregister);
  const auto wanted = registration_chunks(*arena_, chunk_bytes);
  chunks_.reserve(wanted.size());  // nothing may throw between a registration and its entry here
  // From before the first page is pinned: a repair that runs meanwhile would move pages under the device.
  arena_->hold_pages();
  for (const auto chunk : wanted) {
    if (!register_chunk(chunk.data(), chunk.size())) {
      bytes_before_refusal_ = pinned_bytes();
      refused_chunk_bytes_ = chunk.size();
      state_ = RegistrationState::kRefused;
      release();
      return;
    }
    chunks_.push_back(chunk);
  }
  state_ = RegistrationState::kPinned;
  if (chunks_.empty()) release();
}

HostRegistration::~HostRegistration() {
  release();
}

size_t HostRegistration::pinned_bytes() const noexcept {
  size_t bytes = 0;
  for (const auto chunk : chunks_) bytes += chunk.size();
  return bytes;
}

void HostRegistration::release() noexcept {
  if (unregister_ == nullptr) return;
  for (const auto chunk : chunks_) unregister_(chunk.data());
  chunks_.clear();
  arena_->release_pages();
  unregister_ = nullptr;
}

}  // namespace stratad
