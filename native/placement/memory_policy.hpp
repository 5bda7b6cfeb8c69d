// The kernel's NUMA memory calls, with typed results. Nothing here decides anything.
//
// A refused call is an ordinary outcome (seccomp filters, kernels without NUMA): it comes back as an errno,
// so that the daemon can report it as a Reason and run with CPU pinning only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace stratad {

struct PolicyFailure {
  std::string call;      // "set_mempolicy", "mbind" or "move_pages"
  int error_number = 0;  // errno of the refused call
};

// While it lives, pages that the calling thread touches first go to `node_ids`: preferred for one node,
// interleaved over several. PREFERRED and not BIND: on a full node BIND invites the out-of-memory killer,
// whereas PREFERRED spills and the verification afterwards says so. No nodes: no change.
class ScopedTouchPolicy {
 public:
  explicit ScopedTouchPolicy(std::span<const int> node_ids) noexcept;
  ~ScopedTouchPolicy();
  ScopedTouchPolicy(const ScopedTouchPolicy&) = delete;
  ScopedTouchPolicy& operator=(const ScopedTouchPolicy&) = delete;
  int error_number() const noexcept { return error_number_; }  // 0 when the policy is in force

 private:
  static constexpr int kMaskWords = 16;  // 1024 nodes, the kernel's largest CONFIG_NODES_SHIFT
  bool changed_ = false;
  int error_number_ = 0;
  int former_mode_ = 0;
  unsigned long former_mask_[kMaskWords] = {};
};

enum class PolicyMode { kDefault, kPreferred, kInterleave };

// The policy for pages that the calling thread, and threads it starts later, touch first. Returns 0 or an
// errno.
int set_thread_policy(PolicyMode mode, std::span<const int> node_ids) noexcept;

// Tries the calls that placement needs, changing nothing: what a seccomp filter or kernel refuses, each once.
std::vector<PolicyFailure> probe_memory_policy();

// One explicit policy over a finished mapping, without moving a page. It keeps automatic NUMA balancing from
// taking a placed arena apart (measured in the lab: every page of the far node moved within 25 s without it).
// Returns 0 or an errno.
int protect_from_balancing(std::span<std::byte> mapping, std::span<const int> node_ids) noexcept;

// The node of each page, asked with move_pages as a query; a negative errno where the kernel does not say
// (-EFAULT and -ENOENT mean "ask again after a read"). `addresses` point anywhere into their pages.
// Throws std::system_error when the call itself is refused.
std::vector<int32_t> nodes_of_pages(std::span<void* const> addresses);

// Asks the kernel to move pages to `node_id`. Returns how many lie there afterwards; locked pages, pages that
// other processes share and a full node stay behind. Throws std::system_error when the call itself is
// refused.
size_t move_pages_to(std::span<void* const> addresses, int node_id);

}  // namespace stratad
