#include "engine/model_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <system_error>

#include "gguf.h"

namespace stratad {
namespace {

struct GgufFree {
  void operator()(gguf_context* context) const noexcept { gguf_free(context); }
};

}  // namespace

ModelFiles::ModelFiles(const std::vector<std::string>& paths, bool release) : release_page_cache_(release) {
  try {
    open_parts(paths);
    for (size_t part = 0; part < parts_.size(); ++part) read_header(part);
  } catch (...) {
    for (const Part& part : parts_) close(part.descriptor);
    throw;
  }
  if (release_page_cache_) release_page_cache();
}

ModelFiles::~ModelFiles() {
  if (release_page_cache_) release_page_cache();
  for (const Part& part : parts_) close(part.descriptor);
}

void ModelFiles::open_parts(const std::vector<std::string>& paths) {
  if (paths.empty()) throw std::invalid_argument("a model needs at least one file");
  for (const std::string& path : paths) {
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status{};
    if (descriptor < 0 || fstat(descriptor, &status) != 0) {
      const int error_number = errno;
      if (descriptor >= 0) close(descriptor);
      throw std::system_error(error_number, std::generic_category(), "opening " + path);
    }
    parts_.push_back({path, descriptor, static_cast<uint64_t>(status.st_size)});
  }
}

void ModelFiles::read_header(size_t part) {
  const std::string& path = parts_[part].path;
  const std::unique_ptr<gguf_context, GgufFree> gguf(
      gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr}));
  if (!gguf) throw std::invalid_argument(path + " is not a GGUF file that llama.cpp can read");
  const uint64_t data = gguf_get_data_offset(gguf.get());
  for (int64_t index = 0; index < gguf_get_n_tensors(gguf.get()); ++index) {
    const std::string name = gguf_get_tensor_name(gguf.get(), index);
    const uint64_t begin = data + gguf_get_tensor_offset(gguf.get(), index);
    const uint64_t size = gguf_get_tensor_size(gguf.get(), index);
    // llama.cpp reads a short file without a word and computes with what the memory held.
    if (begin + size < begin || begin + size > parts_[part].size_bytes)
      throw std::invalid_argument(path + " is truncated: tensor " + name + " ends at byte " +
                                  std::to_string(begin + size) + ", the file has " +
                                  std::to_string(parts_[part].size_bytes));
    if (!tensors_.emplace(name, Extent{part, begin, size}).second)
      throw std::invalid_argument("tensor " + name + " is there twice, again in " + path);
  }
}

void ModelFiles::fill(Arena& arena, std::byte* destination, size_t size, const std::string& tensor_name) {
  const auto found = tensors_.find(tensor_name);
  if (found == tensors_.end() || found->second.size_bytes != size)
    throw std::invalid_argument("the files hold no tensor " + tensor_name + " of " + std::to_string(size) +
                                " bytes");
  const Extent& extent = found->second;
  const bool is_filled = arena.fill(destination, size, [&](std::byte* to, size_t piece, size_t offset) {
    return read(parts_[extent.part], to, piece, extent.offset + offset);
  });
  if (!is_filled) throw std::runtime_error(read_error_);
}

// Called by several workers at once.
bool ModelFiles::read(const Part& part, std::byte* destination, size_t size, uint64_t offset) {
  const uint64_t begin = offset;
  for (size_t left = size; left > 0;) {
    const ssize_t count = pread(part.descriptor, destination, left, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const std::lock_guard guard(error_mutex_);
      read_error_ = "reading " + std::to_string(size) + " bytes at " + std::to_string(begin) + " of " +
                    part.path + ": " + (count == 0 ? "the file ends early" : std::strerror(errno));
      return false;
    }
    destination += count;
    offset += static_cast<uint64_t>(count);
    left -= static_cast<size_t>(count);
  }
  if (release_page_cache_)
    posix_fadvise(part.descriptor, static_cast<off_t>(begin), static_cast<off_t>(size), POSIX_FADV_DONTNEED);
  return true;
}

void ModelFiles::release_page_cache() const noexcept {
  for (const Part& part : parts_) posix_fadvise(part.descriptor, 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace stratad
