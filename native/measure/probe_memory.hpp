// Memory that benchmarks read: placed like the weights of a model, and holding weights.
#pragma once

#include <cstddef>
#include <memory>

#include "arena/arena.hpp"
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

}  // namespace stratad
