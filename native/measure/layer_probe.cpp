#include "measure/layer_probe.hpp"

#include <atomic>
#include <chrono>
#include <optional>
#include <span>
#include <stdexcept>

#include "placement/thread_affinity.hpp"

namespace stratad {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLayersBetweenQuestions = 64;
constexpr int kMostPhases = 255;

void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void spin_until(Clock::time_point end) noexcept {
  while (Clock::now() < end) relax();
}

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

class LayerJob final : public Job {
 public:
  LayerJob(const Pool& pool, const LayerShape& shape)
      : pool_(pool), shape_(shape), task_(duration_of(shape.task_seconds)) {}

  int phase_count() const noexcept override { return shape_.phase_count; }
  uint32_t task_count(int, int slice) const noexcept override {
    const int each = shape_.meets ? 1 : shape_.tasks_per_worker;
    return static_cast<uint32_t>(pool_.workers_of(slice) * each);
  }
  bool joins_slices(int) const noexcept override { return true; }
  void run(int, int, uint32_t, int) noexcept override {
    if (shape_.meets) return meet();
    if (task_ > Clock::duration::zero()) spin_until(Clock::now() + task_);
  }

 private:
  void meet() noexcept {
    const auto members = static_cast<uint64_t>(pool_.worker_count());
    const uint64_t arrival = arrived_.fetch_add(1, std::memory_order_acq_rel);
    const uint64_t all = (arrival / members + 1) * members;
    // Pairs with the addition of whoever comes last.
    while (arrived_.load(std::memory_order_acquire) < all) relax();
  }

  const Pool& pool_;
  const LayerShape shape_;
  const Clock::duration task_;
  alignas(128) std::atomic<uint64_t> arrived_{0};
};

void require_runnable(const Pool& pool, const LayerShape& shape, int layer_count) {
  if (shape.phase_count < 1 || shape.phase_count > kMostPhases || shape.tasks_per_worker < 1 ||
      layer_count < 1)
    throw std::invalid_argument("a layer has 1 to 255 phases and at least one task for each worker");
  if (!(shape.task_seconds >= 0 && shape.task_seconds < 1) ||
      !(shape.gap_seconds >= 0 && shape.gap_seconds < 1))
    throw std::invalid_argument("tasks and gaps take less than a second");
  if (shape.meets && pool.worker_count() < pool.slice_count())
    throw std::invalid_argument("workers can meet only where every slice has its own");
}

}  // namespace

std::vector<double> measure_layers(Pool& pool, const LayerShape& shape, int layer_count, double limit_seconds,
                                   const GoOn& go_on) {
  require_runnable(pool, shape, layer_count);
  const std::optional<int> seat = pool.layout().workers[0].cpu_id;
  std::optional<ScopedAffinity> pinned;
  if (seat) pinned.emplace(std::span(&*seat, 1));
  LayerJob job(pool, shape);
  const double work_seconds =
      shape.meets ? 0 : shape.phase_count * shape.tasks_per_worker * shape.task_seconds;
  const Clock::duration gap = duration_of(shape.gap_seconds);
  const Clock::time_point end = Clock::now() + duration_of(limit_seconds);
  std::vector<double> seconds;
  for (int layer = 0; layer < layer_count; ++layer) {
    const Clock::time_point start = Clock::now();
    pool.run(job);
    const Clock::time_point done = Clock::now();
    seconds.push_back(std::chrono::duration<double>(done - start).count() - work_seconds);
    if (done >= end) break;
    if (layer % kLayersBetweenQuestions == kLayersBetweenQuestions - 1 && go_on && !go_on()) break;
    if (gap > Clock::duration::zero()) spin_until(done + gap);
  }
  return seconds;
}

}  // namespace stratad
