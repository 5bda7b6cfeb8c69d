#include "backend/graph_order.hpp"

#include <algorithm>

#include "ggml-impl.h"  // the order of a graph's nodes

namespace stratad {
namespace {

// How far behind the first the others are looked for; one layer's attention has some 30 nodes.
constexpr int kWindow = 64;

// A product whose weight is no result of the graph may stand anywhere behind its activations.
bool is_movable(const ggml_tensor* node) noexcept {
  return node->op == GGML_OP_MUL_MAT && node->src[0]->op == GGML_OP_NONE && node->src[0]->view_src == nullptr;
}

}  // namespace

void gather_products(ggml_cgraph* graph) noexcept {
  ggml_tensor** nodes = graph->nodes;
  for (int first = 0; first < graph->n_nodes; ++first) {
    if (!is_movable(nodes[first])) continue;
    int behind = first + 1;
    const int end = std::min(graph->n_nodes, first + kWindow);
    for (int index = behind; index < end; ++index) {
      if (!is_movable(nodes[index]) || nodes[index]->src[1] != nodes[first]->src[1]) continue;
      std::rotate(nodes + behind, nodes + index, nodes + index + 1);
      ++behind;
    }
    first = behind - 1;
  }
}

}  // namespace stratad
