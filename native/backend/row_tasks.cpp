#include "backend/row_tasks.hpp"

#include <algorithm>

namespace stratad {
namespace {

// Enough tasks that workers end together, as few as that allows.
constexpr int64_t kTasksPerWorker = 8;

}  // namespace

RowRange RowTasks::task(uint32_t index) const noexcept {
  const int64_t begin = rows.begin + static_cast<int64_t>(index) * rows_per_task;
  return {begin, std::min(rows.end, begin + rows_per_task)};
}

RowTasks tasks_of(int64_t rows, size_t row_bytes, const Pool& pool, int slice, int64_t repetitions,
                  int64_t longest_run) {
  RowTasks tasks;
  tasks.rows = cut_rows(rows, row_bytes, pool.layout().slices, slice);
  const int64_t wanted = tasks.rows.count() * repetitions / (kTasksPerWorker * pool.workers_of(slice));
  const int64_t longest =
      std::max(kRowUnit, std::min(longest_run, (tasks.rows.count() + kRowUnit - 1) / kRowUnit * kRowUnit));
  tasks.rows_per_task = std::clamp(wanted / kRowUnit * kRowUnit, kRowUnit, longest);
  return tasks;
}

uint32_t dealt(int total, int slice, int slice_count) noexcept {
  return static_cast<uint32_t>((total - slice + slice_count - 1) / slice_count);
}

}  // namespace stratad
