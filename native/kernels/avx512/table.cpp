#include "kernels/avx512/code_books.hpp"
#include "kernels/avx512/floats.hpp"
#include "kernels/avx512/k_quants.hpp"
#include "kernels/avx512/q6_k.hpp"
#include "kernels/avx512/q8_0.hpp"
#include "kernels/kernel_table.hpp"

namespace stratad {
namespace {

using Quantise = void (*)(const float*, int64_t, void*) noexcept;

template <class Format>
constexpr RowKernel kernel(Quantise quantise) {
  return {Format::kWeightType,
          InstructionSet::kAvx512Vnni,
          Format::kUnitColumns,
          activation_bytes<Format>,
          quantise,
          multiply<Format>};
}

constexpr RowKernel kKernels[] = {
    kernel<Q4KFormat>(quantise_to_q8_k<Q4KFormat>),     kernel<Q5KFormat>(quantise_to_q8_k<Q5KFormat>),
    kernel<Q6KFormat>(quantise_to_q8_k<Q6KFormat>),     kernel<IQ4XSFormat>(quantise_to_q8_k<IQ4XSFormat>),
    kernel<Q80Format>(quantise_to_q8_0<Q80Format>),     kernel<Q40Format>(quantise_to_q8_0<Q40Format>),
    kernel<IQ4NLFormat>(quantise_to_q8_0<IQ4NLFormat>), kernel<MXFP4Format>(quantise_to_q8_0<MXFP4Format>),
    kernel<BF16Format>(round_to_16_bits<BF16Format>),   kernel<F16Format>(round_to_16_bits<F16Format>),
};

}  // namespace

std::span<const RowKernel> avx512_row_kernels() noexcept {
  return kKernels;
}

}  // namespace stratad
