#include "engine/model_stream.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "gguf.h"

namespace stratad {
namespace {

// Header fields are read a few bytes at a time; tensors below this are not worth a job on the pool.
constexpr size_t kReadAheadBytes = size_t{256} << 10;

struct GgufFree {
  void operator()(gguf_context* context) const noexcept { gguf_free(context); }
};
struct GgmlFree {
  void operator()(ggml_context* context) const noexcept { ggml_free(context); }
};

// A part's header: key-value pairs and tensor shapes, no data.
struct Header {
  std::unique_ptr<gguf_context, GgufFree> gguf;
  std::unique_ptr<ggml_context, GgmlFree> tensors;
};

Header read_header(const std::string& path, uint64_t file_bytes) {
  ggml_context* tensors = nullptr;
  Header header;
  header.gguf.reset(gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = &tensors}));
  header.tensors.reset(tensors);
  if (!header.gguf) throw std::invalid_argument(path + " is not a GGUF file that llama.cpp can read");
  const uint64_t data = gguf_get_data_offset(header.gguf.get());
  for (int64_t index = 0; index < gguf_get_n_tensors(header.gguf.get()); ++index) {
    const uint64_t begin = data + gguf_get_tensor_offset(header.gguf.get(), index);
    const uint64_t end = begin + gguf_get_tensor_size(header.gguf.get(), index);
    // llama.cpp reads a short file without a word and computes with what the memory held.
    if (end < begin || end > file_bytes)
      throw std::invalid_argument(path + " is truncated: tensor " +
                                  gguf_get_tensor_name(header.gguf.get(), index) + " ends at byte " +
                                  std::to_string(end) + ", the file has " + std::to_string(file_bytes));
  }
  return header;
}

uint64_t align(uint64_t value, uint64_t alignment) noexcept {
  return (value + alignment - 1) / alignment * alignment;
}

}  // namespace

ModelStream::ModelStream(const std::vector<std::string>& paths, bool release_page_cache)
    : release_page_cache_(release_page_cache), ahead_(kReadAheadBytes) {
  try {
    open_parts(paths);
    parts_.size() == 1 ? map_single() : map_split();
    const cookie_io_functions_t functions = {cookie_read, nullptr, cookie_seek, nullptr};
    file_ = fopencookie(this, "rb", functions);
    if (file_ == nullptr) throw std::system_error(errno, std::generic_category(), "opening the model stream");
    // Unbuffered: stdio then hands us the tensor's own memory as destination.
    std::setvbuf(file_, nullptr, _IONBF, 0);
  } catch (...) {
    for (const Part& part : parts_) close(part.descriptor);
    throw;
  }
}

ModelStream::~ModelStream() {
  std::fclose(file_);
  for (const Part& part : parts_) close(part.descriptor);
}

void ModelStream::open_parts(const std::vector<std::string>& paths) {
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
    // Cached pages of the file would crowd the node they happen to lie on.
    if (release_page_cache_) posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  }
}

void ModelStream::map_single() {
  read_header(parts_[0].path, parts_[0].size_bytes);
  size_bytes_ = parts_[0].size_bytes;
  segments_.push_back({0, size_bytes_, 0, 0});
}

// One header for all parts: the first part's keys without the split's own, and every part's tensors. ggml
// lays tensors out one behind the other, each on the alignment the header states; a segment maps each back.
void ModelStream::map_split() {
  const std::unique_ptr<gguf_context, GgufFree> merged(gguf_init_empty());
  std::vector<Header> headers;
  for (const Part& part : parts_) headers.push_back(read_header(part.path, part.size_bytes));
  gguf_set_kv(merged.get(), headers[0].gguf.get());
  for (const char* key : {"split.no", "split.count", "split.tensors.count"})
    gguf_remove_key(merged.get(), key);
  for (const Header& header : headers)
    for (ggml_tensor* tensor = ggml_get_first_tensor(header.tensors.get()); tensor != nullptr;
         tensor = ggml_get_next_tensor(header.tensors.get(), tensor)) {
      if (gguf_find_tensor(merged.get(), tensor->name) >= 0)
        throw std::invalid_argument(std::string("tensor ") + tensor->name + " is in two parts of the model");
      gguf_add_tensor(merged.get(), tensor);
    }
  header_.resize(gguf_get_meta_size(merged.get()));
  gguf_get_meta_data(merged.get(), header_.data());
  const uint64_t alignment = gguf_get_alignment(merged.get());
  const uint64_t data = align(header_.size(), alignment);
  header_.resize(data);
  for (size_t part = 0; part < headers.size(); ++part) {
    const gguf_context* gguf = headers[part].gguf.get();
    for (int64_t index = 0; index < gguf_get_n_tensors(gguf); ++index) {
      const int64_t merged_index = gguf_find_tensor(merged.get(), gguf_get_tensor_name(gguf, index));
      const uint64_t begin = data + gguf_get_tensor_offset(merged.get(), merged_index);
      segments_.push_back({begin, begin + gguf_get_tensor_size(gguf, index), part,
                           gguf_get_data_offset(gguf) + gguf_get_tensor_offset(gguf, index)});
    }
  }
  std::sort(segments_.begin(), segments_.end(),
            [](const Segment& a, const Segment& b) { return a.begin < b.begin; });
  size_bytes_ = align(segments_.empty() ? data : segments_.back().end, alignment);
}

// Fills [offset, offset + size) of the stream; bytes of no segment (padding) are zero. Called by workers.
bool ModelStream::read_at(std::byte* destination, size_t size, uint64_t offset) {
  const uint64_t end = offset + size;
  if (offset < header_.size()) {
    const size_t count = std::min<uint64_t>(size, header_.size() - offset);
    std::memcpy(destination, header_.data() + offset, count);
    return count == size || read_at(destination + count, size - count, offset + count);
  }
  auto segment = std::partition_point(segments_.begin(), segments_.end(),
                                      [&](const Segment& s) { return s.end <= offset; });
  while (offset < end) {
    if (segment == segments_.end() || segment->begin >= end) {
      std::memset(destination, 0, end - offset);
      return true;
    }
    if (segment->begin > offset) {
      std::memset(destination, 0, segment->begin - offset);
      destination += segment->begin - offset;
      offset = segment->begin;
    }
    const size_t count = std::min(end, segment->end) - offset;
    if (!read_part(parts_[segment->part], destination, count,
                   segment->part_offset + (offset - segment->begin)))
      return false;
    destination += count;
    offset += count;
    ++segment;
  }
  return true;
}

bool ModelStream::read_part(const Part& part, std::byte* destination, size_t size, uint64_t offset) {
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

long ModelStream::read_ahead(char* destination, size_t size) {
  if (position_ < ahead_begin_ || position_ + size > ahead_end_) {
    const size_t count = std::min<uint64_t>(ahead_.size(), size_bytes_ - position_);
    if (!read_at(ahead_.data(), count, position_)) return -1;
    ahead_begin_ = position_;
    ahead_end_ = position_ + count;
  }
  std::memcpy(destination, ahead_.data() + (position_ - ahead_begin_), size);
  return static_cast<long>(size);
}

long ModelStream::read(char* destination, size_t size) {
  size = std::min<uint64_t>(size, size_bytes_ - std::min(position_, size_bytes_));
  if (size == 0) return 0;
  long count = static_cast<long>(size);
  const LoadSession* session = LoadSession::current();
  Arena* arena = session != nullptr ? session->arena_at(destination) : nullptr;
  auto* bytes = reinterpret_cast<std::byte*>(destination);
  if (arena != nullptr) {
    const uint64_t start = position_;
    const bool is_read = arena->fill(bytes, size, [&](std::byte* to, size_t piece, size_t offset) {
      return read_at(to, piece, start + offset);
    });
    if (!is_read) count = -1;
  } else if (size < ahead_.size()) {
    count = read_ahead(destination, size);
  } else if (!read_at(bytes, size, position_)) {
    count = -1;
  }
  if (count < 0) {
    errno = EIO;
    return -1;
  }
  position_ += size;
  return count;
}

ssize_t ModelStream::cookie_read(void* cookie, char* destination, size_t size) {
  return static_cast<ModelStream*>(cookie)->read(destination, size);
}

int ModelStream::cookie_seek(void* cookie, off64_t* offset, int whence) {
  auto& stream = *static_cast<ModelStream*>(cookie);
  const int64_t base = whence == SEEK_SET
                           ? 0
                           : static_cast<int64_t>(whence == SEEK_CUR ? stream.position_ : stream.size_bytes_);
  if (*offset + base < 0) {
    errno = EINVAL;
    return -1;
  }
  stream.position_ = static_cast<uint64_t>(*offset + base);
  *offset = static_cast<off64_t>(stream.position_);
  return 0;
}

}  // namespace stratad
