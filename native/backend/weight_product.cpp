#include "backend/weight_product.hpp"

#include <algorithm>
#include <cstring>

namespace stratad {
namespace {

constexpr size_t kCacheLineBytes = 64;

size_t whole_lines(size_t bytes) noexcept {
  return (bytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
}

// ggml's dot product runs through rows without asking for what comes; the hardware prefetchers follow a run
// by themselves but cannot know where the next one begins. Late enough to stay in the cache until then.
constexpr size_t kHeadBytes = 4096;
constexpr int64_t kRowsAhead = 4;

void prefetch_head(const char* address) noexcept {
  for (size_t offset = 0; offset < kHeadBytes; offset += kCacheLineBytes)
    __builtin_prefetch(address + offset);
}

float dot_row(const WeightProduct& product, const char* weights, const char* activations) noexcept {
  float sum;
  product.dot(static_cast<int>(product.columns()), &sum, 0, weights, 0, activations, 0, 1);
  return sum;
}

void add_bias(const WeightProduct& product, const RowRun& run, int token_count,
              float* const* outputs) noexcept {
  if (product.bias == nullptr) return;
  const auto* added = reinterpret_cast<const float*>(static_cast<const char*>(product.bias->data) +
                                                     static_cast<size_t>(run.matrix) * product.bias->nb[1]);
  for (int token = 0; token < token_count; ++token)
    for (int64_t index = 0; index < run.rows.count(); ++index)
      outputs[token][index] += added[product.first_row + run.rows.begin + index];
}

// Calls `body` with groups of at most kKernelTokens tokens.
template <class Body>
void by_token_groups(int token_count, Body body) noexcept {
  for (int token = 0; token < token_count; token += kKernelTokens)
    body(token, std::min(kKernelTokens, token_count - token));
}

void multiply_by_kernel(const WeightProduct& product, const RowRun& run, const RowRun& next,
                        const char* const* activations, int token_count, float* const* outputs) noexcept {
  RowStreams streams{product.address(run),  nullptr, run.rows.count(), product.row_bytes(), product.columns(),
                     product.address(next), nullptr};
  by_token_groups(token_count, [&](int token, int count) {
    const void* group[kKernelTokens];
    std::copy_n(activations + token, count, group);
    product.kernel->multiply(streams, group, count, outputs + token, nullptr);
  });
}

void multiply_batch(const WeightProduct& product, WeightProduct::BatchMultiply multiply, const RowRun& run,
                    const char* const* activations, int token_count, float* const* outputs) noexcept {
  const void* group[kTokenGroup];
  for (int token = 0; token < token_count; token += kTokenGroup) {
    const int count = std::min(kTokenGroup, token_count - token);
    std::copy_n(activations + token, count, group);
    multiply(product.address(run), run.rows.count(), product.row_bytes(), product.columns(), group, count,
             outputs + token);
  }
}

// Row by row of both in turn: two streams, which the memory system fetches ahead side by side.
void dot_pair(const WeightProduct& first, const WeightProduct& second, const RowRun& run, const RowRun& next,
              const char* activations, float* first_output, float* second_output) noexcept {
  const char* first_row = first.address(run);
  const char* second_row = second.address(run);
  for (int64_t index = 0; index < run.rows.count(); ++index) {
    if (index + kRowsAhead == run.rows.count()) {
      prefetch_head(first.address(next));
      prefetch_head(second.address(next));
    }
    first_output[index] = dot_row(first, first_row, activations);
    second_output[index] = dot_row(second, second_row, activations);
    first_row += first.row_bytes();
    second_row += second.row_bytes();
  }
}

void dot_run(const WeightProduct& product, const RowRun& run, const RowRun& next, const char* activations,
             float* output) noexcept {
  const char* row = product.address(run);
  for (int64_t index = 0; index < run.rows.count(); ++index, row += product.row_bytes()) {
    if (index + kRowsAhead == run.rows.count()) prefetch_head(product.address(next));
    output[index] = dot_row(product, row, activations);
  }
}

}  // namespace

bool has_row_product(const ggml_tensor* weight) noexcept {
  const auto* traits = ggml_get_type_traits_cpu(weight->type);
  if (traits->vec_dot == nullptr || weight->nb[0] != ggml_type_size(weight->type)) return false;
  return traits->vec_dot_type == GGML_TYPE_F32 ||
         ggml_get_type_traits_cpu(traits->vec_dot_type)->from_float != nullptr;
}

int part_count(const ggml_tensor* weight) noexcept {
  return std::strstr(weight->name, "gate_up_exps") != nullptr ? 2 : 1;
}

WeightProduct::WeightProduct(const ggml_tensor* weight_, int64_t first_row_, int64_t row_count_,
                             const ProductSettings& settings) noexcept
    : weight(weight_),
      first_row(first_row_),
      row_count(row_count_),
      limits(settings.limits_of(weight_->type)) {
  const auto* traits = ggml_get_type_traits_cpu(weight->type);
  if (settings.kernels) kernel = find_row_kernel(weight->type, *settings.kernels);
  if (kernel != nullptr && columns() % kernel->column_unit != 0) kernel = nullptr;
  if (kernel != nullptr) {
    activation_row_bytes = kernel->activation_bytes(columns());
    return;
  }
  dot = traits->vec_dot;
  if (traits->vec_dot_type != GGML_TYPE_F32)
    from_float = ggml_get_type_traits_cpu(traits->vec_dot_type)->from_float;
  activation_row_bytes = whole_lines(ggml_row_size(traits->vec_dot_type, columns()));
}

void WeightProduct::quantise(const float* activations, void* quantised) const noexcept {
  if (kernel != nullptr) {
    kernel->quantise(activations, columns(), quantised);
  } else if (from_float == nullptr) {
    std::memcpy(quantised, activations, static_cast<size_t>(columns()) * sizeof(float));
  } else {
    from_float(activations, quantised, columns());
  }
}

bool WeightProduct::shares_activations_with(const WeightProduct& other) const noexcept {
  if (columns() != other.columns()) return false;
  if (kernel != nullptr || other.kernel != nullptr)
    return kernel != nullptr && other.kernel != nullptr && kernel->quantise == other.kernel->quantise;
  return from_float == other.from_float;
}

WeightProduct::BatchMultiply WeightProduct::batch_multiply(int64_t token_count) const noexcept {
  if (kernel == nullptr) return nullptr;
  if (kernel->multiply_tiles != nullptr && token_count >= limits.tile_tokens) return kernel->multiply_tiles;
  return token_count >= limits.panel_tokens ? kernel->multiply_panels : nullptr;
}

void WeightProduct::multiply(const RowRun& run, const RowRun& next, const char* const* activations,
                             int token_count, float* const* outputs) const noexcept {
  if (const BatchMultiply at_once = batch_multiply(token_count)) {
    multiply_batch(*this, at_once, run, activations, token_count, outputs);
  } else if (kernel != nullptr) {
    multiply_by_kernel(*this, run, next, activations, token_count, outputs);
  } else {
    for (int token = 0; token < token_count; ++token)
      dot_run(*this, run, next, activations[token], outputs[token]);
  }
  add_bias(*this, run, token_count, outputs);
}

void multiply_pair(const WeightProduct& first, const WeightProduct& second, const RowRun& run,
                   const RowRun& next, const char* const* activations, int token_count,
                   float* const* first_outputs, float* const* second_outputs) noexcept {
  // Two streams of one kernel; matrices of two types are multiplied one behind the other, and many tokens,
  // too.
  if (first.kernel != second.kernel || first.row_bytes() != second.row_bytes() ||
      first.batch_multiply(token_count) != nullptr) {
    first.multiply(run, next, activations, token_count, first_outputs);
    second.multiply(run, next, activations, token_count, second_outputs);
    return;
  }
  if (first.kernel == nullptr) {
    for (int token = 0; token < token_count; ++token)
      dot_pair(first, second, run, next, activations[token], first_outputs[token], second_outputs[token]);
  } else {
    const RowStreams streams{first.address(run), second.address(run), run.rows.count(),    first.row_bytes(),
                             first.columns(),    first.address(next), second.address(next)};
    by_token_groups(token_count, [&](int token, int count) {
      const void* group[kKernelTokens];
      std::copy_n(activations + token, count, group);
      first.kernel->multiply(streams, group, count, first_outputs + token, second_outputs + token);
    });
  }
  add_bias(first, run, token_count, first_outputs);
  add_bias(second, run, token_count, second_outputs);
}

}  // namespace stratad
