// How the rows of a matrix are cut into slices: one rule, used by the arena that places the rows and by the
// kernels that read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pool/worker_layout.hpp"

namespace stratad {

struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const noexcept { return end - begin; }
};

// Slice borders fall on multiples of this many rows: ggml's vectorised activation works on 16 floats at a
// time, and cutting anywhere else would change its rounding at the border.
inline constexpr int64_t kRowUnit = 16;

// The rows of `slice`, out of `rows` rows of `row_bytes` each. Borders are multiples of kRowUnit, and of
// whole pages where that still leaves each slice a fair share; ranges are disjoint, ordered and cover all
// rows.
RowRange cut_rows(int64_t rows, size_t row_bytes, std::span<const SliceSeat> slices, int slice) noexcept;

}  // namespace stratad
