#include "arena/read_rate.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

namespace stratad {
namespace {

constexpr size_t kTaskBytes = size_t{4} << 20;

class ReadJob final : public Job {
 public:
  ReadJob(std::span<const std::byte> bytes, int slices) : bytes_(bytes), slices_(slices) {}
  int phase_count() const noexcept override { return 1; }
  uint32_t task_count(int, int slice) const noexcept override {
    const auto tasks = static_cast<int>((bytes_.size() + kTaskBytes - 1) / kTaskBytes);
    return static_cast<uint32_t>((tasks - slice + slices_ - 1) / slices_);
  }
  bool joins_slices(int) const noexcept override { return false; }
  void run(int, int slice, uint32_t task, int) noexcept override {
    const size_t begin = (task * static_cast<size_t>(slices_) + static_cast<size_t>(slice)) * kTaskBytes;
    // Eight sums: independent, so that loads and not additions bound the loop.
    uint64_t sums[8] = {};
    const size_t size = std::min(kTaskBytes, bytes_.size() - begin);  // whole pages, so whole groups of words
    for (size_t offset = 0; offset < size; offset += sizeof sums) {
      uint64_t words[8];
      std::memcpy(words, bytes_.data() + begin + offset, sizeof words);
      for (int lane = 0; lane < 8; ++lane) sums[lane] += words[lane];
    }
    uint64_t total = 0;
    for (uint64_t sum : sums) total += sum;
    sink_.fetch_xor(total, std::memory_order_relaxed);
  }

 private:
  std::span<const std::byte> bytes_;
  int slices_;
  std::atomic<uint64_t> sink_{0};  // keeps the compiler from dropping the loop
};

}  // namespace

double measure_read_rate(const Arena& arena, Pool& pool) {
  ReadJob job(arena.bytes(), pool.slice_count());
  const auto start = std::chrono::steady_clock::now();
  pool.run(job);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return static_cast<double>(arena.bytes().size()) / elapsed.count();
}

}  // namespace stratad
