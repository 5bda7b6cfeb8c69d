#include "gpu/slot_table.hpp"

#include <cmath>

namespace stratad {
namespace {

// A newcomer must be used that much more than who it drives out: a copy costs as much as the misses it saves,
// and equals would take turns.
constexpr double kClearlyMore = 1.5;
constexpr double kLargestWeight = 1e100;  // rescaled long before doubles run out

}  // namespace

SlotTable::SlotTable(int expert_count, int slot_count)
    : slot_of_(static_cast<size_t>(expert_count), kNone),
      expert_in_(static_cast<size_t>(slot_count), kNone),
      loading_(static_cast<size_t>(slot_count), kNone),
      scores_(static_cast<size_t>(expert_count), 0) {}

void SlotTable::next_step() noexcept {
  static const double growth = std::exp2(1 / kHalfLifeSteps);
  weight_ *= growth;
  if (weight_ < kLargestWeight) return;
  for (double& score : scores_) score /= weight_;
  weight_ = 1;
}

std::optional<Swap> SlotTable::best_swap() const noexcept {
  int32_t newcomer = kNone, slot = kNone;
  for (int32_t expert = 0; expert < expert_count(); ++expert) {
    if (slot_of_[expert] != kNone || scores_[expert] <= 0) continue;
    if (newcomer == kNone || scores_[expert] > scores_[newcomer]) newcomer = expert;
  }
  if (newcomer == kNone) return std::nullopt;
  for (int32_t candidate = 0; candidate < slot_count(); ++candidate) {
    if (loading_[candidate] != kNone) continue;
    if (expert_in_[candidate] == kNone) return Swap{newcomer, candidate};
    if (slot == kNone || scores_[expert_in_[candidate]] < scores_[expert_in_[slot]]) slot = candidate;
  }
  if (slot == kNone || scores_[newcomer] <= kClearlyMore * scores_[expert_in_[slot]]) return std::nullopt;
  return Swap{newcomer, slot};
}

void SlotTable::begin(const Swap& swap) noexcept {
  if (expert_in_[swap.slot] != kNone) {
    slot_of_[expert_in_[swap.slot]] = kNone;
    --resident_count_;
  }
  expert_in_[swap.slot] = kNone;
  loading_[swap.slot] = swap.expert;
  slot_of_[swap.expert] = kLoading;
}

void SlotTable::finish(const Swap& swap) noexcept {
  loading_[swap.slot] = kNone;
  expert_in_[swap.slot] = swap.expert;
  slot_of_[swap.expert] = swap.slot;
  ++resident_count_;
}

void SlotTable::abandon(const Swap& swap) noexcept {
  loading_[swap.slot] = kNone;
  slot_of_[swap.expert] = kNone;
}

std::vector<float> SlotTable::profile() const {
  std::vector<float> profile;
  for (double score : scores_) profile.push_back(static_cast<float>(score / weight_));
  return profile;
}

void SlotTable::set_profile(const std::vector<float>& scores) {
  for (size_t expert = 0; expert < scores_.size() && expert < scores.size(); ++expert)
    scores_[expert] = weight_ * static_cast<double>(scores[expert]);
}

}  // namespace stratad
