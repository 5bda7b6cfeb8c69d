// The files of a GGUF model, in one part or several: where each tensor's bytes lie, and a way to read them
// from many threads at once.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "arena/arena.hpp"

namespace stratad {

class ModelFiles {
 public:
  // paths: the model's file, or all parts of a split model in order. Throws std::system_error when one cannot
  // be opened and std::invalid_argument when one is no GGUF file or a tensor's data lies outside its file.
  ModelFiles(const std::vector<std::string>& paths, bool release_page_cache);
  ~ModelFiles();
  ModelFiles(const ModelFiles&) = delete;
  ModelFiles& operator=(const ModelFiles&) = delete;

  // Reads a tensor's bytes into its place in the arena, on all workers. Throws std::runtime_error with the
  // file, the place and the reason when the file cannot be read, std::invalid_argument when there is no such
  // tensor.
  void fill(Arena& arena, std::byte* destination, size_t size, const std::string& tensor_name);

  // Drops what the page cache holds of the files, so that it does not crowd the node it happens to lie on.
  void release_page_cache() const noexcept;

 private:
  struct Part {
    std::string path;
    int descriptor = -1;
    uint64_t size_bytes = 0;
  };
  struct Extent {
    size_t part = 0;
    uint64_t offset = 0;
    uint64_t size_bytes = 0;
  };

  void open_parts(const std::vector<std::string>& paths);
  void read_header(size_t part);
  bool read(const Part& part, std::byte* destination, size_t size, uint64_t offset);

  bool release_page_cache_;
  std::vector<Part> parts_;
  std::map<std::string, Extent> tensors_;
  std::mutex error_mutex_;
  std::string read_error_;
};

}  // namespace stratad
