#include "arena/row_cut.hpp"

#include <algorithm>
#include <numeric>

namespace stratad {
namespace {

constexpr size_t kPageBytes = 4096;
// A page-aligned unit is worth having while a slice still holds this many of them; coarser would be lopsided.
constexpr int64_t kUnitsPerSlice = 4;

int64_t border_unit(int64_t rows, size_t row_bytes, int64_t slice_count) noexcept {
  const int64_t rows_per_page_multiple = static_cast<int64_t>(kPageBytes / std::gcd(kPageBytes, row_bytes));
  const int64_t unit = std::lcm(rows_per_page_multiple, kRowUnit);
  return unit * slice_count * kUnitsPerSlice <= rows ? unit : kRowUnit;
}

}  // namespace

RowRange cut_rows(int64_t rows, size_t row_bytes, std::span<const SliceSeat> slices, int slice) noexcept {
  int64_t total = 0, before = 0;
  for (int index = 0; index < static_cast<int>(slices.size()); ++index) {
    if (index < slice) before += slices[index].weight;
    total += slices[index].weight;
  }
  const int64_t unit = border_unit(rows, row_bytes, static_cast<int64_t>(slices.size()));
  const int64_t units = (rows + unit - 1) / unit;
  const auto border = [&](int64_t weight) { return std::min(rows, units * weight / total * unit); };
  return {border(before), border(before + slices[slice].weight)};
}

}  // namespace stratad
