// Pinned workers that compute one job at a time, cut into one slice of tasks per NUMA node.
//
// A job is a list of phases, a phase is a number of independent tasks in every slice. Each slice has one
// ticket: an atomic word that holds the batch epoch, the open phase and how many of its tasks nobody has
// claimed yet. Taking a task is one compare-and-swap on it, so a claim belongs to exactly one batch: a worker
// that wakes late finds another epoch in the ticket and can never take the next batch's work by mistake.
// Whoever finishes the last task of a phase opens the next one. Nobody waits for a worker that has claimed
// nothing, so a descheduled worker delays a batch by at most the one task it holds.
//
// The submitting thread works as worker 0. Workers spin for a bounded time and then sleep on a futex: an idle
// pool uses no CPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "pool/worker_layout.hpp"

namespace stratad {

// Work that the pool can run. All members are called by several threads at once and must not throw.
class Job {
 public:
  virtual ~Job() = default;
  virtual int phase_count() const noexcept = 0;  // at most 255: the ticket has eight bits for it
  // Tasks of one phase in one slice, at most Pool::kTaskLimit. May be 0. Must give the same answer every
  // time.
  virtual uint32_t task_count(int phase, int slice) const noexcept = 0;
  // Whether `phase` may start only after the phase before it has ended in every slice; else its own suffices.
  virtual bool joins_slices(int phase) const noexcept = 0;
  virtual void run(int phase, int slice, uint32_t task, int worker) noexcept = 0;
};

struct SliceCounters {
  uint64_t tasks = 0;
  uint64_t wait_nanoseconds = 0;   // between the slice's last task of a phase and the opening of the next one
  uint64_t drain_nanoseconds = 0;  // between the slice's last task of a job and the end of the job
};

class Pool {
 public:
  static constexpr uint32_t kTaskLimit = (1u << 24) - 1;

  // Starts layout.workers.size() - 1 threads. Throws std::invalid_argument for a layout that does not hold
  // and std::system_error when a thread cannot be started or pinned; no thread survives a throw.
  Pool(WorkerLayout layout, uint64_t spin_nanoseconds);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Runs the job to its end, taking part in it. One job at a time: concurrent callers queue on a mutex.
  void run(Job& job) noexcept;

  // Pins the calling thread to worker 0's CPU. Call it once on the thread that will submit.
  void adopt_calling_thread() const;

  int slice_count() const noexcept { return static_cast<int>(layout_.slices.size()); }
  int worker_count() const noexcept { return static_cast<int>(layout_.workers.size()); }
  // Workers that take tasks from this slice, at least 1.
  int workers_of(int slice) const noexcept { return workers_of_[slice]; }
  const WorkerLayout& layout() const noexcept { return layout_; }
  SliceCounters counters(int slice) const noexcept;

 private:
  // What workers hand over to each other when a task is taken, a phase ends or a job is done lies on one pair
  // of cache lines (the adjacent-line prefetcher of Intel CPUs fetches pairs): whoever ends a phase has the
  // line already when it opens the next one, and whoever takes a task gets the job along with it.
  struct alignas(128) SliceState {
    std::atomic<uint64_t> ticket{0};
    // Of the open phase; written before the ticket that opens it.
    Job* job = nullptr;
    uint32_t task_total = 0;
    std::atomic<uint32_t> unfinished{0};
    std::atomic<uint32_t> finished_epoch{0};  // the last job that ended; in worker 0's slice only
    uint64_t finished_at_nanoseconds = 0;
    alignas(128) std::atomic<uint32_t> bell{0};
    std::atomic<uint32_t> sleepers{0};
    alignas(128) std::atomic<uint64_t> tasks{0};
    std::atomic<uint64_t> wait_nanoseconds{0};
    std::atomic<uint64_t> drain_nanoseconds{0};
    std::vector<int> bells;  // slices whose bells wake the workers that serve this one
  };

  void worker_main(int worker, const std::stop_token& stop) noexcept;
  bool work(int worker) noexcept;
  bool has_work(int worker) const noexcept;
  // A ticket of which the holder has claimed the first unclaimed task; nothing where there is none to claim.
  using Claim = std::optional<uint64_t>;
  enum class Opening { kForAll, kWithClaim };
  Claim take(int slice) noexcept;
  Claim execute(int slice, uint64_t claimed, int worker) noexcept;
  Claim finish_phase(int slice, int phase) noexcept;
  Claim open_phase(int slice, int phase, Opening opening) noexcept;
  void note_arrival(bool ends) noexcept;
  void close_job() noexcept;
  SliceState& home_of(int worker) noexcept { return slices_[layout_.workers[worker].slice_index]; }
  void ring(int slice) noexcept;
  void wake_all() noexcept;
  template <class Ready>
  void wait_until(int worker, Ready ready) noexcept;

  const WorkerLayout layout_;
  const uint64_t spin_nanoseconds_;
  const int pauses_;                      // between two looks for work
  std::vector<std::vector<int>> serves_;  // by worker: the slices it takes tasks from
  std::vector<int> workers_of_;
  std::unique_ptr<SliceState[]> slices_;

  std::mutex submission_;
  Job* job_ = nullptr;  // written before the tickets that publish it; stable while a task is claimed
  uint32_t epoch_ = 0;  // likewise
  alignas(128) std::atomic<int> slices_unfinished_{0};
  std::vector<std::jthread> threads_;  // last: joined before anything above goes away
};

}  // namespace stratad
