#include "placement/thread_affinity.hpp"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string>
#include <system_error>

namespace stratad {
namespace {

// The kernel's own limit on CPU numbers today (CONFIG_NR_CPUS of distribution kernels is at most 8192).
constexpr int kCpuLimit = 8192;
constexpr int kBitsPerWord = sizeof(unsigned long) * CHAR_BIT;

std::vector<unsigned long> mask_of(std::span<const int> cpu_ids) {
  std::vector<unsigned long> mask(kCpuLimit / kBitsPerWord);
  for (int cpu_id : cpu_ids) {
    if (cpu_id < 0 || cpu_id >= kCpuLimit)
      throw std::invalid_argument("CPU number out of range: " + std::to_string(cpu_id));
    mask[cpu_id / kBitsPerWord] |= 1UL << (cpu_id % kBitsPerWord);
  }
  return mask;
}

// The raw call takes masks of any length; glibc's cpu_set_t stops at 1024 CPUs.
long set_affinity(const std::vector<unsigned long>& mask) {
  return syscall(SYS_sched_setaffinity, 0, mask.size() * sizeof(unsigned long), mask.data());
}

}  // namespace

void pin_calling_thread(int cpu_id) {
  if (set_affinity(mask_of(std::span(&cpu_id, 1))) != 0)
    throw std::system_error(errno, std::generic_category(),
                            "sched_setaffinity to CPU " + std::to_string(cpu_id));
}

ScopedAffinity::ScopedAffinity(std::span<const int> cpu_ids) {
  if (cpu_ids.empty()) return;
  former_mask_.resize(kCpuLimit / kBitsPerWord);
  if (syscall(SYS_sched_getaffinity, 0, former_mask_.size() * sizeof(unsigned long), former_mask_.data()) < 0)
    throw std::system_error(errno, std::generic_category(), "sched_getaffinity");
  if (set_affinity(mask_of(cpu_ids)) != 0)
    throw std::system_error(errno, std::generic_category(), "sched_setaffinity to the plan's CPUs");
  changed_ = true;
}

ScopedAffinity::~ScopedAffinity() {
  if (changed_) set_affinity(former_mask_);
}

}  // namespace stratad
