// The expert chain of one layer, recognised in ggml's graph: gate, up, activation, down, router weights, sum.
//
// Shapes come from llm_graph_context::build_moe_ffn of the pinned llama.cpp. What does not match is computed
// operation by operation, which is correct and slower, and is counted.
#pragma once

#include <optional>

#include "backend/weight_product.hpp"
#include "ggml-backend.h"

namespace stratad {

enum class Activation { kSwiglu, kSwigluOai };

struct ExpertChain {
  WeightProduct gate, up, down;
  Activation activation = Activation::kSwiglu;
  float alpha = 0, limit = 0;            // of kSwigluOai
  const ggml_tensor* input = nullptr;    // (embedding, 1, tokens), float
  const ggml_tensor* ids = nullptr;      // (used, tokens), int32
  const ggml_tensor* weights = nullptr;  // (1, used, tokens), float
  ggml_tensor* output = nullptr;         // (embedding, tokens), float
  int node_count = 0;                    // nodes of the graph that this chain covers
};

// The chain that starts at node `first`, which must be an expert product. Nothing when the graph ends early
// (an evaluation callback hands over partial graphs), when a result inside the chain has another reader or is
// an output, or when the shape is another one. `settings`: how its weights are to be multiplied.
std::optional<ExpertChain> match_chain(ggml_cgraph* graph, int first, const ProductSettings& settings);

// Whether this operation lies inside a chain over products that `is_ours` accepts: used to claim the small
// operations between the products, so that a layer's experts are one split.
using ProductTest = bool (*)(const ggml_tensor*);
bool belongs_to_chain(const ggml_tensor* operation, ProductTest is_ours);

bool is_empty_operation(const ggml_tensor* node) noexcept;

}  // namespace stratad
