#include "backend/device_state.hpp"

#include "backend/expert_chain.hpp"

namespace stratad {

DeviceState& DeviceState::instance() {
  static DeviceState device_state;
  return device_state;
}

bool DeviceState::takes_batch(const ggml_tensor* weight, int64_t tokens) const noexcept {
  if (const auto limit = max_pool_tokens.load(std::memory_order_relaxed)) return tokens <= *limit;
  const auto set = kernels.load(std::memory_order_relaxed);
  return tokens <= kRowByRowTokens ||
         (set && WeightProduct(weight, 0, weight->ne[1], set).multiplies_by_panels(tokens));
}

bool DeviceState::takes_experts(const ggml_tensor* node) const noexcept {
  return node->src[1]->type == GGML_TYPE_F32 && node->src[1]->nb[0] == sizeof(float) &&
         has_row_product(node->src[0]) && takes_batch(node->src[0], node->src[2]->ne[1]);
}

int DeviceState::run_experts(ggml_cgraph* graph, int first) {
  if (fuse_chains.load(std::memory_order_relaxed)) {
    if (const auto chain = match_chain(graph, first, kernels)) {
      chain_job.prepare(*chain, *pool);
      run(chain_job, counters.expert_bytes);
      ++counters.fused_chains;
      return chain->node_count;
    }
  }
  ++counters.fallback_operations;
  product_job.prepare(ggml_graph_node(graph, first), *pool, kernels);
  run(product_job, counters.expert_bytes);
  return 1;
}

}  // namespace stratad
