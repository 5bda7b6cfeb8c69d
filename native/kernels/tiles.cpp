#include "kernels/tiles.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <span>
#include <system_error>
#include <thread>

#include "kernels/kernel_table.hpp"
#include "placement/thread_affinity.hpp"

namespace stratad {
namespace {

TileObjection ask_once() {
  static const TileObjection answer = []() -> TileObjection {
    if (const auto objection = objection_to(tile_support())) return objection;
    return ask_for_tiles();
  }();
  return answer;
}

constexpr const char* kWrongProducts = "tile registers multiplied wrongly";

// One task for each worker, which ends when all of them have begun theirs: so each has one.
class WorkerCheckJob final : public Job {
 public:
  WorkerCheckJob(const Pool& pool, bool (*check)() noexcept) : pool_(pool), check_(check) {}

  int phase_count() const noexcept override { return 1; }
  uint32_t task_count(int, int slice) const noexcept override {
    uint32_t count = 0;
    for (const WorkerSeat& worker : pool_.layout().workers) count += worker.slice_index == slice;
    return count;
  }
  bool joins_slices(int) const noexcept override { return false; }
  void run(int, int, uint32_t, int) noexcept override {
    if (!check_()) failing_.fetch_add(1, std::memory_order_relaxed);
    // Pairs with the addition of whoever comes last; the end of the job publishes failing_.
    begun_.fetch_add(1, std::memory_order_acq_rel);
    while (begun_.load(std::memory_order_acquire) < pool_.worker_count()) std::this_thread::yield();
  }
  int failing() const noexcept { return failing_.load(std::memory_order_relaxed); }

 private:
  const Pool& pool_;
  bool (*const check_)() noexcept;
  std::atomic<int> begun_{0}, failing_{0};
};

}  // namespace

TileObjection objection_to(const TileSupport& support) {
  if (!support.has_tiles || !support.multiplies_bytes)
    return "this CPU has no tile registers that multiply bytes (AMX-INT8)";
  if (!support.has_known_shape) return "this CPU's tile registers are not eight of 16 rows of 64 bytes";
  if (!support.has_vectors) return "this CPU has tile registers, but not the AVX-512 that goes with them";
  if (!support.is_state_enabled) return "the operating system does not save this CPU's tile registers";
  return std::nullopt;
}

TileObjection ask_for_tiles() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM, since Linux 5.16
  constexpr int kTileState = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileState) == 0) return std::nullopt;
  return "the kernel refuses this process tile registers: " + std::generic_category().message(errno);
}

int count_failing_workers(Pool& pool, bool (*check)() noexcept) {
  const std::optional<int> seat = pool.layout().workers[0].cpu_id;
  std::optional<ScopedAffinity> pinned;
  if (seat) pinned.emplace(std::span(&*seat, 1));
  WorkerCheckJob job(pool, check);
  pool.run(job);
  return job.failing();
}

TileObjection prepare_tiles() {
  if (const auto objection = ask_once()) return objection;
  if (!are_tile_products_right()) return kWrongProducts;
  return std::nullopt;
}

TileObjection prepare_tiles(Pool& pool) {
  if (const auto objection = ask_once()) return objection;
  const int failing = count_failing_workers(pool, are_tile_products_right);
  if (failing == 0) return std::nullopt;
  return std::string(kWrongProducts) + " on " + std::to_string(failing) + " of " +
         std::to_string(pool.worker_count()) + " workers";
}

}  // namespace stratad
