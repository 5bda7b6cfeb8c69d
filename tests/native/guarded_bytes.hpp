// Memory that ends where an unreadable page begins: a read behind it ends the test.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>

namespace stratad::test {

class GuardedBytes {
 public:
  explicit GuardedBytes(size_t size) : size_(size) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    mapped_bytes_ = (size + page - 1) / page * page + page;
    void* mapping = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) std::abort();
    mapping_ = static_cast<char*>(mapping);
    if (mprotect(mapping_ + mapped_bytes_ - page, page, PROT_NONE) != 0) std::abort();
    bytes_ = mapping_ + mapped_bytes_ - page - size;
  }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  ~GuardedBytes() { munmap(mapping_, mapped_bytes_); }
  char* begin() const noexcept { return bytes_; }
  char* end() const noexcept { return bytes_ + size_; }

 private:
  size_t size_ = 0, mapped_bytes_ = 0;
  char* mapping_ = nullptr;
  char* bytes_ = nullptr;
};

}  // namespace stratad::test
