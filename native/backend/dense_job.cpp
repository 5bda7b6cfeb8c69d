#include "backend/dense_job.hpp"

#include <algorithm>

namespace stratad {
namespace {

// Rows of activations that one worker quantises at once: many small ones (one for each head) are not worth a
// claim each.
constexpr int64_t kRowsPerQuantiseTask = 8;

int64_t rows_of(const ggml_tensor* tensor) noexcept {
  return tensor->ne[1] * tensor->ne[2] * tensor->ne[3];
}

}  // namespace

bool is_row_product(const ggml_tensor* node) noexcept {
  const ggml_tensor *weight = node->src[0], *input = node->src[1];
  return node->op == GGML_OP_MUL_MAT && node->op_params[1] == GGML_HINT_NONE && node->type == GGML_TYPE_F32 &&
         input->type == GGML_TYPE_F32 && input->nb[0] == sizeof(float) && weight->ne[3] == 1 &&
         has_row_product(weight);
}

void DenseJob::prepare(std::span<ggml_tensor* const> nodes, const Pool& pool,
                       const ProductSettings& settings) {
  input_ = nodes.front()->src[1];
  tokens_ = input_->ne[1];
  planes_ = input_->ne[2] * input_->ne[3];
  slice_count_ = pool.slice_count();
  workers_.clear();
  for (int slice = 0; slice < slice_count_; ++slice)
    workers_.push_back(static_cast<uint32_t>(pool.workers_of(slice)));
  part_count_ = nodes.size();
  if (memory_of_parts_.size() < part_count_) memory_of_parts_.resize(part_count_);
  for (size_t index = 0; index < part_count_; ++index)
    describe(memory_of_parts_[index], nodes[index], pool, settings);
  share_activations();
  // One row is quantised here: a phase of its own would cost more than the work in it.
  first_phase_ = rows_of(input_) > 1 ? kQuantise : kMultiply;
  if (first_phase_ == kMultiply) quantise(0);
}

void DenseJob::describe(Part& part, ggml_tensor* node, const Pool& pool,
                        const ProductSettings& settings) const {
  const ggml_tensor* weight = node->src[0];
  part.node = node;
  part.product = WeightProduct(weight, 0, weight->ne[1], settings);
  part.quantises = false;
  part.tasks.clear();
  for (int slice = 0; slice < slice_count_; ++slice)
    part.tasks.push_back(tasks_of(weight->ne[1], weight->nb[1], pool, slice, planes_, weight->ne[1]));
}

// Each form of the activations is made once, by the first part that wants it.
void DenseJob::share_activations() {
  size_t total = 0;
  for (const Part& part : parts())
    total += part.product.activation_row_bytes * static_cast<size_t>(rows_of(input_));
  char* free = memory_.of(total);
  for (auto part = parts().begin(); part != parts().end(); ++part) {
    const auto owner = std::find_if(parts().begin(), part, [&](const Part& other) {
      return other.quantises && other.product.shares_activations_with(part->product);
    });
    part->quantises = owner == part;
    part->quantised = part->quantises ? free : owner->quantised;
    if (part->quantises) free += part->product.activation_row_bytes * static_cast<size_t>(rows_of(input_));
  }
}

uint32_t DenseJob::task_count(int phase, int slice) const noexcept {
  if (first_phase_ + phase == kQuantise) {
    const int64_t tasks = (rows_of(input_) + kRowsPerQuantiseTask - 1) / kRowsPerQuantiseTask;
    return dealt(static_cast<int>(tasks), slice, slice_count_);
  }
  uint32_t count = 0;
  for (const Part& part : parts()) count += tasks_in(part, slice);
  return count;
}

void DenseJob::run(int phase, int slice, uint32_t task, int) noexcept {
  if (first_phase_ + phase == kQuantise) {
    const int64_t first = (int64_t{task} * slice_count_ + slice) * kRowsPerQuantiseTask;
    const int64_t last = std::min(rows_of(input_), first + kRowsPerQuantiseTask);
    for (int64_t row = first; row < last; ++row) quantise(row);
    return;
  }
  for (const Part& part : parts()) {
    const uint32_t count = tasks_in(part, slice);
    if (task < count) {
      multiply(part, slice, task);
      return;
    }
    task -= count;
  }
}

void DenseJob::quantise(int64_t row) noexcept {
  const int64_t token = row % tokens_, plane = row / tokens_;
  const auto* values = static_cast<const char*>(input_->data) + token * input_->nb[1] +
                       plane % input_->ne[2] * input_->nb[2] + plane / input_->ne[2] * input_->nb[3];
  for (const Part& part : parts())
    if (part.quantises)
      part.product.quantise(reinterpret_cast<const float*>(values),
                            part.quantised + static_cast<size_t>(row) * part.product.activation_row_bytes);
}

// Tasks go matrix by matrix, so that neighbours in claim order are neighbours in memory. Planes that share a
// matrix follow each other.
RowRun DenseJob::run_of(const Part& part, int slice, uint32_t task) const noexcept {
  const RowTasks& tasks = part.tasks[slice];
  const int64_t plane = task / tasks.count() % input_->ne[2];
  const int64_t repeats = input_->ne[2] / part.product.weight->ne[2];
  return {static_cast<int32_t>(plane / repeats), tasks.task(task % tasks.count())};
}

void DenseJob::multiply(const Part& part, int slice, uint32_t task) noexcept {
  const WeightProduct& product = part.product;
  const RowRun run = run_of(part, slice, task);
  // What the calling worker is most likely to claim next, as all workers take tasks in turn.
  const RowRun next = run_of(part, slice, std::min(task + workers_[slice], tasks_in(part, slice) - 1));
  const int64_t plane = task / part.tasks[slice].count();
  const char* activations =
      part.quantised + static_cast<size_t>(plane * tokens_) * product.activation_row_bytes;
  char* output = static_cast<char*>(part.node->data) + plane % input_->ne[2] * part.node->nb[2] +
                 plane / input_->ne[2] * part.node->nb[3] +
                 static_cast<size_t>(run.rows.begin) * sizeof(float);
  for (int64_t token = 0; token < tokens_; token += kTokenGroup) {
    const int count = static_cast<int>(std::min<int64_t>(kTokenGroup, tokens_ - token));
    const char* inputs[kTokenGroup];
    float* outputs[kTokenGroup];
    for (int index = 0; index < count; ++index) {
      inputs[index] = activations + static_cast<size_t>(token + index) * product.activation_row_bytes;
      outputs[index] =
          reinterpret_cast<float*>(output + static_cast<size_t>(token + index) * part.node->nb[1]);
    }
    product.multiply(run, next, inputs, count, outputs);
  }
}

uint64_t DenseJob::weight_bytes(int slice) const noexcept {
  uint64_t total = 0;
  for (const Part& part : parts())
    total += static_cast<uint64_t>(part.tasks[slice].rows.count() * part.product.weight->ne[2]) *
             part.product.row_bytes();
  return total;
}

}  // namespace stratad
