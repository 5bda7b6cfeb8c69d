#include "tile_model_kernels.hpp"

#include "kernels/amx/tile_check.hpp"
#include "kernels/amx/tiles_of_panels.hpp"
#include "tile_model.hpp"

namespace stratad::test {
namespace {

template <ggml_type kWeightType>
constexpr MultiplyMany* kOnModel = multiply_tiles<PanelOf<kWeightType>, TileModel>;

// Sums of products of two operands with signs.
struct WrongModel : TileModel {
  template <int kSum, int kSigned, int kUnsigned>
  static void multiply() noexcept {
    multiply_signed<kSum, kSigned, kUnsigned>();
  }
};

}  // namespace

MultiplyMany* tile_kernel_on_model(ggml_type weight_type) noexcept {
  switch (weight_type) {
    case GGML_TYPE_Q4_K:
      return kOnModel<GGML_TYPE_Q4_K>;
    case GGML_TYPE_Q5_K:
      return kOnModel<GGML_TYPE_Q5_K>;
    case GGML_TYPE_Q6_K:
      return kOnModel<GGML_TYPE_Q6_K>;
    case GGML_TYPE_IQ4_XS:
      return kOnModel<GGML_TYPE_IQ4_XS>;
    case GGML_TYPE_Q8_0:
      return kOnModel<GGML_TYPE_Q8_0>;
    case GGML_TYPE_Q4_0:
      return kOnModel<GGML_TYPE_Q4_0>;
    case GGML_TYPE_IQ4_NL:
      return kOnModel<GGML_TYPE_IQ4_NL>;
    case GGML_TYPE_MXFP4:
      return kOnModel<GGML_TYPE_MXFP4>;
    default:
      return nullptr;
  }
}

int64_t model_product_count() noexcept {
  return TileModel::product_count();
}

bool is_model_released() noexcept {
  return TileModel::is_released();
}

bool is_right_model_accepted() noexcept {
  return are_products_right<TileModel>();
}

bool is_wrong_model_accepted() noexcept {
  return are_products_right<WrongModel>();
}

}  // namespace stratad::test
