// Which experts a batch uses and for which tokens, read once from the router's ids.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ggml.h"

namespace stratad {

// In place of an expert's number: this choice is computed elsewhere and is none of the pool's.
inline constexpr int32_t kElsewhere = -1;

// A slot is one (token, choice) pair: token * used_count + choice.
class Routing {
 public:
  // ids: (used, tokens) of int32, an expert's number or kElsewhere each. Copies everything it needs: the
  // graph allocator may put a result over ids.
  void read(const ggml_tensor* ids, int64_t expert_count);

  int token_count() const noexcept { return token_count_; }
  int used_count() const noexcept { return used_count_; }
  int slot_count() const noexcept { return token_count_ * used_count_; }
  int32_t expert_of(int slot) const noexcept { return expert_of_slot_[slot]; }

  // The distinct experts in order of first use, and the slots of each; what is computed elsewhere is left
  // out.
  int expert_count() const noexcept { return static_cast<int>(experts_.size()); }
  int32_t expert(int index) const noexcept { return experts_[index]; }
  std::span<const int> slots(int index) const noexcept {
    return std::span(slots_).subspan(starts_[index], starts_[index + 1] - starts_[index]);
  }

 private:
  int token_count_ = 0, used_count_ = 0;
  std::vector<int32_t> expert_of_slot_, experts_;
  std::vector<int> slots_, starts_, next_, index_of_expert_;
};

}  // namespace stratad
