#include "gpu/hot_graph.hpp"

#include <algorithm>

namespace stratad {
namespace {

constexpr int kNodes = 32;  // beside the additions: products, biases, activation, weights, views

// A leaf that stands for a tensor of another graph.
ggml_tensor* stand_in_for(ggml_context* context, const ggml_tensor* tensor) {
  ggml_tensor* leaf = ggml_new_tensor(context, tensor->type, GGML_MAX_DIMS, tensor->ne);
  std::copy_n(tensor->nb, GGML_MAX_DIMS, leaf->nb);
  leaf->data = tensor->data;
  leaf->buffer = tensor->view_src != nullptr ? tensor->view_src->buffer : tensor->buffer;
  return leaf;
}

}  // namespace

bool HotMemory::reserve(size_t bytes) {
  if (bytes <= size_) return true;
  if (bytes >= refused_) return false;
  buffer_.reset();
  size_ = 0;
  ++generation_;
  buffer_ = allocate_on(device_, bytes);
  if (!buffer_) {
    refused_ = bytes;
    return false;
  }
  size_ = bytes;
  return true;
}

HotGraph::HotGraph(const CachedLayer& layer, const ExpertChain& chain, const HotShape& shape)
    : shape_(shape) {
  const size_t nodes = static_cast<size_t>(kNodes + 2 * shape.width);
  context_.reset(
      ggml_init({nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(nodes, false), nullptr, true}));
  ggml_context* context = context_.get();
  input_ = stand_in_for(context, chain.input);
  slot_ids_ = ggml_new_tensor_2d(context, GGML_TYPE_I32, shape.width, shape.tokens);
  weights_ = ggml_new_tensor_3d(context, GGML_TYPE_F32, 1, shape.width, shape.tokens);
  if (chain.gate.bias != nullptr || chain.up.bias != nullptr || chain.down.bias != nullptr)
    expert_ids_ = ggml_new_tensor_2d(context, GGML_TYPE_I32, shape.width, shape.tokens);
  ggml_tensor* products = product(layer.slots.back(), hidden(layer, chain), chain.down.bias);
  output_ = weighted_sum(ggml_mul(context, products, weights_));
  if (shape.has_cold) {
    cold_ = ggml_new_tensor_2d(context, GGML_TYPE_F32, products->ne[0], shape.tokens);
    output_ = ggml_add(context, output_, cold_);
  }
  graph_ = ggml_new_graph_custom(context, nodes, false);
  ggml_build_forward_expand(graph_, output_);
}

ggml_tensor* HotGraph::product(ggml_tensor* slots, ggml_tensor* input, const ggml_tensor* bias) {
  ggml_tensor* result = ggml_mul_mat_id(context_.get(), slots, input, slot_ids_);
  if (bias == nullptr) return result;
  return ggml_add_id(context_.get(), result, stand_in_for(context_.get(), bias), expert_ids_);
}

ggml_tensor* HotGraph::hidden(const CachedLayer& layer, const ExpertChain& chain) {
  ggml_context* context = context_.get();
  ggml_tensor *gate, *up;
  if (layer.slots.size() == 2) {  // gate and up are one matrix
    ggml_tensor* both = product(layer.slots[0], input_, chain.gate.bias);
    const int64_t rows = chain.gate.row_count;
    gate = ggml_view_3d(context, both, rows, both->ne[1], both->ne[2], both->nb[1], both->nb[2], 0);
    up = ggml_view_3d(context, both, rows, both->ne[1], both->ne[2], both->nb[1], both->nb[2],
                      static_cast<size_t>(rows) * both->nb[0]);
  } else {
    gate = product(layer.slots[0], input_, chain.gate.bias);
    up = product(layer.slots[1], input_, chain.up.bias);
  }
  if (chain.activation == Activation::kSwigluOai)
    return ggml_swiglu_oai(context, gate, up, chain.alpha, chain.limit);
  return ggml_swiglu_split(context, gate, up);
}

// In the order of the choices, as the model's own graph has it.
ggml_tensor* HotGraph::weighted_sum(ggml_tensor* products) {
  ggml_context* context = context_.get();
  ggml_tensor* sum = nullptr;
  for (int choice = 0; choice < shape_.width; ++choice) {
    ggml_tensor* one = ggml_view_2d(context, products, products->ne[0], products->ne[2], products->nb[2],
                                    static_cast<size_t>(choice) * products->nb[1]);
    sum = sum == nullptr ? one : ggml_add(context, sum, one);
  }
  return sum;
}

int HotGraph::node_count() const noexcept {
  return ggml_graph_n_nodes(graph_);
}

size_t HotGraph::memory_bytes(ggml_backend_buffer_type_t type) const {
  const size_t alignment = ggml_backend_buft_get_alignment(type);
  size_t total = 0;
  for (ggml_tensor* tensor = ggml_get_first_tensor(context_.get()); tensor != nullptr;
       tensor = ggml_get_next_tensor(context_.get(), tensor))
    if (tensor->data == nullptr && tensor->view_src == nullptr)
      total += aligned(ggml_backend_buft_get_alloc_size(type, tensor), alignment);
  return total;
}

bool HotGraph::place(HotMemory& memory) {
  const ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(memory.device());
  const size_t alignment = ggml_backend_buft_get_alignment(type);
  if (!memory.reserve(memory_bytes(type))) return false;
  char* next = static_cast<char*>(ggml_backend_buffer_get_base(memory.buffer()));
  for (ggml_tensor* tensor = ggml_get_first_tensor(context_.get()); tensor != nullptr;
       tensor = ggml_get_next_tensor(context_.get(), tensor)) {
    if (tensor->data != nullptr) continue;
    if (tensor->view_src != nullptr) {
      if (ggml_backend_view_init(tensor) != GGML_STATUS_SUCCESS) return false;
      continue;
    }
    if (ggml_backend_tensor_alloc(memory.buffer(), tensor, next) != GGML_STATUS_SUCCESS) return false;
    next += aligned(ggml_backend_buft_get_alloc_size(type, tensor), alignment);
  }
  return true;
}

void HotGraph::connect(const ExpertChain& chain) noexcept {
  input_->data = chain.input->data;
  input_->buffer = chain.input->view_src != nullptr ? chain.input->view_src->buffer : chain.input->buffer;
  std::copy_n(chain.input->nb, GGML_MAX_DIMS, input_->nb);
  output_->data = chain.output->data;
  output_->buffer = chain.output->view_src != nullptr ? chain.output->view_src->buffer : chain.output->buffer;
}

}  // namespace stratad
