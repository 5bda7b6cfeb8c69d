// Rows of one matrix in one slice, cut into tasks: the same cut for experts and for dense weights.
#pragma once

#include <cstdint>

#include "arena/row_cut.hpp"
#include "pool/pool.hpp"

namespace stratad {

struct RowTasks {
  RowRange rows;
  int64_t rows_per_task = kRowUnit;
  uint32_t count() const noexcept {
    return static_cast<uint32_t>((rows.count() + rows_per_task - 1) / rows_per_task);
  }
  RowRange task(uint32_t index) const noexcept;
};

// `repetitions`: how many matrices are cut alike. `longest_run`: the most rows that one task may have.
RowTasks tasks_of(int64_t rows, size_t row_bytes, const Pool& pool, int slice, int64_t repetitions,
                  int64_t longest_run);

// Tasks [0, total) dealt out to slices: how many fall on `slice`.
uint32_t dealt(int total, int slice, int slice_count) noexcept;

}  // namespace stratad
