// What handing work to the pool and joining it costs, against OpenMP with the same threads on the same CPUs.
//
//   dispatch  a job of one tiny task for each worker, to its end, over a parallel region. The pool's tasks
//   are taken
//             by whoever comes first, so a worker that is late is not waited for.
//   handover  the same where each task waits until all have begun, in both arms: every worker takes part.
//   barrier   one phase after the other in a job, over barriers in a region, with all workers meeting in
//   each.
//
// One line for each of them and round: name, ratio, nanoseconds of the pool, nanoseconds of OpenMP.
// usage: pool_bench WORKERS ROUNDS
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "placement/thread_affinity.hpp"
#include "pool/pool.hpp"

namespace stratad {
namespace {

constexpr int kOperations = 2000;
constexpr int kPhases = 200, kRepetitions = 10;
constexpr int kBatches = 7;
constexpr std::chrono::milliseconds kSettleTime(30);

struct alignas(128) Result {
  volatile uint32_t value;
};
Result g_results[256];

// A place where a number of threads meet again and again.
class Meeting {
 public:
  explicit Meeting(int members) : members_(static_cast<uint64_t>(members)) {}

  void meet() noexcept {
    const uint64_t arrival = arrived_.fetch_add(1, std::memory_order_acq_rel);
    const uint64_t all = (arrival / members_ + 1) * members_;
    while (arrived_.load(std::memory_order_acquire) < all) __builtin_ia32_pause();
  }

 private:
  const uint64_t members_;
  alignas(128) std::atomic<uint64_t> arrived_{0};
};

// One task for each worker in each phase.
class TinyJob final : public Job {
 public:
  TinyJob(int workers, int phases) : workers_(static_cast<uint32_t>(workers)), phases_(phases) {}
  int phase_count() const noexcept override { return phases_; }
  uint32_t task_count(int, int) const noexcept override { return workers_; }
  bool joins_slices(int) const noexcept override { return true; }
  void run(int, int, uint32_t task, int) noexcept override { g_results[task].value = task; }

 private:
  uint32_t workers_;
  int phases_;
};

// Likewise, and all of them meet.
class MeetingJob final : public Job {
 public:
  MeetingJob(Meeting& meeting, int workers, int phases)
      : meeting_(meeting), workers_(static_cast<uint32_t>(workers)), phases_(phases) {}
  int phase_count() const noexcept override { return phases_; }
  uint32_t task_count(int, int) const noexcept override { return workers_; }
  bool joins_slices(int) const noexcept override { return true; }
  void run(int, int, uint32_t, int) noexcept override { meeting_.meet(); }

 private:
  Meeting& meeting_;
  uint32_t workers_;
  int phases_;
};

template <class Action>
double nanoseconds_each(int operations, Action action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() /
         operations;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Medians over batches, the two arms batch by batch in turn.
struct Pair {
  double pool, openmp;
};
template <class Ours, class Theirs>
Pair measure(int operations, Ours ours, Theirs theirs) {
  std::vector<double> pool, openmp;
  for (int batch = 0; batch < kBatches; ++batch) {
    // The other arm's threads spin on for a while on the same CPUs.
    std::this_thread::sleep_for(kSettleTime);
    ours();
    pool.push_back(nanoseconds_each(operations, ours));
    std::this_thread::sleep_for(kSettleTime);
    theirs();
    openmp.push_back(nanoseconds_each(operations, theirs));
  }
  return {median(pool), median(openmp)};
}

void report(const char* name, const Pair& pair) {
  std::printf("%s %.3f %.0f %.0f\n", name, pair.pool / pair.openmp, pair.pool, pair.openmp);
  std::fflush(stdout);
}

WorkerLayout layout_of(int workers) {
  WorkerLayout layout;
  layout.slices.resize(1);
  for (int worker = 0; worker < workers; ++worker) layout.workers.push_back({worker, 0});
  return layout;
}

int run(int workers, int rounds) {
  // Both sets of threads stay awake during a batch of the other one unless they give up spinning soon.
  Pool pool(layout_of(workers), 50'000);
  pool.adopt_calling_thread();
  omp_set_num_threads(workers);
#pragma omp parallel
  pin_calling_thread(omp_get_thread_num());
  Meeting meeting(workers);
  TinyJob tiny(workers, 1);
  MeetingJob single(meeting, workers, 1), phases(meeting, workers, kPhases);
  for (int round = 0; round < rounds; ++round) {
    report("dispatch", measure(
                           kOperations,
                           [&] {
                             for (int operation = 0; operation < kOperations; ++operation) pool.run(tiny);
                           },
                           [&] {
                             for (int operation = 0; operation < kOperations; ++operation) {
#pragma omp parallel
                               g_results[omp_get_thread_num()].value = 1;
                             }
                           }));
    report("handover", measure(
                           kOperations,
                           [&] {
                             for (int operation = 0; operation < kOperations; ++operation) pool.run(single);
                           },
                           [&] {
                             for (int operation = 0; operation < kOperations; ++operation) {
#pragma omp parallel
                               meeting.meet();
                             }
                           }));
    report("barrier", measure(
                          kRepetitions * kPhases,
                          [&] {
                            for (int operation = 0; operation < kRepetitions; ++operation) pool.run(phases);
                          },
                          [&] {
                            for (int operation = 0; operation < kRepetitions; ++operation) {
#pragma omp parallel
                              for (int phase = 0; phase < kPhases; ++phase) {
                                meeting.meet();
#pragma omp barrier
                              }
                            }
                          }));
  }
  return 0;
}

}  // namespace
}  // namespace stratad

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: pool_bench WORKERS ROUNDS\n");
    return 2;
  }
  return stratad::run(std::atoi(arguments[1]), std::atoi(arguments[2]));
}
