// Host memory that holds every expert matrix, its pages placed on the nodes of the workers that read them.
//
// The order is fixed by the types: an ArenaReservation is address space whose tensors are announced one by
// one; Arena::place() consumes it and touches every page under the owner's memory policy from a pinned
// worker, gives the mapping one explicit policy, verifies where the pages are, moves those that lie
// elsewhere, and only then locks them. There is no public step a caller could run out of order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "placement/memory_policy.hpp"
#include "pool/pool.hpp"

namespace stratad {

// Says how far a long step is and returns whether to go on. Called on the submitting thread only.
using Progress = std::function<bool(const char* stage, double fraction)>;

// Thrown when a Progress asked to stop.
struct LoadCancelled : std::exception {
  const char* what() const noexcept override { return "loading was cancelled"; }
};

// Expert matrices of one kind in one layer: `matrix_count` matrices of `row_count` rows, one after the other.
struct SlicedTensor {
  size_t offset = 0;  // from the arena's start, a multiple of the page size
  size_t row_bytes = 0;
  int64_t row_count = 0;  // of one matrix
  int64_t matrix_count = 0;
  int part_count = 1;  // 2 for gate and up merged into one matrix: each half is cut by itself
};

class MappedRegion {
 public:
  explicit MappedRegion(size_t size_bytes);  // throws std::system_error
  ~MappedRegion();
  MappedRegion(MappedRegion&& other) noexcept;
  MappedRegion& operator=(MappedRegion&&) = delete;
  std::span<std::byte> bytes() const noexcept { return {base_, size_bytes_}; }

 private:
  std::byte* base_ = nullptr;  // on a 2 MiB border
  size_t size_bytes_ = 0;
};

class ArenaReservation {
 public:
  explicit ArenaReservation(size_t size_bytes) : region_(size_bytes) {}
  void announce(const SlicedTensor& tensor) { tensors_.push_back(tensor); }
  std::span<std::byte> bytes() const noexcept { return region_.bytes(); }

 private:
  friend class Arena;
  MappedRegion region_;
  std::vector<SlicedTensor> tensors_;
};

enum class LockMode { kNever, kTry };

struct PlaceOptions {
  // Whether the kernel may use transparent huge pages as it is set up to; only where one slice owns all of
  // it.
  bool allow_huge_pages = false;
  // With that: as many bytes from the arena's start are asked to be on huge pages. Ask for no more than the
  // node has free blocks of: beyond that the kernel compacts memory at every fault.
  size_t huge_page_bytes = 0;
  LockMode lock = LockMode::kTry;
  double limit_ratio = 0.95;  // below this local ratio pages are repaired, and nothing is locked
  bool repair = true;
};

struct PlaceOutcome {
  std::vector<PolicyFailure> failures;  // refused memory-policy calls, each once
  double lowest_local_ratio = 1.0;      // over the placed slices, from the verification samples
  size_t repaired_pages = 0;            // moved to their node after a first verification found too few there
  bool is_locked = false;
  int lock_error_number = 0;  // errno when locking was tried and refused
};

class Arena {
 public:
  // Throws std::system_error when the kernel has no memory and LoadCancelled when `progress` says stop.
  static std::unique_ptr<Arena> place(ArenaReservation reservation, std::shared_ptr<Pool> pool,
                                      const PlaceOptions& options, const Progress& progress);

  // Reads `size` bytes into `destination` on all workers, each the pages of its own slice. `read` fetches one
  // piece: (destination, size, offset from the start of this call's range), false when it failed.
  using Reader = std::function<bool(std::byte* destination, size_t size, size_t offset)>;
  bool fill(std::byte* destination, size_t size, const Reader& read);

  bool contains(const void* address) const noexcept;
  std::span<std::byte> bytes() const noexcept { return region_.bytes(); }
  const PlaceOutcome& outcome() const noexcept { return outcome_; }
  const WorkerLayout& layout() const noexcept { return pool_->layout(); }
  size_t slice_bytes(int slice) const noexcept;

  // Moves pages that lie elsewhere to their slice's node, as far as the kernel can; nothing of a slice of no
  // or several nodes, and no page that a device has pinned. Locks the arena if that was still to be done.
  // Workers may read meanwhile. Returns how many pages moved, none while they are held. Throws
  // std::system_error when refused.
  size_t repair();

  // Held pages are not moved: a device reads them by their physical address. One release for each hold.
  void hold_pages() noexcept;
  void release_pages() noexcept;
  bool are_pages_held() const noexcept { return holds_.load(std::memory_order_acquire) > 0; }

  // Where each tensor starts, as bytes from the arena's start, ascending.
  const std::vector<size_t>& tensor_begins() const noexcept { return tensor_begins_; }
  // The slice's pages in address order, neighbours joined.
  std::vector<std::span<const std::byte>> slice_pieces(int slice) const;

  // The nodes of up to `page_count` pages spread evenly over the slice; negative errno where still unknown
  // after the page was read once more. Throws std::system_error when move_pages is refused.
  std::vector<int32_t> sample_placement(int slice, size_t page_count) const;

 private:
  struct Extent {               // pages of one slice, one after the other
    size_t begin = 0, end = 0;  // byte offsets, page multiples
    size_t bytes_before = 0;    // of the same slice
  };

  Arena(ArenaReservation reservation, std::shared_ptr<Pool> pool);
  void collect_extents(const std::vector<SlicedTensor>& tensors);
  void advise_page_size(const PlaceOptions& options);
  void touch(const Progress& progress);
  void protect();
  void verify();
  void repair_before_locking(double limit_ratio);
  size_t move_home();
  size_t move_home(int slice);
  void lock(const PlaceOptions& options);
  void note_failure(const char* call, int error_number);

  class TouchJob;
  class FillJob;

  MappedRegion region_;
  std::shared_ptr<Pool> pool_;
  std::vector<std::vector<Extent>> extents_;  // by slice, ascending
  std::vector<size_t> tensor_begins_;
  PlaceOptions options_;
  PlaceOutcome outcome_;
  std::atomic<int> holds_{0};
  std::mutex moving_;  // a hold waits for a repair that runs, and a repair sees every hold
};

}  // namespace stratad
