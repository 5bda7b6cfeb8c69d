// The backend that claims the expert chains of a graph and nothing else: for machines whose GPU, or ggml's
// CPU backend, has the rest.
#pragma once

#include "ggml-backend.h"

namespace stratad {

ggml_backend_t make_structural_backend(ggml_backend_dev_t device);

// Whether this operation is, or lies inside, an expert chain on arena weights.
bool is_claimed_by_structure(const ggml_tensor* operation) noexcept;

}  // namespace stratad
