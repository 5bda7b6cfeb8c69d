// Whether the CPU's tile registers (AMX) may be used here: RowKernel::multiply_tiles rests on it.
//
// Three things have to hold: the CPU has tiles that multiply bytes, the kernel lets this process use them (their
// 8 KiB are no part of a thread's state until it asks), and one product comes out right on the thread that is
// to multiply. Tiles that are refused are a reason to multiply by panels, never an error.
#pragma once

#include <string>

#include "pool/pool.hpp"

namespace stratad {

// Asks the kernel for the process, once, and multiplies one product on the calling thread. Empty: that thread
// may call multiply_tiles. Else why not: a sentence's part for people, without a full stop.
std::string prepare_tiles();

// The same with a product on every worker of the pool: empty only when all of them may. A job is run for it.
std::string prepare_tiles(Pool& pool);

}  // namespace stratad
