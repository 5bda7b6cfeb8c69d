// Which experts of one layer lie in which slots of VRAM, and which should: by how often the router chose them
// lately. Knows no device.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace stratad {

// Expert `expert` into slot `slot`.
struct Swap {
  int32_t expert = 0;
  int32_t slot = 0;
};

class SlotTable {
 public:
  SlotTable(int expert_count, int slot_count);

  int expert_count() const noexcept { return static_cast<int>(slot_of_.size()); }
  int slot_count() const noexcept { return static_cast<int>(expert_in_.size()); }
  int resident_count() const noexcept { return resident_count_; }
  // The slot from which an expert can be computed now; kNone when it lies in none.
  int32_t slot_of(int32_t expert) const noexcept { return slot_of_[expert] >= 0 ? slot_of_[expert] : kNone; }
  double score(int32_t expert) const noexcept { return scores_[expert]; }

  // One use now. Scores fall to half in kHalfLifeSteps steps.
  void note_use(int32_t expert) noexcept { scores_[expert] += weight_; }
  void next_step() noexcept;

  // The swap worth most: a used expert into a free slot, else in place of one that is clearly used less. None
  // when nothing is to be gained.
  std::optional<Swap> best_swap() const noexcept;
  // The slot's former expert is gone from now on, and the new one there when the copy is complete.
  void begin(const Swap& swap) noexcept;
  void finish(const Swap& swap) noexcept;
  // The copy has failed: the slot is free again.
  void abandon(const Swap& swap) noexcept;

  // Scores in uses of now, by expert; and to begin with those of an earlier run.
  std::vector<float> profile() const;
  void set_profile(const std::vector<float>& scores);

  static constexpr int32_t kNone = -1;
  static constexpr double kHalfLifeSteps = 1024;

 private:
  static constexpr int32_t kLoading = -2;

  std::vector<int32_t> slot_of_;    // by expert: a slot, kNone, or kLoading on its way into one
  std::vector<int32_t> expert_in_;  // by slot
  std::vector<int32_t> loading_;    // by slot: the expert on its way, kNone without one
  std::vector<double> scores_;      // by expert
  double weight_ = 1;               // of a use now; grows, so that older ones count less
  int resident_count_ = 0;
};

}  // namespace stratad
