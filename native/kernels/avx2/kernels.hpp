// The functions that make up the AVX2 row kernels, as RowKernel describes them, for table.cpp to list. They
// are functions and not RowKernel objects so that the table is a constant: no code of this instruction set
// runs before cpu_has() has been asked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/row_kernel.hpp"

namespace stratad::avx2 {

using ActivationBytes = size_t(int64_t columns) noexcept;
using Quantise = void(const float* values, int64_t columns, void* activations) noexcept;
using Multiply = void(const RowStreams& streams, const void* const* activations, int token_count,
                      float* const* first_output, float* const* second_output) noexcept;

ActivationBytes plain_activation_bytes, paired_activation_bytes, float_activation_bytes;

// Named for the layout, and for the ggml type whose rounding they apply.
Quantise quantise_plain_q8_k, quantise_plain_q8_0, quantise_paired_q8_k, quantise_paired_q8_0;
Quantise quantise_bf16, quantise_f16;

Multiply multiply_q4_k, multiply_q5_k, multiply_q6_k, multiply_q8_0;
Multiply multiply_q4_0, multiply_mxfp4, multiply_iq4_nl, multiply_iq4_xs;
Multiply multiply_bf16, multiply_f16;

}  // namespace stratad::avx2
