// Row cuts and the arena: every byte belongs to one slice, is filled by it, and can be asked for its node.
#include "arena/arena.hpp"

#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <system_error>
#include <vector>

#include "arena/row_cut.hpp"
#include "check.hpp"

namespace {

using namespace stratad;
using stratad::test::throws;

constexpr size_t kPage = 4096;

std::vector<SliceSeat> seats(std::vector<int> weights) {
  std::vector<SliceSeat> slices;
  for (int weight : weights) slices.push_back({{}, weight});
  return slices;
}

void test_cuts_cover_all_rows_in_order() {
  for (int64_t rows : {1, 15, 16, 17, 255, 256, 768, 2048, 5000})
    for (size_t row_bytes : {34u, 144u, 432u, 1152u, 4096u})
      for (const auto& slices :
           {seats({1}), seats({1, 1}), seats({1, 1, 1}), seats({3, 1}), seats({11, 11, 10, 11})}) {
        int64_t next = 0;
        for (int slice = 0; slice < static_cast<int>(slices.size()); ++slice) {
          const RowRange range = cut_rows(rows, row_bytes, slices, slice);
          CHECK(range.begin == next && range.end >= range.begin);
          CHECK(range.end == rows || range.end % kRowUnit == 0);
          next = range.end;
        }
        CHECK(next == rows);
      }
}

void test_borders_fall_on_pages_where_that_is_fair() {
  const auto slices = seats({1, 1});
  CHECK(cut_rows(768, 1152, slices, 0).end * 1152 % kPage == 0);  // a Qwen3-30B gate matrix in Q4_K
  CHECK(cut_rows(2048, 432, slices, 0).end * 432 % kPage == 0);   // and its down matrix
  CHECK(cut_rows(64, 1153, slices, 0).end == 32);                 // no fair page border: halves all the same
}

void test_weights_share_the_rows() {
  const RowRange large = cut_rows(4096, kPage, seats({3, 1}), 0);
  CHECK(large.end == 3072);
}

std::shared_ptr<Pool> pool_of(int workers, int slices) {
  WorkerLayout layout;
  layout.slices.resize(static_cast<size_t>(slices));
  for (int worker = 0; worker < workers; ++worker) layout.workers.push_back({std::nullopt, worker % slices});
  return std::make_shared<Pool>(layout, 0);
}

// Three tensors: page-sized rows, rows that straddle pages, and a merged one.
ArenaReservation reservation() {
  const SlicedTensor tensors[] = {
      {0, kPage, 64, 3, 1}, {192 * kPage, 1152, 96, 5, 1}, {360 * kPage, 576, 128, 4, 2}};
  ArenaReservation reserved(440 * kPage);
  for (const SlicedTensor& tensor : tensors) reserved.announce(tensor);
  return reserved;
}

uint8_t pattern(size_t offset) {
  return static_cast<uint8_t>(offset * 2654435761u >> 13);
}

void test_every_byte_is_filled_once(int workers, int slices) {
  const auto arena = Arena::place(reservation(), pool_of(workers, slices), {}, {});
  std::atomic<size_t> read_bytes{0};
  for (const auto& [begin, size] :
       {std::pair{0 * kPage, 192 * kPage}, {192 * kPage, 5 * 96 * 1152ul}, {360 * kPage, 4 * 128 * 576ul}}) {
    const bool is_filled = arena->fill(arena->bytes().data() + begin, size,
                                       [&, start = begin](std::byte* to, size_t count, size_t offset) {
                                         for (size_t index = 0; index < count; ++index)
                                           to[index] = std::byte{pattern(start + offset + index)};
                                         read_bytes += count;
                                         return true;
                                       });
    CHECK(is_filled);
    bool is_right = true;
    for (size_t index = 0; index < size; ++index)
      is_right = is_right && arena->bytes()[begin + index] == std::byte{pattern(begin + index)};
    CHECK(is_right);
  }
  CHECK(read_bytes == 192 * kPage + 5 * 96 * 1152 + 4 * 128 * 576);
  size_t total = 0;
  for (int slice = 0; slice < slices; ++slice) total += arena->slice_bytes(slice);
  CHECK(total == 192 * kPage + 135 * kPage + 72 * kPage);  // each tensor's pages, to its last one
}

void test_a_failed_read_is_reported() {
  const auto arena = Arena::place(reservation(), pool_of(2, 2), {}, {});
  CHECK(!arena->fill(arena->bytes().data(), 192 * kPage,
                     [](std::byte*, size_t, size_t offset) { return offset < kPage; }));
}

void test_samples_name_a_node_for_every_touched_page() {
  const auto arena = Arena::place(reservation(), pool_of(2, 3), {}, {});
  for (int slice = 0; slice < 3; ++slice) {
    const auto nodes = arena->sample_placement(slice, 1000);
    CHECK(nodes.size() == arena->slice_bytes(slice) / kPage);
    for (int32_t node : nodes) CHECK(node >= 0);
    CHECK(arena->sample_placement(slice, 7).size() == 7);
  }
}

void test_placing_can_be_cancelled() {
  CHECK(throws<LoadCancelled>(
      [] { Arena::place(reservation(), pool_of(1, 1), {}, [](const char*, double) { return false; }); }));
}

void test_a_low_lock_limit_is_reported_not_fatal() {
  rlimit former{}, low{0, 0};
  getrlimit(RLIMIT_MEMLOCK, &former);
  low.rlim_max = former.rlim_max;
  setrlimit(RLIMIT_MEMLOCK, &low);
  const auto arena = Arena::place(reservation(), pool_of(1, 1), {.lock = LockMode::kTry}, {});
  // A privileged process may lock whatever the limit says.
  CHECK(arena->outcome().is_locked == (arena->outcome().lock_error_number == 0));
  const auto unlocked = Arena::place(reservation(), pool_of(1, 1), {.lock = LockMode::kNever}, {});
  CHECK(!unlocked->outcome().is_locked && unlocked->outcome().lock_error_number == 0);
  setrlimit(RLIMIT_MEMLOCK, &former);
}

void test_pages_on_the_wrong_node_are_never_locked() {
  auto pool = pool_of(1, 1);
  WorkerLayout layout = pool->layout();
  layout.slices[0].node_ids = {63};  // no such node: whatever happens, no page lies there
  const auto arena =
      Arena::place(reservation(), std::make_shared<Pool>(layout, 0), {.lock = LockMode::kTry}, {});
  CHECK(arena->outcome().lowest_local_ratio == 0.0);
  CHECK(!arena->outcome().is_locked);
  CHECK(!arena->outcome().failures.empty());
}

void test_repairing_what_is_in_place_moves_nothing() {
  auto pool = pool_of(1, 1);
  WorkerLayout layout = pool->layout();
  layout.slices[0].node_ids = {0};
  const auto arena =
      Arena::place(reservation(), std::make_shared<Pool>(layout, 0), {.lock = LockMode::kNever}, {});
  CHECK(arena->outcome().lowest_local_ratio == 1.0 && arena->outcome().repaired_pages == 0);
  CHECK(arena->repair() == 0);
  const auto unplaced = Arena::place(reservation(), pool, {.lock = LockMode::kNever}, {});
  CHECK(unplaced->repair() == 0);
}

}  // namespace

int main() {
  test_cuts_cover_all_rows_in_order();
  test_borders_fall_on_pages_where_that_is_fair();
  test_weights_share_the_rows();
  for (int workers : {1, 2, 4})
    for (int slices : {1, 2, 3}) test_every_byte_is_filled_once(workers, slices);
  test_a_failed_read_is_reported();
  test_samples_name_a_node_for_every_touched_page();
  test_placing_can_be_cancelled();
  test_a_low_lock_limit_is_reported_not_fatal();
  test_pages_on_the_wrong_node_are_never_locked();
  test_repairing_what_is_in_place_moves_nothing();
  std::printf("arena: %d failures\n", stratad::test::failures);
  return stratad::test::failures == 0 ? 0 : 1;
}
