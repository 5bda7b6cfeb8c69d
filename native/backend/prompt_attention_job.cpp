#include "backend/prompt_attention_job.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace stratad {
namespace {

// Where ggml itself goes from one kernel to another, which rounds otherwise. Below, and for one token, ggml's
// own gives the same bits however many tokens it is given, so an answer does not depend on where a prompt was
// cut.
constexpr int64_t kPromptTokens = 64;

float parameter(const ggml_tensor* node, int index) noexcept {
  float value;
  std::memcpy(&value, reinterpret_cast<const float*>(node->op_params) + index, sizeof value);
  return value;
}

bool is_cache_of_halves(const ggml_tensor* tensor) noexcept {
  return tensor->type == GGML_TYPE_F16 && tensor->nb[0] == sizeof(ggml_fp16_t) &&
         tensor->ne[0] % kAttentionColumns == 0;
}

const char* plane(const ggml_tensor* tensor, int64_t head, int64_t stream) noexcept {
  return static_cast<const char*>(tensor->data) + static_cast<size_t>(head) * tensor->nb[2] +
         static_cast<size_t>(stream) * tensor->nb[3];
}

}  // namespace

bool is_prompt_attention(const ggml_tensor* node) noexcept {
  const ggml_tensor *query = node->src[kQuery], *key = node->src[kKey], *value = node->src[kValue];
  const ggml_tensor* mask = node->src[kMask];
  const bool has_soft_cap = parameter(node, 2) != 0;
  return query->ne[1] >= kPromptTokens && query->type == GGML_TYPE_F32 && query->nb[0] == sizeof(float) &&
         is_cache_of_halves(key) && is_cache_of_halves(value) && !has_soft_cap &&
         query->ne[3] % key->ne[3] == 0 && key->ne[3] == value->ne[3] &&
         (mask == nullptr || (mask->type == GGML_TYPE_F16 && mask->nb[0] == sizeof(ggml_fp16_t)));
}

void PromptAttentionJob::prepare(const ggml_tensor* node, const Pool& pool, InstructionSet set) {
  node_ = node;
  kernel_ = &attention_kernel(set);
  scale_ = parameter(node, 0);
  groups_.deal(node, pool);
  const int64_t queries = groups_.heads * node->src[kQuery]->ne[1], limit = kernel_->query_limit;
  tiles_per_group_ = (queries + limit - 1) / limit;
  const size_t floats = kernel_->scratch_floats(node->src[kKey]->ne[0], node->src[kValue]->ne[0]);
  constexpr size_t kLineFloats = 16;
  scratch_floats_ = (floats + kLineFloats - 1) / kLineFloats * kLineFloats;
  scratch_ = memory_.of(scratch_floats_ * static_cast<size_t>(pool.worker_count()));
}

uint32_t PromptAttentionJob::task_count(int, int slice) const noexcept {
  return static_cast<uint32_t>(groups_.count(slice) * tiles_per_group_ * node_->src[kQuery]->ne[3]);
}

// A group's queries are numbered head by head, and cut into tiles without regard to heads.
void PromptAttentionJob::run(int, int slice, uint32_t task, int worker) noexcept {
  const ggml_tensor *key = node_->src[kKey], *value = node_->src[kValue];
  const int64_t tokens = node_->src[kQuery]->ne[1], streams = node_->src[kQuery]->ne[3];
  const int64_t tile_index = task % tiles_per_group_, rest = task / tiles_per_group_;
  const int64_t stream = rest % streams;
  const int64_t first_head = (groups_.borders[slice] + rest / streams) * groups_.heads;
  const int64_t first = tile_index * kernel_->query_limit;
  const int count = static_cast<int>(std::min<int64_t>(kernel_->query_limit, groups_.heads * tokens - first));

  AttentionQuery queries[kMostAttentionQueries];
  for (int index = 0; index < count; ++index)
    queries[index] = query(first_head + (first + index) / tokens, (first + index) % tokens, stream);

  const int64_t key_head = first_head / (node_->src[kQuery]->ne[2] / key->ne[2]);
  const int64_t key_stream = stream / (streams / key->ne[3]);
  const AttentionTile tile{.queries = queries,
                           .query_count = count,
                           .keys = plane(key, key_head, key_stream),
                           .key_stride = key->nb[1],
                           .values = plane(value, key_head, key_stream),
                           .value_stride = value->nb[1],
                           .key_count = key->ne[1],
                           .key_columns = key->ne[0],
                           .value_columns = value->ne[0],
                           .scale = scale_};
  kernel_->attend(tile, scratch_ + static_cast<size_t>(worker) * scratch_floats_);
}

AttentionQuery PromptAttentionJob::query(int64_t head, int64_t token, int64_t stream) const noexcept {
  const ggml_tensor *values = node_->src[kQuery], *mask = node_->src[kMask], *sinks = node_->src[kSinks];
  const auto row = static_cast<size_t>(token);
  AttentionQuery query{};
  query.values = reinterpret_cast<const float*>(plane(values, head, stream) + row * values->nb[1]);
  if (mask != nullptr)
    query.mask =
        reinterpret_cast<const ggml_fp16_t*>(plane(mask, 0, stream % mask->ne[3]) + row * mask->nb[1]);
  // ggml's result is [column, head, token, stream].
  query.output =
      reinterpret_cast<float*>(static_cast<char*>(node_->data) + static_cast<size_t>(head) * node_->nb[1] +
                               row * node_->nb[2] + static_cast<size_t>(stream) * node_->nb[3]);
  query.sink = sinks == nullptr ? -INFINITY : static_cast<const float*>(sinks->data)[head];
  return query;
}

}  // namespace stratad
