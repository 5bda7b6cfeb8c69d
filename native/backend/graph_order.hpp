// Puts products of the same activations next to each other in a graph, so that they can be one job: Q, K and
// V; the router and the shared expert's gate and up.
#pragma once

#include "ggml.h"

namespace stratad {

// To be called before the graph's memory is allocated: a product that is moved up must not write over what
// the operations it passes still read.
void gather_products(ggml_cgraph* graph) noexcept;

}  // namespace stratad
