#include "backend/attention_job.hpp"

#include <algorithm>
#include <cstring>

namespace stratad {

bool is_cut_by_heads(const ggml_tensor* node) noexcept {
  if (node->op != GGML_OP_FLASH_ATTN_EXT) return false;
  const ggml_tensor *query = node->src[kQuery], *key = node->src[kKey], *value = node->src[kValue];
  const ggml_tensor *mask = node->src[kMask], *sinks = node->src[kSinks];
  float bias;
  std::memcpy(&bias, reinterpret_cast<const float*>(node->op_params) + 1, sizeof bias);
  return bias == 0 && key->ne[2] > 0 && key->ne[2] == value->ne[2] && query->ne[2] % key->ne[2] == 0 &&
         (mask == nullptr || mask->ne[2] == 1) && (sinks == nullptr || sinks->type == GGML_TYPE_F32);
}

void AttentionJob::prepare(const ggml_tensor* node, const Pool& pool,
                           std::span<const std::unique_ptr<Lane>> lanes) {
  node_ = node;
  lanes_ = lanes;
  status_.store(GGML_STATUS_SUCCESS, std::memory_order_relaxed);
  groups_.deal(node, pool);
  // ggml writes heads one behind the other, so a group of heads of several tokens has gaps that it cannot
  // leave: such results are made elsewhere and copied.
  const int64_t tokens = node->src[kQuery]->ne[1], streams = node->src[kQuery]->ne[3];
  is_direct_ = tokens == 1 && streams == 1;
  result_floats_ = static_cast<size_t>(node->ne[0] * groups_.heads * tokens * streams);
  if (!is_direct_) results_ = memory_.of(result_floats_ * lanes.size());
}

uint32_t AttentionJob::task_count(int, int slice) const noexcept {
  return static_cast<uint32_t>(groups_.count(slice));
}

void AttentionJob::run(int, int slice, uint32_t task, int worker) noexcept {
  Lane& lane = *lanes_[worker];
  const int64_t first_head = (groups_.borders[slice] + task) * groups_.heads;
  lane.load(*node_);
  narrow_to(lane, first_head);
  float* values = is_direct_ ? nullptr : results_ + static_cast<size_t>(worker) * result_floats_;
  if (is_direct_) {
    narrow(lane.part(), 1, first_head, groups_.heads);
  } else {
    ggml_tensor& part = lane.part();
    part.data = values;
    part.ne[1] = groups_.heads;
    for (int dimension = 2; dimension < GGML_MAX_DIMS; ++dimension)
      part.nb[dimension] = part.nb[dimension - 1] * static_cast<size_t>(part.ne[dimension - 1]);
  }
  const ggml_status status = lane.compute_part();
  if (status != GGML_STATUS_SUCCESS) status_.store(status, std::memory_order_relaxed);
  if (!is_direct_) copy_out(first_head, values);
}

void AttentionJob::narrow_to(Lane& lane, int64_t first_head) const noexcept {
  const int64_t heads_per_key = node_->src[kQuery]->ne[2] / node_->src[kKey]->ne[2];
  narrow(lane.source(kQuery), 2, first_head, groups_.heads);
  narrow(lane.source(kKey), 2, first_head / heads_per_key, 1);
  narrow(lane.source(kValue), 2, first_head / heads_per_key, 1);
  if (node_->src[kSinks] != nullptr) narrow(lane.source(kSinks), 0, first_head, groups_.heads);
}

void AttentionJob::copy_out(int64_t first_head, const float* values) const noexcept {
  const size_t head_floats = static_cast<size_t>(node_->ne[0]);
  for (int64_t stream = 0; stream < node_->ne[3]; ++stream)
    for (int64_t token = 0; token < node_->ne[2]; ++token)
      for (int64_t head = first_head; head < first_head + groups_.heads; ++head, values += head_floats)
        std::memcpy(static_cast<char*>(node_->data) + static_cast<size_t>(stream) * node_->nb[3] +
                        static_cast<size_t>(token) * node_->nb[2] + static_cast<size_t>(head) * node_->nb[1],
                    values, head_floats * sizeof(float));
}

}  // namespace stratad
