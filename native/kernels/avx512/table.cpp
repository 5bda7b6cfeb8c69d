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

template <class Format>
constexpr RowKernel kernel(Quantise* quantise, MultiplyMany* panels = nullptr,
                           MultiplyMany* tiles = nullptr) {
  return {Format::kWeightType,
          InstructionSet::kAvx512Vnni,
          Format::kUnitColumns,
          activation_bytes<Format>,
          quantise,
          multiply<Format>,
          panels,
          tiles};
}

template <class Format, class Panel>
constexpr RowKernel panel_kernel(Quantise* quantise) {
  return kernel<Format>(quantise, multiply_panels<Panel>, multiply_by_tiles<Format::kWeightType>);
}

template <class Book>
constexpr RowKernel code_book_kernel() {
  using Format = SteppedFormat<CodeBookType<Book>>;
  return panel_kernel<Format, CodeBookPanel<Book>>(quantise_to_q8_0<Format>);
}

template <class Layout>
constexpr RowKernel k_quant_kernel() {
  using Format = SteppedFormat<KQuantType<Layout>>;
  return panel_kernel<Format, KQuantPanel<Layout>>(quantise_to_q8_k<Format>);
}

constexpr RowKernel kKernels[] = {
    k_quant_kernel<Q4KLayout>(),
    k_quant_kernel<Q5KLayout>(),
    panel_kernel<Q6KFormat, Q6KPanel>(quantise_to_q8_k<Q6KFormat>),
    panel_kernel<IQ4XSFormat, IQ4XSPanel>(quantise_to_q8_k<IQ4XSFormat>),
    panel_kernel<Q80Format, Q80Panel>(quantise_to_q8_0<Q80Format>),
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
