#include "backend/routing.hpp"

namespace stratad {

void Routing::read(const ggml_tensor* ids, int64_t expert_count) {
  used_count_ = static_cast<int>(ids->ne[0]);
  token_count_ = static_cast<int>(ids->ne[1]);
  expert_of_slot_.resize(slot_count());
  index_of_expert_.assign(expert_count, -1);
  experts_.clear();
  for (int token = 0; token < token_count_; ++token) {
    for (int choice = 0; choice < used_count_; ++choice) {
      const char* address = static_cast<const char*>(ids->data) + token * ids->nb[1] + choice * ids->nb[0];
      const int32_t expert = *reinterpret_cast<const int32_t*>(address);
      GGML_ASSERT(expert >= kElsewhere && expert < expert_count);
      expert_of_slot_[token * used_count_ + choice] = expert;
      if (expert == kElsewhere || index_of_expert_[expert] >= 0) continue;
      index_of_expert_[expert] = static_cast<int>(experts_.size());
      experts_.push_back(expert);
    }
  }
  // Counting sort of the slots by expert.
  starts_.assign(experts_.size() + 1, 0);
  for (int32_t expert : expert_of_slot_)
    if (expert != kElsewhere) ++starts_[index_of_expert_[expert] + 1];
  for (size_t index = 1; index < starts_.size(); ++index) starts_[index] += starts_[index - 1];
  slots_.resize(starts_.back());
  next_.assign(starts_.begin(), starts_.end() - 1);
  for (int slot = 0; slot < slot_count(); ++slot)
    if (expert_of_slot_[slot] != kElsewhere) slots_[next_[index_of_expert_[expert_of_slot_[slot]]]++] = slot;
}

}  // namespace stratad
