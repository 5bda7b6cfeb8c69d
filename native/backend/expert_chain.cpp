#include "backend/expert_chain.hpp"

#include <cstring>

#include "ggml-impl.h"  // use counts: the public interface does not give them

namespace stratad {
namespace {

const ggml_tensor* root(const ggml_tensor* tensor) noexcept {
  return tensor != nullptr && tensor->view_src != nullptr ? tensor->view_src : tensor;
}

// Walks over the nodes that compute something and remembers whether each may be skipped over: read by nothing
// but the chain, and not asked for by the user.
class Walk {
 public:
  Walk(ggml_cgraph* graph, int first, const ProductSettings& settings)
      : graph_(graph), position_(first), settings_(settings) {}

  ggml_tensor* next() noexcept {
    for (const int count = ggml_graph_n_nodes(graph_); position_ < count;) {
      index_ = position_++;
      ggml_tensor* node = ggml_graph_node(graph_, index_);
      if (!is_empty_operation(node)) return node;
    }
    return nullptr;
  }
  // Of the node that next() gave last.
  bool is_read_only_by(int readers) const noexcept {
    return (ggml_graph_node(graph_, index_)->flags & GGML_TENSOR_FLAG_OUTPUT) == 0 &&
           ggml_node_get_use_count(graph_, index_) == readers;
  }
  int position() const noexcept { return position_; }
  const ProductSettings& settings() const noexcept { return settings_; }

 private:
  ggml_cgraph* graph_;
  int position_;
  int index_ = 0;
  const ProductSettings& settings_;
};

struct Term {
  WeightProduct product;
  const ggml_tensor* result = nullptr;
};

// MUL_MAT_ID of whole matrices, and the ADD_ID behind it where there is one. `ahead` is the next node, in and
// out.
std::optional<Term> take_product(Walk& walk, ggml_tensor*& ahead, int readers) {
  ggml_tensor* node = ahead;
  if (node == nullptr || node->op != GGML_OP_MUL_MAT_ID || !has_row_product(node->src[0]))
    return std::nullopt;
  Term term{WeightProduct(node->src[0], 0, node->src[0]->ne[1], walk.settings()), node};
  const bool is_read_once = walk.is_read_only_by(1), has_readers = walk.is_read_only_by(readers);
  ahead = walk.next();
  if (ahead == nullptr || ahead->op != GGML_OP_ADD_ID || ahead->src[0] != node)
    return has_readers ? std::optional(term) : std::nullopt;
  const ggml_tensor* bias = ahead->src[1];
  if (!is_read_once || ahead->src[2] != node->src[2] || bias->type != GGML_TYPE_F32 ||
      bias->nb[0] != sizeof(float))
    return std::nullopt;
  term.product.bias = bias;
  term.result = ahead;
  if (!walk.is_read_only_by(readers)) return std::nullopt;
  ahead = walk.next();
  return term;
}

bool set_activation(const ggml_tensor* node, ExpertChain& chain) {
  if (node->op != GGML_OP_GLU || node->src[1] == nullptr) return false;
  switch (ggml_get_glu_op(node)) {
    case GGML_GLU_OP_SWIGLU:
      chain.activation = Activation::kSwiglu;
      return true;
    case GGML_GLU_OP_SWIGLU_OAI:
      chain.activation = Activation::kSwigluOai;
      std::memcpy(&chain.alpha, node->op_params + 2, sizeof(float));
      std::memcpy(&chain.limit, node->op_params + 3, sizeof(float));
      return true;
    default:
      return false;
  }
}

bool is_view_at(const ggml_tensor* view, const ggml_tensor* source, size_t offset) noexcept {
  return view->view_src == source && view->view_offs == offset;
}

// Gate and up as two products, in either order, or as the halves of one. Leaves `ahead` on the activation.
bool take_gate_and_up(Walk& walk, ggml_tensor*& ahead, ExpertChain& chain) {
  const bool is_merged = part_count(ahead->src[0]) == 2;
  const auto first = take_product(walk, ahead, is_merged ? 2 : 1);
  if (!first) return false;
  if (is_merged) {
    if (ahead == nullptr || !set_activation(ahead, chain)) return false;
    const int64_t rows = first->product.row_count / 2;
    if (!is_view_at(ahead->src[0], first->result, 0) ||
        !is_view_at(ahead->src[1], first->result, static_cast<size_t>(rows) * sizeof(float)))
      return false;
    chain.gate = chain.up = first->product;
    chain.gate.row_count = chain.up.row_count = rows;
    chain.up.first_row = rows;
    return true;
  }
  const auto second = take_product(walk, ahead, 1);
  if (!second || ahead == nullptr || !set_activation(ahead, chain)) return false;
  const bool first_is_up = ahead->src[0] == second->result && ahead->src[1] == first->result;
  const bool first_is_gate = ahead->src[0] == first->result && ahead->src[1] == second->result;
  if (!first_is_up && !first_is_gate) return false;
  chain.up = first_is_up ? first->product : second->product;
  chain.gate = first_is_up ? second->product : first->product;
  return chain.up.weight->ne[1] == chain.gate.weight->ne[1] && chain.up.shares_activations_with(chain.gate);
}

// ADD over views of `weighted`, one per used expert, in order.
ggml_tensor* take_sum(Walk& walk, const ggml_tensor* weighted) {
  ggml_tensor* sum = nullptr;
  for (int64_t choice = 1; choice < weighted->ne[1]; ++choice) {
    if (sum != nullptr && !walk.is_read_only_by(1)) return nullptr;
    ggml_tensor* node = walk.next();
    if (node == nullptr || node->op != GGML_OP_ADD) return nullptr;
    const bool left = choice == 1 ? is_view_at(node->src[0], weighted, 0) : node->src[0] == sum;
    if (!left || !is_view_at(node->src[1], weighted, static_cast<size_t>(choice) * weighted->nb[1]))
      return nullptr;
    sum = node;
  }
  return sum;
}

}  // namespace

bool is_empty_operation(const ggml_tensor* node) noexcept {
  return node->op == GGML_OP_NONE || node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE ||
         node->op == GGML_OP_PERMUTE || node->op == GGML_OP_TRANSPOSE ||
         (node->flags & GGML_TENSOR_FLAG_COMPUTE) == 0 || ggml_is_empty(node);
}

std::optional<ExpertChain> match_chain(ggml_cgraph* graph, int first, const ProductSettings& settings) {
  Walk walk(graph, first, settings);
  ggml_tensor* ahead = walk.next();
  if (ahead == nullptr || ahead->op != GGML_OP_MUL_MAT_ID) return std::nullopt;
  ExpertChain chain;
  chain.input = ahead->src[1];
  chain.ids = ahead->src[2];
  if (chain.input->type != GGML_TYPE_F32 || chain.input->ne[1] != 1 || chain.input->nb[0] != sizeof(float))
    return std::nullopt;
  const ggml_tensor* first_input = chain.input;
  if (!take_gate_and_up(walk, ahead, chain)) return std::nullopt;
  const ggml_tensor* hidden = ahead;
  // Both products read the same activations for the same experts.
  for (const ggml_tensor* result : {hidden->src[0], hidden->src[1]}) {
    const ggml_tensor* product = root(result);
    if (product->op == GGML_OP_ADD_ID) product = product->src[0];
    if (product->src[1] != first_input || product->src[2] != chain.ids) return std::nullopt;
  }
  if (!walk.is_read_only_by(1)) return std::nullopt;
  ahead = walk.next();
  const ggml_tensor* down = ahead;
  const auto down_term = take_product(walk, ahead, 1);
  if (!down_term || down->src[1] != hidden || down->src[2] != chain.ids) return std::nullopt;
  chain.down = down_term->product;
  const ggml_tensor* weighted = ahead;
  if (weighted == nullptr || weighted->op != GGML_OP_MUL || weighted->src[0] != down_term->result ||
      weighted->src[1]->ne[0] != 1 || weighted->src[1]->type != GGML_TYPE_F32 || weighted->ne[1] < 2 ||
      !walk.is_read_only_by(static_cast<int>(weighted->ne[1])))
    return std::nullopt;
  chain.weights = weighted->src[1];
  chain.output = take_sum(walk, weighted);
  if (chain.output == nullptr || chain.output->nb[0] != sizeof(float)) return std::nullopt;
  chain.node_count = walk.position() - first;
  return chain;
}

namespace {

// Whether `tensor` comes out of our product through small operations only.
bool comes_from_product(const ggml_tensor* tensor, ProductTest is_ours, int depth) {
  tensor = root(tensor);
  if (tensor == nullptr || depth == 0) return false;
  if (is_ours(tensor)) return true;
  const bool is_small =
      tensor->op == GGML_OP_GLU || tensor->op == GGML_OP_MUL || tensor->op == GGML_OP_ADD_ID;
  return is_small && comes_from_product(tensor->src[0], is_ours, depth - 1);
}

}  // namespace

bool belongs_to_chain(const ggml_tensor* operation, ProductTest is_ours) {
  constexpr int kLongestPath = 4;  // product, bias, router weights, and the view in between
  switch (operation->op) {
    case GGML_OP_MUL_MAT_ID:
      return is_ours(operation);
    case GGML_OP_GLU:
    case GGML_OP_MUL:
    case GGML_OP_ADD_ID:
      return comes_from_product(operation->src[0], is_ours, kLongestPath);
    case GGML_OP_ADD:
      // The running sum: its second term is one expert's view of the weighted products.
      return operation->src[1]->view_src != nullptr &&
             comes_from_product(operation->src[1], is_ours, kLongestPath);
    default:
      return false;
  }
}

}  // namespace stratad
