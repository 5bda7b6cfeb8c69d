// The rate at which the pool's workers can read memory when they do nothing else: the ceiling that every
// benchmark of a memory-bound kernel is held against.
#pragma once

#include "arena/arena.hpp"

namespace stratad {

// Bytes per second of one pass over the arena by all workers of `pool`. Pieces are dealt out to slices
// without regard to where they lie: on a machine with several nodes this is the rate of an interleaved read.
double measure_read_rate(const Arena& arena, Pool& pool);

}  // namespace stratad
