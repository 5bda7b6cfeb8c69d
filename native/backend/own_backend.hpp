// The backend for machines without a GPU: it owns the whole graph. Dense products, expert chains and decode
// attention run on the pool; the small operations between them run in stretches on the calling thread; a
// graph of more tokens than the pool takes goes to ggml's CPU backend as it is, with all its threads.
//
// It is a ggml CPU backend whose graph computation is ours. What llama.cpp asks of a CPU backend (which
// operations it supports, its threads, its abort callback) is answered by the original, and the scheduler
// assigns every node to it: one split, and no claim to keep in step with ggml.
#pragma once

#include "backend/device.hpp"
#include "ggml-backend.h"

namespace stratad {

// device: what the backend says it belongs to.
ggml_backend_t make_own_backend(const BackendSettings& settings, ggml_backend_dev_t device);

}  // namespace stratad
