// CPU affinity of the calling thread, as values: read it, set it, put it back.
#pragma once

#include <sched.h>

#include <span>
#include <vector>

namespace stratad {

// Pins the calling thread to one CPU. Throws std::system_error when the kernel refuses, for example because
// the CPU lies outside the process's cpuset.
void pin_calling_thread(int cpu_id);

// Lets the calling thread run on `cpu_ids` while this object lives; restores the former mask afterwards.
// Threads created meanwhile inherit the wider mask: that is how ggml's helper threads get theirs.
class ScopedAffinity {
 public:
  explicit ScopedAffinity(std::span<const int> cpu_ids);
  ~ScopedAffinity();
  ScopedAffinity(const ScopedAffinity&) = delete;
  ScopedAffinity& operator=(const ScopedAffinity&) = delete;

 private:
  bool changed_ = false;
  std::vector<unsigned long> former_mask_;
};

}  // namespace stratad
