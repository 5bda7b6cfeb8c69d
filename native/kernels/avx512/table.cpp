#include "kernels/kernel_table.hpp"

namespace stratad {

std::span<const RowKernel> avx512_row_kernels() noexcept {
  return {};
}

}  // namespace stratad
