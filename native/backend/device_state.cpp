#include "backend/device_state.hpp"

#include "backend/expert_chain.hpp"

namespace stratad {

namespace {

std::vector<uint64_t> copy_of(const SliceTotals& totals, int slice_count) {
  std::vector<uint64_t> values(static_cast<size_t>(slice_count));
  for (int slice = 0; slice < slice_count; ++slice)
    values[slice] = totals[slice].load(std::memory_order_relaxed);
  return values;
}

}  // namespace

DeviceCounters DeviceTotals::copy(int slice_count) const {
  constexpr auto relaxed = std::memory_order_relaxed;
  return {.fused_chains = fused_chains.load(relaxed),
          .fallback_operations = fallback_operations.load(relaxed),
          .expert_bytes = copy_of(expert_bytes, slice_count),
          .graphs = graphs.load(relaxed),
          .dense_jobs = dense_jobs.load(relaxed),
          .lane_products = lane_products.load(relaxed),
          .attentions = attentions.load(relaxed),
          .stretches = stretches.load(relaxed),
          .whole_graphs = whole_graphs.load(relaxed),
          .dense_bytes = copy_of(dense_bytes, slice_count)};
}

DeviceState& DeviceState::instance() {
  static DeviceState device_state;
  return device_state;
}

bool DeviceState::takes_batch(const ggml_tensor* product, int64_t tokens) const noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;
  if (const auto limit = max_pool_tokens.load(relaxed)) return tokens <= *limit;
  const ggml_tensor* weight = product->src[0];
  const bool has_experts = product->op == GGML_OP_MUL_MAT_ID;
  const auto& measured = has_experts ? expert_pool_tokens : dense_pool_tokens;
  if (const auto limit = measured[static_cast<size_t>(weight->type)].load(relaxed)) {
    const int64_t used = has_experts ? product->src[2]->ne[0] : 1;
    return tokens * used <= *limit * weight->ne[2];
  }
  return tokens <= kRowByRowTokens ||
         WeightProduct(weight, 0, weight->ne[1], kernels.load(relaxed)).has_panels();
}

bool DeviceState::takes_experts(const ggml_tensor* node) const noexcept {
  return node->src[1]->type == GGML_TYPE_F32 && node->src[1]->nb[0] == sizeof(float) &&
         has_row_product(node->src[0]) && takes_batch(node, node->src[2]->ne[1]);
}

int DeviceState::run_experts(ggml_cgraph* graph, int first) {
  if (fuse_chains.load(std::memory_order_relaxed)) {
    if (const auto chain = match_chain(graph, first, products)) {
      chain_job.prepare(*chain, *pool);
      run(chain_job, counters.expert_bytes);
      ++counters.fused_chains;
      return chain->node_count;
    }
  }
  ++counters.fallback_operations;
  product_job.prepare(ggml_graph_node(graph, first), *pool, products);
  run(product_job, counters.expert_bytes);
  return 1;
}

}  // namespace stratad
