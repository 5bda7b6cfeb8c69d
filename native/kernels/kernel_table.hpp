// What each instruction set's source file offers. Those files are compiled with flags of their own and must
// not be entered before cpu_has() has said yes.
#pragma once

#include <span>

#include "kernels/row_kernel.hpp"

namespace stratad {

std::span<const RowKernel> avx2_row_kernels() noexcept;
std::span<const RowKernel> avx512_row_kernels() noexcept;

}  // namespace stratad
