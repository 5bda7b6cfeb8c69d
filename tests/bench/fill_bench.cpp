// Filling an arena from the page cache against the plainest way to the same end: the same threads read the
// file into fresh memory on huge pages. Ours counts everything from reserving address space to locked pages,
// with their placement verified.
//
// One line a round: ratio, GB/s of the arena, GB/s of the plain way. usage: fill_bench FILE WORKERS ROUNDS
// HUGE_BYTES
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "arena/arena.hpp"
#include "placement/thread_affinity.hpp"
#include "pool/pool.hpp"

namespace stratad {
namespace {

constexpr size_t kPieceBytes = size_t{8} << 20;

struct File {
  int descriptor;
  size_t size;
};

bool read_all(int descriptor, std::byte* destination, size_t size, size_t offset) {
  for (size_t done = 0; done < size;) {
    const ssize_t count =
        pread(descriptor, destination + done, size - done, static_cast<off_t>(offset + done));
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

template <class Action>
double gigabytes_per_second(size_t size, Action action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(size) / seconds.count() / 1e9;
}

// In a virtual machine the host takes back what the guest has freed, and whoever touches it first pays for
// getting it again. Both arms get memory that was in use a moment ago.
void warm_memory(size_t size) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, not in older headers
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory");
  madvise(memory, size, MADV_HUGEPAGE);
  madvise(memory, size, kPopulateWrite);
  munmap(memory, size);
}

double fill_arena(const File& file, const std::shared_ptr<Pool>& pool, size_t huge_bytes) {
  std::unique_ptr<Arena> arena;  // freed outside of the measurement, as the other arm's memory is
  return gigabytes_per_second(file.size, [&] {
    ArenaReservation reservation(file.size);
    reservation.announce({0, kPieceBytes, static_cast<int64_t>(file.size / kPieceBytes), 1});
    PlaceOptions options;
    options.allow_huge_pages = true;
    options.huge_page_bytes = huge_bytes;
    arena = Arena::place(std::move(reservation), pool, options, {});
    const bool is_filled = arena->fill(arena->bytes().data(), file.size,
                                       [&](std::byte* destination, size_t size, size_t offset) {
                                         return read_all(file.descriptor, destination, size, offset);
                                       });
    if (!is_filled) throw std::runtime_error("the file cannot be read");
  });
}

double fill_fresh_memory(const File& file, int workers) {
  void* memory = nullptr;
  const double rate = gigabytes_per_second(file.size, [&] {
    memory =
        mmap(nullptr, file.size + kPieceBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no memory");
    const size_t start = (reinterpret_cast<size_t>(memory) + kPieceBytes - 1) / kPieceBytes * kPieceBytes;
    auto* aligned = reinterpret_cast<std::byte*>(start);
    madvise(aligned, file.size, MADV_HUGEPAGE);
    std::vector<std::jthread> threads;
    for (int worker = 0; worker < workers; ++worker)
      threads.emplace_back([&, worker] {
        pin_calling_thread(worker);
        for (size_t offset = kPieceBytes * static_cast<size_t>(worker); offset < file.size;
             offset += kPieceBytes * static_cast<size_t>(workers))
          read_all(file.descriptor, aligned + offset, kPieceBytes, offset);
      });
  });
  munmap(memory, file.size + kPieceBytes);
  return rate;
}

int run(const char* path, int workers, int rounds, size_t huge_bytes) {
  File file{open(path, O_RDONLY | O_CLOEXEC), 0};
  if (file.descriptor < 0) throw std::runtime_error("the file cannot be opened");
  file.size = static_cast<size_t>(lseek(file.descriptor, 0, SEEK_END)) / kPieceBytes * kPieceBytes;
  WorkerLayout layout;
  layout.slices.resize(1);
  for (int worker = 0; worker < workers; ++worker) layout.workers.push_back({worker, 0});
  const auto pool = std::make_shared<Pool>(layout, 50'000);
  pool->adopt_calling_thread();
  // Brings the file into the page cache.
  fill_fresh_memory(file, workers);
  for (int round = 0; round < rounds; ++round) {
    warm_memory(file.size);
    const double arena = fill_arena(file, pool, huge_bytes);
    warm_memory(file.size);
    const double fresh = fill_fresh_memory(file, workers);
    std::printf("fill %.3f %.2f %.2f\n", arena / fresh, arena, fresh);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace stratad

int main(int count, char** arguments) {
  if (count != 5) {
    std::fprintf(stderr, "usage: fill_bench FILE WORKERS ROUNDS HUGE_BYTES\n");
    return 2;
  }
  try {
    return stratad::run(arguments[1], std::atoi(arguments[2]), std::atoi(arguments[3]),
                        std::strtoull(arguments[4], nullptr, 10));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fill_bench: %s\n", error.what());
    return 1;
  }
}
