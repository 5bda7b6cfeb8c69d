#include "gpu/staged_weights.hpp"

#include <algorithm>

namespace stratad {
namespace {

// Kernels read a little beyond the last row of an expert. That must hold numbers, so the next expert's
// beginning is copied along, and zeros behind the last one.
constexpr size_t kBehindBytes = 512;
constexpr char kZeros[kBehindBytes] = {};

}  // namespace

std::unique_ptr<StagedWeights> StagedWeights::create(ggml_backend_dev_t device,
                                                     const std::vector<ExpertMatrices>& layers,
                                                     Uploader& uploader) {
  size_t largest = 0;
  for (const ExpertMatrices& layer : layers)
    for (const ggml_tensor* weight : layer.weights)
      largest =
          std::max(largest, ggml_backend_buft_get_alloc_size(ggml_backend_dev_buffer_type(device), weight));
  std::unique_ptr<StagedWeights> staged(new StagedWeights(uploader));
  if (largest == 0 || !staged->allocate(device, largest + kBehindBytes)) return nullptr;
  return staged;
}

StagedWeights::~StagedWeights() {
  uploader_.drain();
}

bool StagedWeights::allocate(ggml_backend_dev_t device, size_t size) {
  for (Area& area : areas_) {
    area.context = make_tensor_context(1);
    area.bytes = ggml_new_tensor_1d(area.context.get(), GGML_TYPE_I8, static_cast<int64_t>(size));
    if (size > ggml_backend_buft_get_max_size(ggml_backend_dev_buffer_type(device))) return false;
    area.buffer = allocate_on(device, size);
    if (!area.buffer) return false;
    ggml_backend_buffer_set_usage(area.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    if (ggml_backend_tensor_alloc(area.buffer.get(), area.bytes,
                                  ggml_backend_buffer_get_base(area.buffer.get())) != GGML_STATUS_SUCCESS)
      return false;
  }
  return true;
}

int StagedWeights::area_of(const ggml_tensor* weight) const noexcept {
  for (int area = 0; area < static_cast<int>(areas_.size()); ++area)
    if (areas_[area].weight == weight) return area;
  return -1;
}

int StagedWeights::begin(const ggml_tensor* weight, const std::vector<int32_t>& experts) {
  const int index = next_;
  next_ = 1 - next_;
  Area& area = areas_[index];
  uploader_.wait(area.upload);  // one that nobody took, after a failure
  area.weight = weight;
  area.staged = *weight;
  area.staged.buffer = area.buffer.get();
  area.staged.data = area.bytes->data;
  area.staged.extra = nullptr;
  area.upload.copies.clear();
  const size_t size = weight->nb[2];
  const int64_t count = weight->ne[2];
  const char* source = static_cast<const char*>(weight->data);
  for (size_t first = 0; first < experts.size();) {
    size_t end = first + 1;
    while (end < experts.size() && experts[end] == experts[end - 1] + 1) ++end;
    const auto begin = static_cast<size_t>(experts[first]);
    const size_t behind = experts[end - 1] + 1 < count ? std::min(kBehindBytes, size) : 0;
    area.upload.copies.push_back(
        {area.bytes, source + begin * size, begin * size, (end - first) * size + behind});
    first = end;
  }
  area.upload.copies.push_back({area.bytes, kZeros, static_cast<size_t>(count) * size, kBehindBytes});
  uploader_.submit(area.upload, Uploader::Urgency::kUrgent);
  return index;
}

ggml_tensor* StagedWeights::finish(int area) {
  uploader_.wait(areas_[area].upload);
  return &areas_[area].staged;
}

void StagedWeights::forget() noexcept {
  uploader_.drain();
  for (Area& area : areas_) {
    area.weight = nullptr;
    area.upload.state.store(Upload::State::kIdle, std::memory_order_relaxed);
  }
}

}  // namespace stratad
