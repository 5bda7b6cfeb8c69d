#include "placement/memory_policy.hpp"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <system_error>

namespace stratad {
namespace {

constexpr int kBitsPerWord = sizeof(unsigned long) * CHAR_BIT;
constexpr int kMaskWords = 16;
using NodeMask = std::array<unsigned long, kMaskWords>;

// The calls count one bit more than they read.
constexpr unsigned long kMaskBits = kMaskWords * kBitsPerWord;

bool fill(NodeMask& mask, std::span<const int> node_ids) noexcept {
  mask.fill(0);
  for (int node_id : node_ids) {
    if (node_id < 0 || node_id >= static_cast<int>(kMaskBits)) return false;
    mask[node_id / kBitsPerWord] |= 1UL << (node_id % kBitsPerWord);
  }
  return true;
}

}  // namespace

ScopedTouchPolicy::ScopedTouchPolicy(std::span<const int> node_ids) noexcept {
  if (node_ids.empty()) return;
  NodeMask mask;
  if (!fill(mask, node_ids)) {
    error_number_ = EINVAL;
    return;
  }
  if (syscall(SYS_get_mempolicy, &former_mode_, former_mask_, kMaskBits, nullptr, 0) != 0) {
    error_number_ = errno;
    return;
  }
  const int mode = node_ids.size() == 1 ? MPOL_PREFERRED : MPOL_INTERLEAVE;
  if (syscall(SYS_set_mempolicy, mode, mask.data(), kMaskBits) != 0) {
    error_number_ = errno;
    return;
  }
  changed_ = true;
}

ScopedTouchPolicy::~ScopedTouchPolicy() {
  if (!changed_) return;
  const bool has_nodes = std::any_of(std::begin(former_mask_), std::end(former_mask_),
                                     [](unsigned long word) { return word != 0; });
  syscall(SYS_set_mempolicy, former_mode_, has_nodes ? former_mask_ : nullptr, has_nodes ? kMaskBits : 0UL);
}

int set_thread_policy(PolicyMode mode, std::span<const int> node_ids) noexcept {
  NodeMask mask;
  if (!fill(mask, node_ids)) return EINVAL;
  if (mode == PolicyMode::kDefault)
    return syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0UL) == 0 ? 0 : errno;
  const int kernel_mode = mode == PolicyMode::kPreferred ? MPOL_PREFERRED : MPOL_INTERLEAVE;
  return syscall(SYS_set_mempolicy, kernel_mode, mask.data(), kMaskBits) == 0 ? 0 : errno;
}

std::vector<PolicyFailure> probe_memory_policy() {
  std::vector<PolicyFailure> failures;
  int mode = 0;
  NodeMask mask{};
  if (syscall(SYS_get_mempolicy, &mode, mask.data(), kMaskBits, nullptr, 0) != 0) {
    failures.push_back({"get_mempolicy", errno});
  } else if (syscall(SYS_set_mempolicy, mode, mask.data(), kMaskBits) != 0) {
    failures.push_back({"set_mempolicy", errno});
  }
  alignas(4096) static std::byte page[4096];
  if (syscall(SYS_mbind, page, sizeof page, MPOL_DEFAULT, nullptr, 0UL, 0) != 0)
    failures.push_back({"mbind", errno});
  void* address = page;
  int node = 0;
  if (syscall(SYS_move_pages, 0, 1UL, &address, nullptr, &node, 0) < 0)
    failures.push_back({"move_pages", errno});
  return failures;
}

int protect_from_balancing(std::span<std::byte> mapping, std::span<const int> node_ids) noexcept {
  NodeMask mask;
  if (node_ids.empty() || mapping.empty()) return 0;
  if (!fill(mask, node_ids)) return EINVAL;
  const long result =
      syscall(SYS_mbind, mapping.data(), mapping.size(), MPOL_INTERLEAVE, mask.data(), kMaskBits, 0);
  return result == 0 ? 0 : errno;
}

std::vector<int32_t> nodes_of_pages(std::span<void* const> addresses) {
  std::vector<int32_t> nodes(addresses.size(), -ENOENT);
  if (addresses.empty()) return nodes;
  std::vector<void*> pages(addresses.begin(), addresses.end());
  if (syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, nodes.data(), 0) < 0)
    throw std::system_error(errno, std::generic_category(), "move_pages");
  return nodes;
}

size_t move_pages_to(std::span<void* const> addresses, int node_id) {
  if (addresses.empty()) return 0;
  std::vector<void*> pages(addresses.begin(), addresses.end());
  const std::vector<int32_t> targets(pages.size(), node_id);
  std::vector<int32_t> results(pages.size(), -ENOENT);
  // ENOMEM: the node is full, and the kernel has moved as many as it could. That is no refusal.
  if (syscall(SYS_move_pages, 0, pages.size(), pages.data(), targets.data(), results.data(), MPOL_MF_MOVE) <
          0 &&
      errno != ENOMEM)
    throw std::system_error(errno, std::generic_category(), "move_pages");
  // `results` stays unwritten for all pages of the call as soon as one of them has to stay where it is
  // (mm/migrate.c, move_pages_and_store_status), so the kernel is asked where they are now.
  const std::vector<int32_t> nodes = nodes_of_pages(addresses);
  return static_cast<size_t>(std::count(nodes.begin(), nodes.end(), node_id));
}

}  // namespace stratad
