// Memory that benchmarks read: placed like the weights of a model, and holding weights.
#pragma once

#include <cstddef>
#include <memory>

#include "arena/arena.hpp"
#include "ggml.h"
#include "pool/pool.hpp"

namespace stratad {

// The matrices that a probe reads: one of a typical expert's, in the type that most models are served in.
inline constexpr int64_t kProbeRows = 768, kProbeColumns = 2048;

// Bytes of one such matrix.
size_t probe_matrix_bytes() noexcept;

// Places `size_bytes` (rounded up to whole matrices) on the nodes of the pool's slices and fills them with
// weights on its workers. Throws as Arena::place does.
std::shared_ptr<Arena> place_probe_memory(size_t size_bytes, std::shared_ptr<Pool> pool,
                                          const Progress& progress);

// Whether rows of this type and length can be made out of floats alone.
bool can_place_weights(ggml_type type, int64_t columns) noexcept;

// Likewise `size_bytes` (rounded up to whole pages) of rows of any type. Throws std::invalid_argument
// where can_place_weights() says no.
std::shared_ptr<Arena> place_weights(ggml_type type, int64_t columns, size_t size_bytes,
                                     std::shared_ptr<Pool> pool, const Progress& progress);

}  // namespace stratad
