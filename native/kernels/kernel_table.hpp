// What each instruction set's source files offer. Those files are compiled with flags of their own and must
// not be entered before cpu_has(), or for tiles prepare_tiles(), has said yes.
#pragma once

#include <span>

#include "kernels/attention.hpp"
#include "kernels/row_kernel.hpp"

namespace stratad {

std::span<const RowKernel> avx2_row_kernels() noexcept;
std::span<const RowKernel> avx512_row_kernels() noexcept;
const AttentionKernel& avx2_attention_kernel() noexcept;
const AttentionKernel& avx512_attention_kernel() noexcept;

// What RowKernel::multiply_panels and multiply_tiles are.
using MultiplyMany = void(const char* rows, int64_t row_count, size_t row_bytes, int64_t columns,
                          const void* const* activations, int token_count, float* const* outputs) noexcept;

// RowKernel::multiply_tiles of the AVX-512 kernels; defined for the types that have panels there.
template <ggml_type kWeightType>
void multiply_by_tiles(const char* rows, int64_t row_count, size_t row_bytes, int64_t columns,
                       const void* const* activations, int token_count, float* const* outputs) noexcept;

// Multiplies some tiles and compares the products with sums by the book. Needs the kernel's permission.
bool are_tile_products_right() noexcept;

}  // namespace stratad
