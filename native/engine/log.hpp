// llama.cpp's log, kept quiet: the last warnings and errors are remembered, so that an exception can say why.
#pragma once

#include <string>

namespace stratad {

// Redirects the log of llama.cpp and ggml here. Idempotent.
void capture_llama_log();

// The remembered lines since the last call, oldest first, joined by "; ".
std::string take_llama_log();

}  // namespace stratad
