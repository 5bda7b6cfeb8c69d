#include "kernels/avx2/kernels.hpp"
#include "kernels/kernel_table.hpp"

namespace stratad {
namespace {

using namespace avx2;

constexpr RowKernel kernel(ggml_type type, int64_t column_unit, ActivationBytes* activation_bytes,
                           Quantise* quantise, Multiply* multiply) {
  return {type, InstructionSet::kAvx2, column_unit, activation_bytes, quantise, multiply};
}

constexpr RowKernel kKernels[] = {
    kernel(GGML_TYPE_Q4_K, 256, plain_activation_bytes, quantise_plain_q8_k, multiply_q4_k),
    kernel(GGML_TYPE_Q5_K, 256, plain_activation_bytes, quantise_plain_q8_k, multiply_q5_k),
    kernel(GGML_TYPE_Q6_K, 256, plain_activation_bytes, quantise_plain_q8_k, multiply_q6_k),
    kernel(GGML_TYPE_Q8_0, 32, plain_activation_bytes, quantise_plain_q8_0, multiply_q8_0),
    kernel(GGML_TYPE_Q4_0, 32, paired_activation_bytes, quantise_paired_q8_0, multiply_q4_0),
    kernel(GGML_TYPE_IQ4_NL, 32, paired_activation_bytes, quantise_paired_q8_0, multiply_iq4_nl),
    kernel(GGML_TYPE_MXFP4, 32, paired_activation_bytes, quantise_paired_q8_0, multiply_mxfp4),
    kernel(GGML_TYPE_IQ4_XS, 256, paired_activation_bytes, quantise_paired_q8_k, multiply_iq4_xs),
    kernel(GGML_TYPE_BF16, 32, float_activation_bytes, quantise_bf16, multiply_bf16),
    kernel(GGML_TYPE_F16, 32, float_activation_bytes, quantise_f16, multiply_f16),
};

}  // namespace

std::span<const RowKernel> avx2_row_kernels() noexcept {
  return kKernels;
}

}  // namespace stratad
