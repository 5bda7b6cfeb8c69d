// ggml's own threads, for what is handed to its CPU backend.
#pragma once

#include <span>

#include "ggml-cpu.h"

namespace stratad {

// `count` threads (the calling one is the first of them), all allowed on `cpu_ids`; wherever the caller may
// run when that is empty. Threads inherit the caller's memory policy. Throws std::runtime_error when none can
// be started. The caller frees it.
ggml_threadpool_t start_ggml_threads(int count, std::span<const int> cpu_ids);

}  // namespace stratad
