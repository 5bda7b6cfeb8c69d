// The pool alone, over plain data that one phase writes and the next one reads: under the thread sanitizer a
// missing happens-before edge is a report, without it a wrong value. (With acq_rel weakened to relaxed on
// SliceState::unfinished the sanitizer reports races here: tried when this test was written.)
#include "pool/pool.hpp"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "check.hpp"

namespace {

using stratad::Job;
using stratad::Pool;
using stratad::WorkerLayout;
using stratad::test::throws;

WorkerLayout layout_of(int workers, int slices) {
  WorkerLayout layout;
  layout.slices.resize(static_cast<size_t>(slices));
  for (int worker = 0; worker < workers; ++worker) layout.workers.push_back({std::nullopt, worker % slices});
  return layout;
}

// Four phases over an array: fill, mirror, an empty phase, mirror back. Element i belongs to slice i %
// slices.
class MirrorJob final : public Job {
 public:
  MirrorJob(int size, int slices)
      : front_(static_cast<size_t>(size)), back_(static_cast<size_t>(size)), slices_(slices) {}

  int phase_count() const noexcept override { return 4; }
  uint32_t task_count(int phase, int slice) const noexcept override {
    if (phase == 2) return 0;
    return static_cast<uint32_t>((static_cast<int>(front_.size()) - slice + slices_ - 1) / slices_);
  }
  bool joins_slices(int phase) const noexcept override { return phase != 2; }
  void run(int phase, int slice, uint32_t task, int) noexcept override {
    const size_t index = task * static_cast<size_t>(slices_) + static_cast<size_t>(slice),
                 mirrored = front_.size() - 1 - index;
    if (phase == 0) front_[index] = static_cast<int>(index) + round;
    if (phase == 1) back_[index] = front_[mirrored];
    if (phase == 3) front_[index] = back_[mirrored] + 1;
  }
  bool is_right() const {
    for (size_t index = 0; index < front_.size(); ++index)
      if (front_[index] != static_cast<int>(index) + round + 1) return false;
    return true;
  }
  int round = 0;  // written by the submitter, read by the workers

 private:
  std::vector<int> front_, back_;
  int slices_;
};

// Every task must run exactly once in the batch it belongs to: a stray claim would hit a foreign batch's
// marks.
class OnceJob final : public Job {
 public:
  OnceJob(int slices, uint32_t tasks) : runs_(static_cast<size_t>(slices), std::vector<int>(tasks)) {}
  int phase_count() const noexcept override { return 1; }
  uint32_t task_count(int, int slice) const noexcept override {
    return static_cast<uint32_t>(runs_[slice].size());
  }
  bool joins_slices(int) const noexcept override { return false; }
  void run(int, int slice, uint32_t task, int) noexcept override { ++runs_[slice][task]; }
  bool ran_each(int times) const {
    for (const auto& slice : runs_)
      for (int run : slice)
        if (run != times) return false;
    return true;
  }

 private:
  std::vector<std::vector<int>> runs_;
};

// Inside a slice the next phase may start early; it must still see its own slice's results.
class SliceLocalJob final : public Job {
 public:
  explicit SliceLocalJob(int slices)
      : sums_(static_cast<size_t>(slices)), parts_(static_cast<size_t>(slices), std::vector<int>(kParts)) {}
  static constexpr int kParts = 13;
  int phase_count() const noexcept override { return 2; }
  uint32_t task_count(int phase, int) const noexcept override { return phase == 0 ? kParts : 1; }
  bool joins_slices(int) const noexcept override { return false; }
  void run(int phase, int slice, uint32_t task, int) noexcept override {
    if (phase == 0) {
      parts_[slice][task] = static_cast<int>(task) + 1;
      return;
    }
    sums_[slice] = 0;
    for (int part : parts_[slice]) sums_[slice] += part;
  }
  bool is_right() const {
    for (int sum : sums_)
      if (sum != kParts * (kParts + 1) / 2) return false;
    return true;
  }

 private:
  std::vector<int> sums_;
  std::vector<std::vector<int>> parts_;
};

void test_phases_pass_data_on(int rounds) {
  for (int workers = 1; workers <= 4; ++workers)
    for (int slices = 1; slices <= 4; ++slices)
      for (uint64_t spin_nanoseconds : {0u, 20000u}) {
        Pool pool(layout_of(workers, slices), spin_nanoseconds);
        MirrorJob mirror(67, slices);
        SliceLocalJob local(slices);
        for (int round = 0; round < rounds; ++round) {
          mirror.round = round;
          pool.run(mirror);
          CHECK(mirror.is_right());
          pool.run(local);
          CHECK(local.is_right());
          if (round % 16 == 0) std::this_thread::yield();
        }
      }
}

void test_many_workers_and_slices(int rounds) {
  for (int workers : {1, 8, 64})
    for (int slices : {1, 5, 8}) {
      Pool pool(layout_of(workers, slices), 1000);
      MirrorJob mirror(203, slices);
      SliceLocalJob local(slices);
      for (int round = 0; round < rounds; ++round) {
        mirror.round = round;
        pool.run(mirror);
        CHECK(mirror.is_right());
        pool.run(local);
        CHECK(local.is_right());
      }
    }
}

// The first task to begin does not end before all others have: whoever holds it is as good as descheduled,
// and nothing but its own task may wait for it.
class StalledJob final : public Job {
 public:
  static constexpr uint32_t kTasks = 40;
  int phase_count() const noexcept override { return 1; }
  uint32_t task_count(int, int) const noexcept override { return kTasks; }
  bool joins_slices(int) const noexcept override { return false; }
  void run(int, int, uint32_t, int) noexcept override {
    if (is_first_.exchange(false)) {
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (done_.load() < kTasks - 1 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
      others_went_on_ = done_.load() == kTasks - 1;
      return;
    }
    done_.fetch_add(1);
  }
  bool others_went_on() const { return others_went_on_; }

 private:
  std::atomic<bool> is_first_{true};
  std::atomic<uint32_t> done_{0};
  bool others_went_on_ = false;
};

void test_a_stalled_worker_delays_its_own_task_only(int rounds) {
  Pool pool(layout_of(3, 1), 0);
  for (int round = 0; round < rounds; ++round) {
    StalledJob job;
    pool.run(job);
    CHECK(job.others_went_on());
  }
}

void test_batches_never_mix(int rounds) {
  Pool pool(layout_of(6, 2), 0);  // more workers than CPUs here, asleep between batches: late wakers galore
  OnceJob one(2, 1), many(2, 9);
  for (int round = 1; round <= rounds; ++round) {
    pool.run(one);
    pool.run(many);
  }
  CHECK(one.ran_each(rounds));
  CHECK(many.ran_each(rounds));
  uint64_t tasks = 0;
  for (int slice = 0; slice < pool.slice_count(); ++slice) tasks += pool.counters(slice).tasks;
  CHECK(tasks == static_cast<uint64_t>(rounds) * 2 * 10);
}

void test_two_threads_may_submit(int rounds) {
  Pool pool(layout_of(3, 2), 1000);
  const auto submit = [&] {
    MirrorJob job(31, 2);
    for (int round = 0; round < rounds; ++round) {
      job.round = round;
      pool.run(job);
      CHECK(job.is_right());
    }
  };
  std::jthread other(submit);
  submit();
}

void test_layouts_that_do_not_hold_are_refused() {
  CHECK(throws<std::invalid_argument>([] { Pool(WorkerLayout{}, 0); }));
  CHECK(throws<std::invalid_argument>([] { Pool(WorkerLayout{{{}}, {}}, 0); }));
  CHECK(throws<std::invalid_argument>([] { Pool(WorkerLayout{{{}}, {{std::nullopt, 1}}}, 0); }));
  CHECK(throws<std::invalid_argument>(
      [] { Pool(WorkerLayout{{{}, {}}, {{std::nullopt, 0}, {std::nullopt, 0}}}, 0); }));
  CHECK(throws<std::invalid_argument>([] { Pool(WorkerLayout{{{{}, 0}}, {{}}}, 0); }));
  Pool fewer_workers_than_slices(layout_of(1, 3), 0);
  CHECK(fewer_workers_than_slices.workers_of(2) == 1);
}

void test_a_cpu_that_is_not_there_is_an_error() {
  WorkerLayout layout = layout_of(3, 1);
  layout.workers[2].cpu_id = 8000;
  CHECK(throws<std::system_error>([&] { Pool(layout, 0); }));
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 200;
  test_phases_pass_data_on(rounds);
  test_many_workers_and_slices(rounds / 10);
  test_a_stalled_worker_delays_its_own_task_only(rounds / 10);
  test_batches_never_mix(rounds * 10);
  test_two_threads_may_submit(rounds);
  test_layouts_that_do_not_hold_are_refused();
  test_a_cpu_that_is_not_there_is_an_error();
  std::printf("pool: %d failures\n", stratad::test::failures);
  return stratad::test::failures == 0 ? 0 : 1;
}
