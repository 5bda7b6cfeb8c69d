#include "backend/ggml_threads.hpp"

#include <stdexcept>

#include "placement/thread_affinity.hpp"

namespace stratad {

// Without a threadpool of its own, ggml starts and ends one for every part of a graph; with one that polls,
// its idle threads spin on the CPUs our workers need (both measured, ADR 0001).
ggml_threadpool_t start_ggml_threads(int count, std::span<const int> cpu_ids) {
  const ScopedAffinity affinity(cpu_ids);
  auto parameters = ggml_threadpool_params_default(count);
  parameters.poll = 0;
  ggml_threadpool_t threadpool = ggml_threadpool_new(&parameters);
  if (threadpool == nullptr) throw std::runtime_error("ggml cannot start its threads");
  return threadpool;
}

}  // namespace stratad
