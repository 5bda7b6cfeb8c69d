#include "kernels/amx/tile_check.hpp"
#include "kernels/amx/tiles_of_panels.hpp"
#include "kernels/kernel_table.hpp"

namespace stratad {

template <ggml_type kWeightType>
void multiply_by_tiles(const char* rows, int64_t row_count, size_t row_bytes, int64_t columns,
                       const void* const* activations, int token_count, float* const* outputs) noexcept {
  multiply_tiles<PanelOf<kWeightType>, TileRegisters>(rows, row_count, row_bytes, columns, activations,
                                                      token_count, outputs);
}

template MultiplyMany multiply_by_tiles<GGML_TYPE_Q4_K>;
template MultiplyMany multiply_by_tiles<GGML_TYPE_Q5_K>;
template MultiplyMany multiply_by_tiles<GGML_TYPE_Q6_K>;
template MultiplyMany multiply_by_tiles<GGML_TYPE_IQ4_XS>;
template MultiplyMany multiply_by_tiles<GGML_TYPE_Q8_0>;
template MultiplyMany multiply_by_tiles<GGML_TYPE_Q4_0>;
template MultiplyMany multiply_by_tiles<GGML_TYPE_IQ4_NL>;
template MultiplyMany multiply_by_tiles<GGML_TYPE_MXFP4>;

bool are_tile_products_right() noexcept {
  return are_products_right<TileRegisters>();
}

}  // namespace stratad
