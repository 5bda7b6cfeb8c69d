#include "kernels/kernel_table.hpp"

namespace stratad {

std::span<const RowKernel> avx2_row_kernels() noexcept {
  return {};
}

}  // namespace stratad
