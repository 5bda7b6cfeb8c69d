#include "gpu/expert_cache.hpp"

#include <algorithm>
#include <numeric>

namespace stratad {
namespace {

// How many slots each layer gets: the same for all, and what is left over one by one from the first on.
std::vector<int> slots_by_layer(const std::vector<ExpertMatrices>& layers, uint64_t budget) {
  uint64_t one_each = 0;
  for (const ExpertMatrices& layer : layers) one_each += layer.expert_bytes();
  const uint64_t even = one_each == 0 ? 0 : budget / one_each;
  uint64_t left = budget - even * one_each;
  std::vector<int> counts;
  for (const ExpertMatrices& layer : layers) {
    const bool gets_more = left >= layer.expert_bytes();
    if (gets_more) left -= layer.expert_bytes();
    const uint64_t wanted = even + (gets_more ? 1 : 0);
    counts.push_back(static_cast<int>(std::min<uint64_t>(wanted, layer.expert_count())));
  }
  return counts;
}

// Whether the device multiplies weights of this type by expert; hot experts stay with the pool where not.
bool device_multiplies(ggml_backend_dev_t device, const ggml_tensor* weight) {
  const TensorContext context = make_tensor_context(4);
  ggml_tensor* copy = ggml_new_tensor(context.get(), weight->type, GGML_MAX_DIMS, weight->ne);
  ggml_tensor* input = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, weight->ne[0], 1, 1);
  ggml_tensor* ids = ggml_new_tensor_2d(context.get(), GGML_TYPE_I32, 1, 1);
  return ggml_backend_dev_supports_op(device, ggml_mul_mat_id(context.get(), copy, input, ids));
}

void add(std::atomic<uint64_t>& counter, uint64_t count) noexcept {
  counter.fetch_add(count, std::memory_order_relaxed);
}

}  // namespace

uint64_t CachedLayer::next_serial() noexcept {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

std::unique_ptr<ExpertCache> ExpertCache::create(ggml_backend_dev_t device,
                                                 const std::vector<ExpertMatrices>& layers,
                                                 const CacheSettings& settings, Uploader& uploader) {
  std::vector<ExpertMatrices> cached;
  std::copy_if(layers.begin(), layers.end(), std::back_inserter(cached), [&](const ExpertMatrices& layer) {
    return std::all_of(layer.weights.begin(), layer.weights.end(),
                       [&](const ggml_tensor* weight) { return device_multiplies(device, weight); });
  });
  for (CacheSettings tried = settings; tried.budget_bytes > 0; tried.budget_bytes /= 2) {
    std::unique_ptr<ExpertCache> cache(new ExpertCache(tried, uploader));
    if (cache->allocate(device, cached)) return cache->layers_.empty() ? nullptr : std::move(cache);
  }
  return nullptr;
}

ExpertCache::~ExpertCache() {
  uploader_.drain();
}

bool ExpertCache::allocate(ggml_backend_dev_t device, const std::vector<ExpertMatrices>& layers) {
  const std::vector<int> counts = slots_by_layer(layers, settings_.budget_bytes);
  for (size_t index = 0; index < layers.size(); ++index) {
    if (counts[index] == 0) continue;
    auto layer = std::make_unique<CachedLayer>(layers[index], counts[index]);
    if (!allocate_layer(device, *layer)) return false;
    slot_count_ += static_cast<uint64_t>(counts[index]);
    device_bytes_ += ggml_backend_buffer_get_size(layer->buffer.get());
    by_down_[layer->matrices.weights.back()] = layer.get();
    layers_.push_back(std::move(layer));
  }
  return true;
}

bool ExpertCache::allocate_layer(ggml_backend_dev_t device, CachedLayer& layer) {
  const std::vector<const ggml_tensor*>& weights = layer.matrices.weights;
  const ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(device);
  const size_t alignment = ggml_backend_buft_get_alignment(type);
  layer.context = make_tensor_context(2 * weights.size());
  size_t total = 0;
  std::vector<size_t> offsets, sizes;
  for (const ggml_tensor* weight : weights) {
    layer.slots.push_back(ggml_new_tensor_3d(layer.context.get(), weight->type, weight->ne[0], weight->ne[1],
                                             layer.table.slot_count()));
    offsets.push_back(total);
    sizes.push_back(ggml_backend_buft_get_alloc_size(type, layer.slots.back()));
    total += aligned(sizes.back(), alignment);
  }
  if (total > ggml_backend_buft_get_max_size(type)) return false;
  layer.buffer = allocate_on(device, total);
  if (!layer.buffer) return false;
  ggml_backend_buffer_set_usage(layer.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  // Kernels read a little beyond the last row, where there must be no not-a-numbers.
  ggml_backend_buffer_clear(layer.buffer.get(), 0);
  char* base = static_cast<char*>(ggml_backend_buffer_get_base(layer.buffer.get()));
  for (size_t index = 0; index < weights.size(); ++index) {
    ggml_tensor* bytes = ggml_new_tensor_1d(layer.context.get(), GGML_TYPE_I8,
                                            static_cast<int64_t>(ggml_nbytes(layer.slots[index])));
    layer.bytes.push_back(bytes);
    for (ggml_tensor* tensor : {layer.slots[index], bytes})
      if (ggml_backend_tensor_alloc(layer.buffer.get(), tensor, base + offsets[index]) != GGML_STATUS_SUCCESS)
        return false;
  }
  return true;
}

void ExpertCache::fill(const ExpertProfile& profile, const std::function<bool(double)>& progress) {
  is_filling_ = true;
  for (size_t index = 0; index < layers_.size(); ++index) {
    CachedLayer& layer = *layers_[index];
    const auto found = profile.find(layer.matrices.layer);
    if (found != profile.end()) layer.table.set_profile(found->second);
    const bool holds_all = layer.table.slot_count() == layer.table.expert_count();
    std::vector<int32_t> experts(static_cast<size_t>(layer.table.expert_count()));
    std::iota(experts.begin(), experts.end(), 0);
    std::stable_sort(experts.begin(), experts.end(),
                     [&](int32_t a, int32_t b) { return layer.table.score(a) > layer.table.score(b); });
    for (int32_t slot = 0; slot < layer.table.slot_count(); ++slot) {
      const int32_t expert = experts[static_cast<size_t>(slot)];
      if (layer.table.score(expert) <= 0 && !holds_all && !settings_.is_frozen) break;
      start(layer, {expert, slot});
    }
    release_swaps();
    uploader_.drain();
    begin_step();
    if (progress && !progress(static_cast<double>(index + 1) / static_cast<double>(layers_.size()))) break;
  }
  is_filling_ = false;
}

ExpertProfile ExpertCache::profile() const {
  ExpertProfile profile;
  for (const auto& layer : layers_) profile[layer->matrices.layer] = layer->table.profile();
  return profile;
}

CachedLayer* ExpertCache::find(const ggml_tensor* down) noexcept {
  const auto found = by_down_.find(down);
  return found == by_down_.end() ? nullptr : found->second;
}

void ExpertCache::note_use(CachedLayer& layer, int32_t expert, bool is_hit) noexcept {
  layer.table.note_use(expert);
  add(is_hit ? hits_ : misses_, 1);
  if (is_hit) add(hit_bytes_, layer.matrices.expert_bytes());
}

void ExpertCache::begin_step() noexcept {
  for (const auto& layer : layers_) layer->table.next_step();
  for (auto pending = pending_.begin(); pending != pending_.end();) {
    if (!pending->is_released || pending->upload.is_pending()) {
      ++pending;
      continue;
    }
    SlotTable& table = pending->layer->table;
    if (pending->upload.state.load(std::memory_order_acquire) == Upload::State::kDone) {
      table.finish(pending->swap);
      add(swaps_, is_filling_ ? 0 : 1);
      add(swap_bytes_, is_filling_ ? 0 : pending->layer->matrices.expert_bytes());
    } else {
      table.abandon(pending->swap);
    }
    pending = pending_.erase(pending);
  }
  uint64_t resident = 0;
  for (const auto& layer : layers_) resident += static_cast<uint64_t>(layer->table.resident_count());
  resident_.store(resident, std::memory_order_relaxed);
}

void ExpertCache::start(CachedLayer& layer, const Swap& swap) {
  PendingSwap& pending = pending_.emplace_back();
  pending.layer = &layer;
  pending.swap = swap;
  for (size_t index = 0; index < layer.slots.size(); ++index) {
    const ggml_tensor* weight = layer.matrices.weights[index];
    const size_t size = weight->nb[2];
    pending.upload.copies.push_back(
        {layer.bytes[index], static_cast<const char*>(weight->data) + static_cast<size_t>(swap.expert) * size,
         static_cast<size_t>(swap.slot) * size, size});
  }
  layer.table.begin(swap);
}

void ExpertCache::release_swaps() {
  for (PendingSwap& pending : pending_) {
    if (pending.is_released) continue;
    pending.is_released = true;
    uploader_.submit(pending.upload, Uploader::Urgency::kBackground);
  }
}

void ExpertCache::plan_swaps() {
  if (settings_.is_frozen || !pending_.empty()) return;
  uint64_t bytes = 0;
  for (size_t count = 0; count < layers_.size(); ++count) {
    CachedLayer& layer = *layers_[next_layer_];
    const auto swap = layer.table.best_swap();
    if (swap) {
      bytes += layer.matrices.expert_bytes();
      if (bytes > settings_.swap_bytes_per_step && !pending_.empty()) return;
      start(layer, *swap);
    }
    next_layer_ = (next_layer_ + 1) % layers_.size();
  }
}

CacheCounters ExpertCache::counters() const noexcept {
  return {hits_.load(std::memory_order_relaxed),       misses_.load(std::memory_order_relaxed),
          hit_bytes_.load(std::memory_order_relaxed),  swaps_.load(std::memory_order_relaxed),
          swap_bytes_.load(std::memory_order_relaxed), slot_count_,
          resident_.load(std::memory_order_relaxed),   device_bytes_};
}

}  // namespace stratad
