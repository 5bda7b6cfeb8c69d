// Attention of many tokens on the pool by our own kernel (kernels/attention.hpp): tiles of queries, which
// may belong to several heads of one key-value head.
//
// A query's bits depend on nothing but its row, its mask and the cache, so they are the same for any number
// of slices, workers and tokens beside it. They are not ggml's.
#pragma once

#include <cstdint>

#include "backend/head_groups.hpp"
#include "backend/scratch.hpp"
#include "kernels/attention.hpp"

namespace stratad {

// Whether the kernel takes a FLASH_ATTN_EXT node that can be cut by heads: many tokens over a cache of
// 16-bit floats, heads of whole vectors, no soft cap of the scores.
bool is_prompt_attention(const ggml_tensor* node) noexcept;

class PromptAttentionJob final : public Job {
 public:
  void prepare(const ggml_tensor* node, const Pool& pool, InstructionSet set);

  int phase_count() const noexcept override { return 1; }
  uint32_t task_count(int phase, int slice) const noexcept override;
  bool joins_slices(int) const noexcept override { return true; }
  void run(int phase, int slice, uint32_t task, int worker) noexcept override;

 private:
  AttentionQuery query(int64_t head, int64_t token, int64_t stream) const noexcept;

  const ggml_tensor* node_ = nullptr;
  const AttentionKernel* kernel_ = nullptr;
  HeadGroups groups_;
  int64_t tiles_per_group_ = 0;  // of one stream
  float scale_ = 1;
  float* scratch_ = nullptr;  // by worker
  size_t scratch_floats_ = 0;
  Scratch<float> memory_;
};

}  // namespace stratad
