// The tile kernels of every weight type on the model of the tile registers (tile_model.hpp), and that model.
//
// Compiled for AVX-512: not to be entered before cpu_has() has said yes.
#pragma once

#include <cstdint>

#include "kernels/kernel_table.hpp"

namespace stratad::test {

// Null where there is none.
MultiplyMany* tile_kernel_on_model(ggml_type weight_type) noexcept;

// Tile products on the calling thread so far, and whether its tiles are given back.
int64_t model_product_count() noexcept;
bool is_model_released() noexcept;

// The check that a thread makes before it uses tiles, on a model that multiplies right and on one that takes
// the unsigned operand for a signed one.
bool is_right_model_accepted() noexcept;
bool is_wrong_model_accepted() noexcept;

}  // namespace stratad::test
