#include "backend/expert_product.hpp"

#include <cstring>

namespace stratad {
bool has_row_kernel(const ggml_tensor* weight) noexcept {
  const auto* traits = ggml_get_type_traits_cpu(weight->type);
  if (traits->vec_dot == nullptr || weight->nb[0] != ggml_type_size(weight->type)) return false;
  return traits->vec_dot_type == GGML_TYPE_F32 ||
         ggml_get_type_traits_cpu(traits->vec_dot_type)->from_float != nullptr;
}

int part_count(const ggml_tensor* weight) noexcept {
  return std::strstr(weight->name, "gate_up_exps") != nullptr ? 2 : 1;
}

ExpertProduct::ExpertProduct(const ggml_tensor* weight_, int64_t first_row_, int64_t row_count_) noexcept
    : weight(weight_), first_row(first_row_), row_count(row_count_) {
  const auto* traits = ggml_get_type_traits_cpu(weight->type);
  dot = traits->vec_dot;
  activation_type = traits->vec_dot_type;
  if (activation_type != GGML_TYPE_F32) from_float = ggml_get_type_traits_cpu(activation_type)->from_float;
  activation_row_bytes = ggml_row_size(activation_type, weight->ne[0]);
}

void ExpertProduct::quantise(const float* activations, void* quantised) const noexcept {
  if (from_float == nullptr) {
    std::memcpy(quantised, activations, activation_row_bytes);
  } else {
    from_float(activations, quantised, columns());
  }
}

void ExpertProduct::rows(int32_t expert, int64_t begin, int64_t end, const void* quantised,
                         float* output) const noexcept {
  const char* weights = address(expert, begin);
  for (int64_t index = 0; index < end - begin; ++index, weights += row_bytes())
    output[index] = row(weights, quantised);
  add_bias(expert, begin, end, output);
}

void ExpertProduct::add_bias(int32_t expert, int64_t begin, int64_t end, float* output) const noexcept {
  if (bias == nullptr) return;
  const auto* added = reinterpret_cast<const float*>(static_cast<const char*>(bias->data) +
                                                     static_cast<size_t>(expert) * bias->nb[1]);
  for (int64_t index = 0; index < end - begin; ++index) output[index] += added[first_row + begin + index];
}

}  // namespace stratad
