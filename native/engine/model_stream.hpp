// A GGUF model, in one file or split over several, as one stream that llama.cpp's loader reads.
//
// llama.cpp reads tensors with one thread. Its loader also accepts a FILE*, so it gets one whose read
// function is ours: what is meant for the arena is read by all pinned workers at once, each the pages of its
// own slice; what is meant for anything else is read as always. The parts of a split model appear as one file
// with one header.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/arena_buffer.hpp"

namespace stratad {

class ModelStream {
 public:
  // paths: the model's file, or all parts of a split model in order. Throws std::system_error when one cannot
  // be opened and std::invalid_argument when one is no GGUF file or a tensor's data lies outside its file.
  ModelStream(const std::vector<std::string>& paths, bool release_page_cache);
  ~ModelStream();
  ModelStream(const ModelStream&) = delete;
  ModelStream& operator=(const ModelStream&) = delete;

  // The stream; it stays owned by this object and ends with it.
  FILE* file() const noexcept { return file_; }
  // What went wrong in a read, or empty.
  const std::string& read_error() const noexcept { return read_error_; }

 private:
  struct Part {
    std::string path;
    int descriptor = -1;
    uint64_t size_bytes = 0;
  };
  struct Segment {  // [begin, end) of the stream is [part_offset, ...) of the part
    uint64_t begin = 0, end = 0;
    size_t part = 0;
    uint64_t part_offset = 0;
  };

  void open_parts(const std::vector<std::string>& paths);
  void map_single();
  void map_split();
  long read(char* destination, size_t size);
  bool read_at(std::byte* destination, size_t size, uint64_t offset);
  bool read_part(const Part& part, std::byte* destination, size_t size, uint64_t offset);
  long read_ahead(char* destination, size_t size);

  static ssize_t cookie_read(void* cookie, char* destination, size_t size);
  static int cookie_seek(void* cookie, off64_t* offset, int whence);

  bool release_page_cache_;
  std::vector<Part> parts_;
  std::vector<std::byte> header_;  // of a split model: the stream begins with it
  std::vector<Segment> segments_;
  uint64_t size_bytes_ = 0;
  uint64_t position_ = 0;
  std::vector<std::byte> ahead_;
  uint64_t ahead_begin_ = 0, ahead_end_ = 0;
  std::string read_error_;
  std::mutex error_mutex_;
  FILE* file_ = nullptr;
};

}  // namespace stratad
