#include "pool/pool.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>
#include <exception>
#include <future>
#include <stdexcept>
#include <string>

#include "placement/thread_affinity.hpp"

namespace stratad {
namespace {

// ticket = epoch (32 bits) | phase (8 bits) | unclaimed tasks (24 bits)
constexpr uint64_t pack(uint32_t epoch, int phase, uint32_t unclaimed) noexcept {
  return uint64_t{epoch} << 32 | uint64_t(phase) << 24 | unclaimed;
}
constexpr uint32_t unclaimed_of(uint64_t ticket) noexcept {
  return ticket & Pool::kTaskLimit;
}
constexpr int phase_of(uint64_t ticket) noexcept {
  return static_cast<int>(ticket >> 24 & 0xff);
}

uint64_t now_nanoseconds() noexcept {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                               std::chrono::nanoseconds(1));
}

void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A look at the ticket takes its cache line away from those who are at work on it, so a waiting worker does
// not look all the time. Measured with 2 workers (tests/bench/pool_bench.cpp): this often costs a barrier 30
// ns and saves a hand-over 100 to 200.
constexpr uint64_t kLookNanoseconds = 110;

// How many pauses fill that time: a pause takes 24 ns on AMD Zen 4 and about twice that on Intel since
// Skylake.
int pauses_between_looks() noexcept {
  constexpr int kTries = 16, kPauses = 64;
  uint64_t shortest = UINT64_MAX;  // the others were interrupted
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const uint64_t begin = now_nanoseconds();
    for (int pause = 0; pause < kPauses; ++pause) relax();
    shortest = std::min(shortest, now_nanoseconds() - begin);
  }
  return static_cast<int>(
      std::clamp<uint64_t>(kPauses * kLookNanoseconds / std::max<uint64_t>(shortest, 1) + 1, 1, 16));
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}
void futex_wake_all(std::atomic<uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void name_calling_thread(int worker) noexcept {
  char name[16];
  std::snprintf(name, sizeof name, "stratad-w%d", worker);
  pthread_setname_np(pthread_self(), name);
}

}  // namespace

void WorkerLayout::validate() const {
  if (slices.empty()) throw std::invalid_argument("a worker layout needs at least one slice");
  if (workers.empty()) throw std::invalid_argument("a worker layout needs at least one worker");
  std::vector<int> seats(slices.size());
  for (const SliceSeat& slice : slices)
    if (slice.weight < 1) throw std::invalid_argument("a slice's weight must be at least 1");
  for (const WorkerSeat& worker : workers) {
    if (worker.slice_index < 0 || worker.slice_index >= static_cast<int>(slices.size()))
      throw std::invalid_argument("a worker names slice " + std::to_string(worker.slice_index) + " of " +
                                  std::to_string(slices.size()));
    ++seats[worker.slice_index];
  }
  const bool has_orphan = std::find(seats.begin(), seats.end(), 0) != seats.end();
  if (has_orphan && workers.size() >= slices.size())
    throw std::invalid_argument("every slice needs a worker of its own");
}

Pool::Pool(WorkerLayout layout, uint64_t spin_nanoseconds)
    : layout_(std::move(layout)), spin_nanoseconds_(spin_nanoseconds), pauses_(pauses_between_looks()) {
  layout_.validate();
  serves_.resize(layout_.workers.size());
  workers_of_.resize(layout_.slices.size());
  slices_ = std::make_unique<SliceState[]>(layout_.slices.size());
  for (int worker = 0; worker < worker_count(); ++worker)
    serves_[worker].push_back(layout_.workers[worker].slice_index);
  for (int worker = 0; worker < worker_count(); ++worker) ++workers_of_[layout_.workers[worker].slice_index];
  for (int slice = 0; slice < slice_count(); ++slice) {
    slices_[slice].bells.push_back(slice);
    if (workers_of_[slice] > 0) continue;
    const int adopter = slice % worker_count();
    serves_[adopter].push_back(slice);
    workers_of_[slice] = 1;
    slices_[slice].bells = {layout_.workers[adopter].slice_index};
  }

  std::vector<std::future<void>> started;
  for (int worker = 1; worker < worker_count(); ++worker) {
    std::promise<void> promise;
    started.push_back(promise.get_future());
    threads_.emplace_back([this, worker, promise = std::move(promise)](const std::stop_token& stop) mutable {
      try {
        name_calling_thread(worker);
        if (const auto cpu_id = layout_.workers[worker].cpu_id) pin_calling_thread(*cpu_id);
      } catch (...) {
        promise.set_exception(std::current_exception());
        return;
      }
      promise.set_value();
      worker_main(worker, stop);
    });
  }
  try {
    for (auto& start : started) start.get();
  } catch (...) {
    for (auto& thread : threads_) thread.request_stop();
    wake_all();
    throw;
  }
}

Pool::~Pool() {
  for (auto& thread : threads_) thread.request_stop();
  wake_all();
}

void Pool::adopt_calling_thread() const {
  if (const auto cpu_id = layout_.workers[0].cpu_id) pin_calling_thread(*cpu_id);
}

SliceCounters Pool::counters(int slice) const noexcept {
  const SliceState& state = slices_[slice];
  return {state.tasks.load(std::memory_order_relaxed), state.wait_nanoseconds.load(std::memory_order_relaxed),
          state.drain_nanoseconds.load(std::memory_order_relaxed)};
}

void Pool::run(Job& job) noexcept {
  const std::lock_guard guard(submission_);
  job_ = &job;
  ++epoch_;
  slices_unfinished_.store(slice_count(), std::memory_order_relaxed);
  const int home = layout_.workers[0].slice_index;
  for (int slice = 0; slice < slice_count(); ++slice)
    if (slice != home) open_phase(slice, 0, Opening::kForAll);
  Claim claim = open_phase(home, 0, Opening::kWithClaim);
  while (claim) claim = execute(home, *claim, 0);
  // Pairs with the store in close_job(): everything the tasks wrote is visible to the caller.
  const auto finished = [this] {
    return home_of(0).finished_epoch.load(std::memory_order_seq_cst) == epoch_;
  };
  while (!finished()) {
    if (!work(0)) wait_until(0, [&] { return finished() || has_work(0); });
  }
}

void Pool::worker_main(int worker, const std::stop_token& stop) noexcept {
  while (!stop.stop_requested()) {
    if (!work(worker)) wait_until(worker, [&] { return stop.stop_requested() || has_work(worker); });
  }
}

bool Pool::has_work(int worker) const noexcept {
  for (int slice : serves_[worker])
    if (unclaimed_of(slices_[slice].ticket.load(std::memory_order_seq_cst)) > 0) return true;
  return false;
}

// Takes and runs tasks until the worker's slices have none to claim. Returns whether it ran any.
bool Pool::work(int worker) noexcept {
  bool worked = false;
  for (int slice : serves_[worker])
    for (Claim claim = take(slice); claim; worked = true) claim = execute(slice, *claim, worker);
  return worked;
}

Pool::Claim Pool::take(int slice) noexcept {
  std::atomic<uint64_t>& word = slices_[slice].ticket;
  uint64_t ticket = word.load(std::memory_order_relaxed);
  while (unclaimed_of(ticket) > 0) {
    // Acquire pairs with the store in open_phase(): job, totals and the former phase's results are visible.
    if (word.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acquire, std::memory_order_relaxed))
      return ticket;
  }
  return {};
}

// Runs the claimed task and those that can be claimed after it, and counts them all at once: the phase cannot
// end before. Whoever finishes a phase opens the next one with its first task already claimed: taking it like
// the others would fetch the ticket back from those who have just read it.
Pool::Claim Pool::execute(int slice, uint64_t claimed, int worker) noexcept {
  SliceState& state = slices_[slice];
  const int phase = phase_of(claimed);
  const uint32_t total = state.task_total;
  uint32_t finished = 0;
  for (Claim claim = claimed; claim; claim = take(slice), ++finished)
    state.job->run(phase, slice, total - unclaimed_of(*claim), worker);
  // Acquire-release: the last one to finish has seen what every other task of the phase wrote.
  if (state.unfinished.fetch_sub(finished, std::memory_order_acq_rel) != finished) return {};
  state.tasks.fetch_add(total, std::memory_order_relaxed);
  return finish_phase(slice, phase);
}

Pool::Claim Pool::open_phase(int slice, int phase, Opening opening) noexcept {
  SliceState& state = slices_[slice];
  const uint32_t total = job_->task_count(phase, slice);
  if (total == 0) return finish_phase(slice, phase);
  state.job = job_;
  state.task_total = total;
  state.unfinished.store(total, std::memory_order_relaxed);
  const uint64_t ticket = pack(epoch_, phase, total);
  const bool with_claim = opening == Opening::kWithClaim;
  // Sequentially consistent, as wait_until() needs it.
  state.ticket.store(with_claim ? ticket - 1 : ticket, std::memory_order_seq_cst);
  if (!with_claim || total > 1) ring(slice);
  return with_claim ? Claim(ticket) : Claim();
}

// Called by whoever finished the slice's last task of `phase`: goes on to the next phase, or hands over to
// the last slice to arrive where the slices join.
Pool::Claim Pool::finish_phase(int slice, int phase) noexcept {
  const int next = phase + 1;
  const bool ends = next == job_->phase_count();
  if (!ends && (slice_count() == 1 || !job_->joins_slices(next)))
    return open_phase(slice, next, Opening::kWithClaim);
  if (slice_count() > 1) {
    slices_[slice].finished_at_nanoseconds = now_nanoseconds();
    if (slices_unfinished_.fetch_sub(1, std::memory_order_acq_rel) != 1) return {};
    note_arrival(ends);
  }
  if (ends) {
    close_job();
    return {};
  }
  slices_unfinished_.store(slice_count(), std::memory_order_relaxed);
  // A slice opened here can finish, be reopened and even end the job before the loop comes round to the next:
  // no; the job cannot pass the next join before every slice of this loop was opened and finished.
  for (int other = 0; other < slice_count(); ++other)
    if (other != slice) open_phase(other, next, Opening::kForAll);
  return open_phase(slice, next, Opening::kWithClaim);
}

// All slices have arrived: how long each of them stood there.
void Pool::note_arrival(bool ends) noexcept {
  const uint64_t joined_at = now_nanoseconds();
  for (int slice = 0; slice < slice_count(); ++slice) {
    SliceState& state = slices_[slice];
    auto& counter = ends ? state.drain_nanoseconds : state.wait_nanoseconds;
    counter.fetch_add(joined_at - state.finished_at_nanoseconds, std::memory_order_relaxed);
  }
}

void Pool::close_job() noexcept {
  home_of(0).finished_epoch.store(epoch_, std::memory_order_seq_cst);
  ring(layout_.workers[0].slice_index);
}

// What has been published before, a ticket or the end of the job, and `sleepers` are written and read in one
// total order with the sleeper's accesses in wait_until(): either the sleeper sees what was published, or we
// see the sleeper. Where nobody sleeps, nothing is written: the bell's cache line stays where it is.
void Pool::ring(int slice) noexcept {
  for (int bell : slices_[slice].bells) {
    SliceState& state = slices_[bell];
    if (state.sleepers.load(std::memory_order_seq_cst) == 0) continue;
    state.bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(state.bell);
  }
}

// For a stop request, which is no part of that order.
void Pool::wake_all() noexcept {
  for (int slice = 0; slice < slice_count(); ++slice) {
    slices_[slice].bell.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(slices_[slice].bell);
  }
}

template <class Ready>
void Pool::wait_until(int worker, Ready ready) noexcept {
  constexpr int kChecksPerClockRead = 16;
  uint64_t deadline = 0;
  do {
    for (int check = 0; check < kChecksPerClockRead; ++check) {
      if (ready()) return;
      for (int pause = 0; pause < pauses_; ++pause) relax();
    }
    // Reading the clock costs as much as a hand-over: not before it is clear that this wait is a long one.
    if (deadline == 0) deadline = now_nanoseconds() + spin_nanoseconds_;
  } while (now_nanoseconds() < deadline);

  SliceState& home = home_of(worker);
  home.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t bell = home.bell.load(std::memory_order_seq_cst);
  if (!ready()) futex_wait(home.bell, bell);
  home.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace stratad
