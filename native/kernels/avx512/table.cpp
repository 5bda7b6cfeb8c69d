#include "kernels/avx512/code_books.hpp"
#include "kernels/avx512/floats.hpp"
#include "kernels/avx512/k_quants.hpp"
#include "kernels/avx512/panels.hpp"
#include "kernels/avx512/q6_k.hpp"
#include "kernels/avx512/q8_0.hpp"
#include "kernels/kernel_table.hpp"

namespace stratad {
namespace {

using Quantise = void(const float*, int64_t, void*) noexcept;
using MultiplyPanels = void(const char*, int64_t, size_t, int64_t, const void* const*, int,
                            float* const*) noexcept;

template <class Format>
constexpr RowKernel kernel(Quantise* quantise, MultiplyPanels* panels = nullptr) {
  return {Format::kWeightType,
          InstructionSet::kAvx512Vnni,
          Format::kUnitColumns,
          activation_bytes<Format>,
          quantise,
          multiply<Format>,
          panels};
}

template <class Book>
constexpr RowKernel code_book_kernel() {
  using Format = SteppedFormat<CodeBookType<Book>>;
  return kernel<Format>(quantise_to_q8_0<Format>, multiply_panels<CodeBookPanel<Book>>);
}

template <class Layout>
constexpr RowKernel k_quant_kernel() {
  using Format = SteppedFormat<KQuantType<Layout>>;
  return kernel<Format>(quantise_to_q8_k<Format>, multiply_panels<KQuantPanel<Layout>>);
}

constexpr RowKernel kKernels[] = {
    k_quant_kernel<Q4KLayout>(),
    k_quant_kernel<Q5KLayout>(),
    kernel<Q6KFormat>(quantise_to_q8_k<Q6KFormat>, multiply_panels<Q6KPanel>),
    kernel<IQ4XSFormat>(quantise_to_q8_k<IQ4XSFormat>, multiply_panels<IQ4XSPanel>),
    kernel<Q80Format>(quantise_to_q8_0<Q80Format>, multiply_panels<Q80Panel>),
    code_book_kernel<Q40Book>(),
    code_book_kernel<IQ4NLBook>(),
    code_book_kernel<MXFP4Book>(),
    kernel<BF16Format>(round_to_16_bits<BF16Format>),
    kernel<F16Format>(round_to_16_bits<F16Format>),
};

}  // namespace

std::span<const RowKernel> avx512_row_kernels() noexcept {
  return kKernels;
}

}  // namespace stratad
