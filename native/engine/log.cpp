#include "engine/log.hpp"

#include <deque>
#include <mutex>

#include "llama.h"

namespace stratad {
namespace {

constexpr size_t kRememberedLines = 16;

struct Log {
  std::mutex mutex;
  std::deque<std::string> lines;
};

Log& log() {
  static Log instance;
  return instance;
}

void remember(ggml_log_level level, const char* text, void*) {
  if (level != GGML_LOG_LEVEL_WARN && level != GGML_LOG_LEVEL_ERROR) return;
  std::string line(text);
  while (!line.empty() && line.back() == '\n') line.pop_back();
  if (line.empty()) return;
  const std::lock_guard guard(log().mutex);
  log().lines.push_back(std::move(line));
  if (log().lines.size() > kRememberedLines) log().lines.pop_front();
}

}  // namespace

void capture_llama_log() {
  static std::once_flag once;
  std::call_once(once, [] {
    log();  // constructed before llama.cpp can call back, so destroyed after it
    llama_log_set(remember, nullptr);
  });
}

std::string take_llama_log() {
  const std::lock_guard guard(log().mutex);
  std::string joined;
  for (const std::string& line : log().lines) joined += (joined.empty() ? "" : "; ") + line;
  log().lines.clear();
  return joined;
}

}  // namespace stratad
