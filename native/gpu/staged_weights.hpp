// Two areas in VRAM through which expert weights pass when the GPU computes a large batch: while it
// multiplies out of one, the used experts of the next product are copied into the other.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "gpu/device_memory.hpp"
#include "gpu/expert_cache.hpp"
#include "gpu/uploader.hpp"

namespace stratad {

class StagedWeights {
 public:
  // Room for the largest of these weights, twice. Null when the device has none.
  static std::unique_ptr<StagedWeights> create(ggml_backend_dev_t device,
                                               const std::vector<ExpertMatrices>& layers, Uploader& uploader);
  ~StagedWeights();

  // The area where `weight` lies or is going to lie; -1 when in neither.
  int area_of(const ggml_tensor* weight) const noexcept;
  // Begins to copy these experts of `weight`, in ascending order, into the area that was used longer ago. Its
  // last readers are waited for by their event, or by `wait` where the device has no events.
  template <class Wait>
  int begin(const ggml_tensor* weight, const std::vector<int32_t>& experts, Wait wait);
  // Waits for the copy and gives the weight in VRAM.
  ggml_tensor* finish(int area);
  // What reads the area has been handed to `inner`: it may be written again after that.
  void read_by(int area, ggml_backend_t inner);
  // Nothing is to be taken from the areas any more: a computation begins or has failed.
  void forget() noexcept;

 private:
  struct Area {
    TensorContext context;
    DeviceBuffer buffer;
    ggml_tensor* bytes = nullptr;
    ggml_tensor staged{};  // the weight's header, with its data here
    const ggml_tensor* weight = nullptr;
    DeviceEvent event;
    bool is_read = false;  // since the device was last waited for
    Upload upload;
  };

  explicit StagedWeights(Uploader& uploader) : uploader_(uploader) {}
  bool allocate(ggml_backend_dev_t device, size_t size);
  int start(const ggml_tensor* weight, const std::vector<int32_t>& experts);

  Uploader& uploader_;
  std::array<Area, 2> areas_;
  int next_ = 0;
};

template <class Wait>
int StagedWeights::begin(const ggml_tensor* weight, const std::vector<int32_t>& experts, Wait wait) {
  Area& area = areas_[next_];
  if (area.is_read && !area.event) {
    wait();
    for (Area& each : areas_) each.is_read = false;
  }
  return start(weight, experts);
}

}  // namespace stratad
