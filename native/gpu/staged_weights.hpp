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
  // Begins to copy these experts of `weight`, in ascending order, into the area that was used longer ago.
  // Nothing may be reading it any more.
  int begin(const ggml_tensor* weight, const std::vector<int32_t>& experts);
  // Waits for the copy and gives the weight in VRAM.
  ggml_tensor* finish(int area);
  // What read the area is over.
  void release(int area) noexcept { areas_[area].weight = nullptr; }
  // Nothing is to be taken from the areas any more: a computation begins or has failed.
  void forget() noexcept;

 private:
  struct Area {
    TensorContext context;
    DeviceBuffer buffer;
    ggml_tensor* bytes = nullptr;
    ggml_tensor staged{};  // the weight's header, with its data here
    const ggml_tensor* weight = nullptr;
    Upload upload;
  };

  explicit StagedWeights(Uploader& uploader) : uploader_(uploader) {}
  bool allocate(ggml_backend_dev_t device, size_t size);

  Uploader& uploader_;
  std::array<Area, 2> areas_;
  int next_ = 0;
};

}  // namespace stratad
