// Whether the CPU's tile registers (AMX) may be used here: RowKernel::multiply_tiles rests on it.
//
// Three things have to hold: the CPU has tiles that multiply bytes, the kernel lets this process use them
// (their 8 KiB are no part of a thread's state before it asks), and products come out right on every thread
// that is to multiply. Tiles that are refused are a reason to multiply by panels, never an error.
#pragma once

#include <optional>
#include <string>

#include "kernels/tile_support.hpp"
#include "pool/pool.hpp"

namespace stratad {

// What speaks against using tiles, as a sentence for people without a full stop; nothing where nothing does.
using TileObjection = std::optional<std::string>;

TileObjection objection_to(const TileSupport& support);

// Asks the kernel to let this process, all its threads of now and later, use tile registers.
TileObjection ask_for_tiles();

// Runs a check once on each worker of the pool, worker 0's on its CPU by the calling thread; gives on how
// many it failed. Every worker holds its check until all have begun theirs, so each has exactly one.
int count_failing_workers(Pool& pool, bool (*check)() noexcept);

// Asks, once in the life of the process, and multiplies some tiles on the calling thread. Without objection
// that thread may call multiply_tiles.
TileObjection prepare_tiles();

// The same with products on every worker of the pool: without objection all of them may. Runs a job.
TileObjection prepare_tiles(Pool& pool);

}  // namespace stratad
