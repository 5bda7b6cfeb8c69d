// Memory that a job reuses from call to call: it grows to the largest batch seen and is never given back, so
// the decode path allocates nothing once it has run.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace stratad {

template <class T>
class Scratch {
 public:
  // At least `count` elements on a cache-line border; the former contents are gone when it had to grow.
  T* of(size_t count) {
    if (count > capacity_) {
      constexpr size_t kLine = 64;
      const size_t bytes = (count * sizeof(T) + kLine - 1) / kLine * kLine;
      memory_.reset(static_cast<T*>(std::aligned_alloc(kLine, bytes)));
      if (!memory_) throw std::bad_alloc();
      capacity_ = count;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(T* memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<T, Free> memory_;
  size_t capacity_ = 0;
};

}  // namespace stratad
