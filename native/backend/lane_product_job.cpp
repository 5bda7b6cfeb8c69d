#include "backend/lane_product_job.hpp"

#include <algorithm>

#include "backend/row_tasks.hpp"

namespace stratad {

// ggml's float kernel wants a multiple of 4 rows and leaves other weights to its dot product. Slices are cut
// at multiples of kRowUnit, so what is left at the end is one exactly when the whole is.
bool is_lane_product(const ggml_tensor* node) noexcept {
  const ggml_tensor *weight = node->src[0], *input = node->src[1];
  return node->op == GGML_OP_MUL_MAT && node->op_params[1] == GGML_HINT_NONE &&
         input->type == GGML_TYPE_F32 && input->nb[0] == sizeof(float) && has_row_product(weight) &&
         (ggml_is_quantized(weight->type) || weight->ne[1] % 4 == 0);
}

void LaneProductJob::prepare(const ggml_tensor* node, const Pool& pool,
                             std::span<const std::unique_ptr<Lane>> lanes) {
  const ggml_tensor* weight = node->src[0];
  node_ = node;
  lanes_ = lanes;
  status_.store(GGML_STATUS_SUCCESS, std::memory_order_relaxed);
  slice_count_ = pool.slice_count();
  rows_.clear();
  workers_.clear();
  for (int slice = 0; slice < slice_count_; ++slice) {
    rows_.push_back(cut_rows(weight->ne[1], weight->nb[1], pool.layout().slices, slice));
    workers_.push_back(static_cast<uint32_t>(pool.workers_of(slice)));
  }
  input_ = *node->src[1];
  first_phase_ = kMultiply;
  // ggml's float kernels read float activations; for the others each lane would quantise all of them again.
  if (!ggml_is_quantized(weight->type)) return;
  first_phase_ = kQuantise;
  product_ = WeightProduct(weight, 0, weight->ne[1], {});
  const ggml_type type = ggml_get_type_traits_cpu(weight->type)->vec_dot_type;
  input_.type = type;
  input_.nb[0] = ggml_type_size(type);
  input_.nb[1] = ggml_row_size(type, input_.ne[0]);
  input_.nb[2] = input_.nb[1] * static_cast<size_t>(input_.ne[1]);
  input_.nb[3] = input_.nb[2] * static_cast<size_t>(input_.ne[2]);
  input_.data = memory_.of(input_.nb[3] * static_cast<size_t>(input_.ne[3]));
  input_.view_src = nullptr;
}

uint32_t LaneProductJob::task_count(int phase, int slice) const noexcept {
  if (first_phase_ + phase == kQuantise)
    return dealt(static_cast<int>(ggml_nrows(node_->src[1])), slice, slice_count_);
  const int64_t units = (rows_[slice].count() + kRowUnit - 1) / kRowUnit;
  return static_cast<uint32_t>(std::min<int64_t>(units, workers_[slice]));
}

void LaneProductJob::run(int phase, int slice, uint32_t task, int worker) noexcept {
  if (first_phase_ + phase == kQuantise) {
    quantise(int64_t{task} * slice_count_ + slice);
  } else {
    multiply(*lanes_[worker], piece(slice, task));
  }
}

void LaneProductJob::quantise(int64_t row) noexcept {
  const ggml_tensor& from = *node_->src[1];
  const int64_t token = row % from.ne[1], plane = row / from.ne[1] % from.ne[2],
                outer = row / from.ne[1] / from.ne[2];
  const auto* values =
      static_cast<const char*>(from.data) + token * from.nb[1] + plane * from.nb[2] + outer * from.nb[3];
  product_.quantise(reinterpret_cast<const float*>(values),
                    static_cast<char*>(input_.data) + static_cast<size_t>(row) * input_.nb[1]);
}

// One piece for each worker: ggml's kernels are at their best on many rows.
RowRange LaneProductJob::piece(int slice, uint32_t task) const noexcept {
  const RowRange rows = rows_[slice];
  const int64_t units = (rows.count() + kRowUnit - 1) / kRowUnit;
  const int64_t pieces = std::min<int64_t>(units, workers_[slice]);
  return {rows.begin + units * task / pieces * kRowUnit,
          std::min(rows.end, rows.begin + units * (task + 1) / pieces * kRowUnit)};
}

void LaneProductJob::multiply(Lane& lane, RowRange rows) noexcept {
  lane.load(*node_);
  lane.source(1) = input_;
  narrow(lane.source(0), 1, rows.begin, rows.count());
  narrow(lane.part(), 0, rows.begin, rows.count());
  const ggml_status status = lane.compute_part();
  if (status != GGML_STATUS_SUCCESS) status_.store(status, std::memory_order_relaxed);
}

uint64_t LaneProductJob::weight_bytes(int slice) const noexcept {
  return static_cast<uint64_t>(rows_[slice].count() * node_->src[0]->ne[2] * node_->src[0]->ne[3]) *
         node_->src[0]->nb[1];
}

}  // namespace stratad
