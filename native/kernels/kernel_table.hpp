// What each instruction set's source file offers. Those files are compiled with flags of their own and must
// not be entered before cpu_has() has said yes.
#pragma once

#include <span>

#include "kernels/attention.hpp"
#include "kernels/row_kernel.hpp"

namespace stratad {

std::span<const RowKernel> avx2_row_kernels() noexcept;
std::span<const RowKernel> avx512_row_kernels() noexcept;
const AttentionKernel& avx2_attention_kernel() noexcept;
const AttentionKernel& avx512_attention_kernel() noexcept;

}  // namespace stratad
