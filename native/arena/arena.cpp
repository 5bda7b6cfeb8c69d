#include "arena/arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "arena/row_cut.hpp"

namespace stratad {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;
// Work pieces: large enough that a claim costs nothing beside it, small enough that workers end together.
constexpr size_t kTouchPieceBytes = size_t{16} << 20;
constexpr size_t kFillPieceBytes = size_t{4} << 20;
constexpr size_t kVerifyPages = 4096;

size_t page_ceiling(size_t bytes) noexcept {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;  // Linux 5.14; older libc headers lack the name
#endif

// Faults the pages in. One call for many pages where the kernel can, else a write to each.
int populate(std::byte* begin, size_t size) noexcept {
  if (madvise(begin, size, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  for (size_t offset = 0; offset < size; offset += kPageBytes)
    *reinterpret_cast<volatile char*>(begin + offset) = 0;
  return 0;
}

struct Piece {
  size_t begin = 0, end = 0;
};

// Cuts ranges into pieces of at most `limit` bytes.
template <class Ranges>
std::vector<Piece> pieces_of(const Ranges& ranges, size_t limit) {
  std::vector<Piece> pieces;
  for (const auto& range : ranges)
    for (size_t begin = range.begin; begin < range.end; begin += limit)
      pieces.push_back({begin, std::min(range.end, begin + limit)});
  return pieces;
}

// Consecutive small pieces share one task, so that a task is always worth claiming.
std::vector<std::pair<size_t, size_t>> group(const std::vector<Piece>& pieces, size_t limit) {
  std::vector<std::pair<size_t, size_t>> tasks;
  size_t bytes = 0;
  for (size_t index = 0; index < pieces.size(); ++index) {
    const size_t size = pieces[index].end - pieces[index].begin;
    if (tasks.empty() || bytes + size > limit) {
      tasks.emplace_back(index, index);
      bytes = 0;
    }
    tasks.back().second = index + 1;
    bytes += size;
  }
  return tasks;
}

// One phase over pieces of memory, by slice.
class PieceJob : public Job {
 public:
  PieceJob(std::vector<std::vector<Piece>> pieces, size_t task_bytes) : pieces_(std::move(pieces)) {
    for (const auto& slice : pieces_) tasks_.push_back(group(slice, task_bytes));
  }
  int phase_count() const noexcept override { return 1; }
  uint32_t task_count(int, int slice) const noexcept override {
    return static_cast<uint32_t>(tasks_[slice].size());
  }
  bool joins_slices(int) const noexcept override { return false; }

 protected:
  std::span<const Piece> pieces(int slice, uint32_t task) const noexcept {
    const auto [first, last] = tasks_[slice][task];
    return std::span(pieces_[slice]).subspan(first, last - first);
  }

 private:
  std::vector<std::vector<Piece>> pieces_;
  std::vector<std::vector<std::pair<size_t, size_t>>> tasks_;
};

}  // namespace

MappedRegion::MappedRegion(size_t size_bytes) : size_bytes_(page_ceiling(size_bytes)) {
  const size_t reserved = size_bytes_ + kHugePageBytes;
  void* mapping =
      mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED)
    throw std::system_error(errno, std::generic_category(),
                            "reserving an arena of " + std::to_string(size_bytes_) + " bytes");
  const auto start = reinterpret_cast<uintptr_t>(mapping);
  const uintptr_t aligned = (start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  if (aligned > start) munmap(mapping, aligned - start);
  base_ = reinterpret_cast<std::byte*>(aligned);
  if (const size_t tail = start + reserved - (aligned + size_bytes_)) munmap(base_ + size_bytes_, tail);
}

MappedRegion::~MappedRegion() {
  if (base_ != nullptr) munmap(base_, size_bytes_);
}

MappedRegion::MappedRegion(MappedRegion&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}

class Arena::TouchJob final : public PieceJob {
 public:
  TouchJob(Arena& arena, std::vector<std::vector<Piece>> pieces, const Progress& progress)
      : PieceJob(std::move(pieces), kTouchPieceBytes), arena_(arena), progress_(progress) {}

  void run(int, int slice, uint32_t task, int worker) noexcept override {
    if (error_number_.load(std::memory_order_relaxed) != 0) return;
    const ScopedTouchPolicy policy(arena_.layout().slices[slice].node_ids);
    if (policy.error_number() != 0)
      policy_error_number_.store(policy.error_number(), std::memory_order_relaxed);
    size_t touched = 0;
    for (const Piece& piece : pieces(slice, task)) {
      if (const int error_number = populate(arena_.bytes().data() + piece.begin, piece.end - piece.begin)) {
        error_number_.store(error_number, std::memory_order_relaxed);
        return;
      }
      touched += piece.end - piece.begin;
    }
    const size_t done = touched_bytes_.fetch_add(touched, std::memory_order_relaxed) + touched;
    if (worker == 0 && progress_ &&
        !progress_("placing pages", static_cast<double>(done) / static_cast<double>(arena_.bytes().size())))
      error_number_.store(ECANCELED, std::memory_order_relaxed);
  }

  int error_number() const noexcept { return error_number_.load(std::memory_order_relaxed); }
  int policy_error_number() const noexcept { return policy_error_number_.load(std::memory_order_relaxed); }

 private:
  Arena& arena_;
  const Progress& progress_;
  std::atomic<size_t> touched_bytes_{0};
  std::atomic<int> error_number_{0};
  std::atomic<int> policy_error_number_{0};
};

class Arena::FillJob final : public PieceJob {
 public:
  FillJob(std::byte* base, size_t range_begin, std::vector<std::vector<Piece>> pieces, const Reader& read)
      : PieceJob(std::move(pieces), kFillPieceBytes), base_(base), range_begin_(range_begin), read_(read) {}

  void run(int, int slice, uint32_t task, int) noexcept override {
    for (const Piece& piece : pieces(slice, task)) {
      if (has_failed_.load(std::memory_order_relaxed)) return;
      if (!read_(base_ + piece.begin, piece.end - piece.begin, piece.begin - range_begin_))
        has_failed_.store(true, std::memory_order_relaxed);
    }
  }
  bool has_failed() const noexcept { return has_failed_.load(std::memory_order_relaxed); }

 private:
  std::byte* base_;
  size_t range_begin_;
  const Reader& read_;
  std::atomic<bool> has_failed_{false};
};

Arena::Arena(ArenaReservation reservation, std::shared_ptr<Pool> pool)
    : region_(std::move(reservation.region_)), pool_(std::move(pool)), extents_(pool_->slice_count()) {
  collect_extents(reservation.tensors_);
}

std::unique_ptr<Arena> Arena::place(ArenaReservation reservation, std::shared_ptr<Pool> pool,
                                    const PlaceOptions& options, const Progress& progress) {
  std::unique_ptr<Arena> arena(new Arena(std::move(reservation), std::move(pool)));
  arena->options_ = options;
  arena->advise_page_size(options);
  arena->touch(progress);
  arena->protect();
  arena->verify();
  if (options.repair) arena->repair_before_locking(options.limit_ratio);
  arena->lock(options);
  return arena;
}

// A huge page cannot be cut: with several slices in one matrix it would put the neighbour's rows here, too.
void Arena::advise_page_size(const PlaceOptions& options) {
  if (!options.allow_huge_pages || extents_.size() > 1) {
    madvise(bytes().data(), bytes().size(), MADV_NOHUGEPAGE);
    return;
  }
  const size_t wanted = std::min(options.huge_page_bytes, bytes().size()) / kHugePageBytes * kHugePageBytes;
  if (wanted > 0) madvise(bytes().data(), wanted, MADV_HUGEPAGE);
  // Where a node has no free block left, the kernel takes one of the next node before it makes do with small
  // pages: of an interleaved arena 76 % then lay on one of two nodes (tests/lab/scenario_tight_nodes.py).
  if (!extents_.empty() && layout().slices[0].node_ids.size() > 1 && wanted < bytes().size())
    madvise(bytes().data() + wanted, bytes().size() - wanted, MADV_NOHUGEPAGE);
}

// A page belongs to the slice that owns its first byte; a page that straddles a border is shared, and the
// planner keeps such borders few by cutting at page multiples (row_cut.hpp).
void Arena::collect_extents(const std::vector<SlicedTensor>& tensors) {
  const auto& slices = layout().slices;
  const auto append = [&](int slice, size_t begin, size_t end) {
    if (begin >= end) return;
    auto& list = extents_[slice];
    if (!list.empty() && list.back().end == begin) {
      list.back().end = end;
      return;
    }
    const size_t before = list.empty() ? 0 : list.back().bytes_before + list.back().end - list.back().begin;
    list.push_back({begin, end, before});
  };
  std::vector<SlicedTensor> ordered = tensors;
  std::sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  for (const SlicedTensor& tensor : ordered) {
    tensor_begins_.push_back(tensor.offset);
    const int64_t part_rows = tensor.row_count / tensor.part_count;
    const size_t part_bytes = tensor.row_bytes * static_cast<size_t>(part_rows);
    for (int64_t part = 0; part < tensor.matrix_count * tensor.part_count; ++part) {
      const size_t start = tensor.offset + part_bytes * static_cast<size_t>(part);
      for (int slice = 0; slice < static_cast<int>(slices.size()); ++slice) {
        const RowRange rows = cut_rows(part_rows, tensor.row_bytes, slices, slice);
        append(slice, page_ceiling(start + tensor.row_bytes * static_cast<size_t>(rows.begin)),
               page_ceiling(start + tensor.row_bytes * static_cast<size_t>(rows.end)));
      }
    }
  }
}

void Arena::touch(const Progress& progress) {
  std::vector<std::vector<Piece>> pieces;
  for (const auto& slice : extents_) pieces.push_back(pieces_of(slice, kTouchPieceBytes));
  TouchJob job(*this, std::move(pieces), progress);
  pool_->run(job);
  if (job.error_number() == ECANCELED) throw LoadCancelled();
  if (job.error_number() != 0)
    throw std::system_error(job.error_number(), std::generic_category(),
                            "touching the pages of an arena of " + std::to_string(bytes().size()) + " bytes");
  if (job.policy_error_number() != 0) note_failure("set_mempolicy", job.policy_error_number());
}

void Arena::protect() {
  std::vector<int> node_ids;
  for (const SliceSeat& slice : layout().slices)
    node_ids.insert(node_ids.end(), slice.node_ids.begin(), slice.node_ids.end());
  if (const int error_number = protect_from_balancing(bytes(), node_ids)) note_failure("mbind", error_number);
}

void Arena::verify() {
  outcome_.lowest_local_ratio = 1.0;
  for (int slice = 0; slice < static_cast<int>(extents_.size()); ++slice) {
    const auto& wanted = layout().slices[slice].node_ids;
    if (wanted.empty() || extents_[slice].empty()) continue;
    try {
      const std::vector<int32_t> nodes = sample_placement(slice, kVerifyPages);
      const auto local = std::count_if(nodes.begin(), nodes.end(), [&](int32_t node) {
        return std::find(wanted.begin(), wanted.end(), node) != wanted.end();
      });
      const double ratio = static_cast<double>(local) / static_cast<double>(nodes.size());
      outcome_.lowest_local_ratio = std::min(outcome_.lowest_local_ratio, ratio);
    } catch (const std::system_error& error) {
      note_failure("move_pages", error.code().value());
      return;
    }
  }
}

// Spilled pages may find room by now: what loading the rest of the model and the page cache took was given
// back.
void Arena::repair_before_locking(double limit_ratio) {
  if (outcome_.lowest_local_ratio >= limit_ratio) return;
  try {
    outcome_.repaired_pages = move_home();
  } catch (const std::system_error& error) {
    note_failure("move_pages", error.code().value());
    return;
  }
  if (outcome_.repaired_pages > 0) verify();
}

size_t Arena::repair() {
  const std::lock_guard guard(moving_);
  if (are_pages_held()) return 0;
  const size_t moved = move_home();
  if (moved > 0 && !outcome_.is_locked) {
    verify();
    lock(options_);
  }
  return moved;
}

void Arena::hold_pages() noexcept {
  const std::lock_guard guard(moving_);
  // Releases to the load in are_pages_held(), for those who ask without the lock.
  holds_.fetch_add(1, std::memory_order_release);
}

void Arena::release_pages() noexcept {
  const std::lock_guard guard(moving_);
  holds_.fetch_sub(1, std::memory_order_release);
}

size_t Arena::move_home() {
  size_t moved = 0;
  for (int slice = 0; slice < static_cast<int>(extents_.size()); ++slice) moved += move_home(slice);
  return moved;
}

size_t Arena::move_home(int slice) {
  constexpr size_t kPagesPerCall = 16384;
  const auto& wanted = layout().slices[slice].node_ids;
  if (wanted.size() != 1) return 0;
  size_t moved = 0;
  std::vector<void*> pages;
  const auto move = [&] {
    const std::vector<int32_t> nodes = nodes_of_pages(pages);
    std::vector<void*> astray;
    for (size_t index = 0; index < pages.size(); ++index)
      if (nodes[index] >= 0 && nodes[index] != wanted[0]) astray.push_back(pages[index]);
    moved += move_pages_to(astray, wanted[0]);
    pages.clear();
  };
  for (const Extent& extent : extents_[slice])
    for (size_t offset = extent.begin; offset < extent.end; offset += kPageBytes) {
      pages.push_back(bytes().data() + offset);
      if (pages.size() == kPagesPerCall) move();
    }
  move();
  return moved;
}

void Arena::lock(const PlaceOptions& options) {
  if (options.lock == LockMode::kNever || bytes().empty() ||
      outcome_.lowest_local_ratio < options.limit_ratio)
    return;
  if (mlock(bytes().data(), bytes().size()) == 0) {
    outcome_.is_locked = true;
  } else {
    outcome_.lock_error_number = errno;
  }
}

void Arena::note_failure(const char* call, int error_number) {
  outcome_.failures.push_back({call, error_number});
}

bool Arena::contains(const void* address) const noexcept {
  const auto* byte = static_cast<const std::byte*>(address);
  return byte >= bytes().data() && byte < bytes().data() + bytes().size();
}

size_t Arena::slice_bytes(int slice) const noexcept {
  const auto& list = extents_[slice];
  return list.empty() ? 0 : list.back().bytes_before + list.back().end - list.back().begin;
}

std::vector<std::span<const std::byte>> Arena::slice_pieces(int slice) const {
  std::vector<std::span<const std::byte>> pieces;
  for (const Extent& extent : extents_[slice])
    pieces.push_back(bytes().subspan(extent.begin, extent.end - extent.begin));
  return pieces;
}

bool Arena::fill(std::byte* destination, size_t size, const Reader& read) {
  const size_t begin = static_cast<size_t>(destination - bytes().data()), end = begin + size;
  std::vector<std::vector<Piece>> pieces;
  for (const auto& list : extents_) {
    std::vector<Piece> overlaps;
    auto extent =
        std::partition_point(list.begin(), list.end(), [&](const Extent& e) { return e.end <= begin; });
    for (; extent != list.end() && extent->begin < end; ++extent)
      overlaps.push_back({std::max(begin, extent->begin), std::min(end, extent->end)});
    pieces.push_back(pieces_of(overlaps, kFillPieceBytes));
  }
  FillJob job(bytes().data(), begin, std::move(pieces), read);
  pool_->run(job);
  return !job.has_failed();
}

std::vector<int32_t> Arena::sample_placement(int slice, size_t page_count) const {
  const auto& list = extents_[slice];
  const size_t pages = slice_bytes(slice) / kPageBytes;
  const size_t wanted = std::min(page_count, pages);
  std::vector<void*> addresses(wanted);
  for (size_t index = 0; index < wanted; ++index) {
    // Evenly spread, without running over 64 bits for any real arena.
    const size_t offset = pages / wanted * index * kPageBytes + pages % wanted * index / wanted * kPageBytes;
    const auto extent = std::prev(std::partition_point(
        list.begin(), list.end(), [&](const Extent& e) { return e.bytes_before <= offset; }));
    addresses[index] = bytes().data() + extent->begin + (offset - extent->bytes_before);
  }
  std::vector<int32_t> nodes = nodes_of_pages(addresses);
  std::vector<void*> unknown;
  for (size_t index = 0; index < wanted; ++index)
    if (nodes[index] < 0) unknown.push_back(addresses[index]);
  if (unknown.empty()) return nodes;
  // NUMA balancing hides pages from move_pages until their next access (ADR 0003).
  for (void* address : unknown) static_cast<void>(*static_cast<volatile char*>(address));
  const std::vector<int32_t> again = nodes_of_pages(unknown);
  for (size_t index = 0, next = 0; index < wanted; ++index)
    if (nodes[index] < 0) nodes[index] = again[next++];
  return nodes;
}

}  // namespace stratad
