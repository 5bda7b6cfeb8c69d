#include "backend/own_graph.hpp"

#include <algorithm>

#include "backend/expert_chain.hpp"
#include "ggml-impl.h"  // ggml_graph_view

namespace stratad {
namespace {

// From here on an operation between pool jobs is worth all of ggml's threads. Only one that the pool does not
// know gets this far in a decode step.
constexpr size_t kLargestStretchBytes = size_t{1} << 20;

int64_t tokens_of_experts(const ggml_tensor* node) noexcept {
  return node->src[2]->ne[1];
}

bool is_weight_product(const ggml_tensor* node) noexcept {
  return node->op == GGML_OP_MUL_MAT && node->src[0]->op == GGML_OP_NONE;
}

// The bytes that an operation works through, roughly.
size_t work_bytes(const ggml_tensor* node) noexcept {
  const bool is_product = node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID;
  return ggml_nbytes(is_product ? node->src[0] : node);
}

}  // namespace

// That of its expert products. A dense model's is that of its largest product, where heads can pass for
// tokens: there ggml computes what the pool could have.
int64_t OwnGraph::batch_tokens() const noexcept {
  int64_t tokens = 0, rows = 0;
  for (int index = 0; index < ggml_graph_n_nodes(graph_); ++index) {
    const ggml_tensor* node = ggml_graph_node(graph_, index);
    if (is_empty_operation(node)) continue;
    if (node->op == GGML_OP_MUL_MAT_ID) tokens = std::max(tokens, tokens_of_experts(node));
    if (is_weight_product(node)) rows = std::max(rows, node->src[1]->ne[1]);
  }
  return tokens > 0 ? tokens : rows;
}

// The pool has a part in a large batch when it takes one of its products.
bool OwnGraph::is_for_ggml() const noexcept {
  const int64_t tokens = batch_tokens();
  const auto limit = device_.max_pool_tokens.load(std::memory_order_relaxed);
  if (limit && tokens > *limit) return true;
  for (int index = 0; index < ggml_graph_n_nodes(graph_); ++index) {
    const ggml_tensor* node = ggml_graph_node(graph_, index);
    if (is_empty_operation(node) || kind_of(node) == Kind::kSmall) continue;
    const bool is_product = node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID;
    if (tokens <= kRowByRowTokens || (is_product && device_.takes_batch(node, tokens))) return false;
  }
  return true;
}

ggml_status OwnGraph::compute() {
  const int count = ggml_graph_n_nodes(graph_);
  int stretch = 0;
  for (int index = 0; index < count;) {
    const ggml_tensor* node = ggml_graph_node(graph_, index);
    const Kind kind = is_empty_operation(node) ? Kind::kSmall : kind_of(node);
    if (kind == Kind::kSmall) {
      ++index;
      continue;
    }
    if (const ggml_status status = compute_stretch(stretch, index); status != GGML_STATUS_SUCCESS)
      return status;
    index += run(kind, index);
    if (status_ != GGML_STATUS_SUCCESS) return status_;
    stretch = index;
  }
  return compute_stretch(stretch, count);
}

OwnGraph::Kind OwnGraph::kind_of(const ggml_tensor* node) const noexcept {
  switch (node->op) {
    case GGML_OP_MUL_MAT_ID:
      return device_.takes_experts(node) ? Kind::kExperts : Kind::kSmall;
    case GGML_OP_MUL_MAT:
      return ggml_nbytes(node->src[0]) >= device_.smallest_product_bytes ? kind_of_product(node)
                                                                         : Kind::kSmall;
    case GGML_OP_FLASH_ATTN_EXT:
      return is_cut_by_heads(node) ? Kind::kAttention : Kind::kSmall;
    default:
      return Kind::kSmall;
  }
}

// Our row kernels take any number of tokens, but without panels ggml's are faster for many. ggml's dot
// product has ggml's bits for one token only.
OwnGraph::Kind OwnGraph::kind_of_product(const ggml_tensor* node) const noexcept {
  const int64_t tokens = node->src[1]->ne[1];
  const bool has_kernel =
      WeightProduct(node->src[0], 0, node->src[0]->ne[1], device_.products).kernel != nullptr;
  if (is_row_product(node) && (tokens == 1 || (has_kernel && device_.takes_batch(node, tokens))))
    return Kind::kDense;
  return is_lane_product(node) ? Kind::kLaneProduct : Kind::kSmall;
}

// Returns how many nodes that was.
int OwnGraph::run(Kind kind, int index) {
  ggml_tensor* node = ggml_graph_node(graph_, index);
  switch (kind) {
    case Kind::kExperts:
      return device_.run_experts(graph_, index);
    case Kind::kDense:
      return run_dense(index);
    case Kind::kLaneProduct:
      device_.lane_product_job.prepare(node, *device_.pool, device_.lanes);
      device_.run(device_.lane_product_job, device_.counters.dense_bytes);
      ++device_.counters.lane_products;
      status_ = device_.lane_product_job.status();
      return 1;
    default:
      attend(node);
      return 1;
  }
}

void OwnGraph::attend(const ggml_tensor* node) {
  ++device_.counters.attentions;
  const auto set = device_.kernels.load(std::memory_order_relaxed);
  if (set && is_prompt_attention(node)) {
    device_.prompt_attention_job.prepare(node, *device_.pool, *set);
    device_.pool->run(device_.prompt_attention_job);
    return;
  }
  device_.attention_job.prepare(node, *device_.pool, device_.lanes);
  device_.pool->run(device_.attention_job);
  status_ = device_.attention_job.status();
}

// The product at `first` and those of the same activations right behind it: gather_products() put them there.
int OwnGraph::run_dense(int first) {
  std::vector<ggml_tensor*>& nodes = device_.dense_nodes;
  nodes.assign(1, ggml_graph_node(graph_, first));
  int end = first + 1;
  for (int index = end; index < ggml_graph_n_nodes(graph_); ++index) {
    ggml_tensor* node = ggml_graph_node(graph_, index);
    if (is_empty_operation(node)) continue;
    if (kind_of(node) != Kind::kDense || node->src[1] != nodes.front()->src[1]) break;
    nodes.push_back(node);
    end = index + 1;
  }
  device_.dense_job.prepare(nodes, *device_.pool, device_.products);
  device_.run(device_.dense_job, device_.counters.dense_bytes);
  ++device_.counters.dense_jobs;
  return end - first;
}

ggml_status OwnGraph::compute_stretch(int begin, int end) {
  if (settings_.abort != nullptr && settings_.abort(settings_.abort_data)) return GGML_STATUS_ABORTED;
  bool has_work = false, is_large = false;
  for (int index = begin; index < end; ++index) {
    const ggml_tensor* node = ggml_graph_node(graph_, index);
    if (is_empty_operation(node)) continue;
    has_work = true;
    // Attention stays on one thread: with several, ggml cuts long caches by thread and the bits change.
    is_large = is_large || (node->op != GGML_OP_FLASH_ATTN_EXT && work_bytes(node) > kLargestStretchBytes);
  }
  if (!has_work) return GGML_STATUS_SUCCESS;
  ++device_.counters.stretches;
  if (!is_large) return device_.lanes[0]->compute(graph_, begin, end);
  ggml_cgraph stretch = ggml_graph_view(graph_, begin, end);
  return ggml_backend_graph_compute(whole_, &stretch);
}

}  // namespace stratad
