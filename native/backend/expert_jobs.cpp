#include "backend/expert_jobs.hpp"

#include <algorithm>
#include <cmath>
#include <memory>

// Exported by ggml's CPU library without a public header: the very function its SWIGLU node calls, so the
// fused chain has the node's bits (vectorised over 16 floats, hence kRowUnit).
extern "C" void ggml_vec_swiglu_f32(const int n, float* y, const float* x, const float* g);

namespace stratad {
namespace {

// Calls `body` with the slots, kTokenGroup at a time.
template <class Body>
void by_slot_groups(std::span<const int> slots, Body body) noexcept {
  for (; !slots.empty(); slots = slots.subspan(std::min<size_t>(kTokenGroup, slots.size())))
    body(slots.first(std::min<size_t>(kTokenGroup, slots.size())));
}

// ggml's SWIGLU_OAI, term by term (ggml_compute_forward_swiglu_oai_f32 of the pinned source).
float swiglu_oai(float gate, float up, float alpha, float limit) noexcept {
  const float x = std::min(gate, limit);
  const float y = std::clamp(up, -limit, limit);
  const float out = x / (1.f + expf(alpha * (-x)));
  return out * (y + 1.f);
}

}  // namespace

// ---------------------------------------------------------------- ChainJob

void ChainJob::prepare(const ExpertChain& chain, const Pool& pool) {
  chain_ = chain;
  slice_count_ = pool.slice_count();
  routing_.read(chain.ids, chain.gate.weight->ne[2]);
  const size_t slots = static_cast<size_t>(routing_.slot_count());
  weights_.resize(slots);
  for (int token = 0; token < routing_.token_count(); ++token)
    for (int choice = 0; choice < routing_.used_count(); ++choice) {
      const char* address = static_cast<const char*>(chain.weights->data) + token * chain.weights->nb[2] +
                            choice * chain.weights->nb[1];
      weights_[token * routing_.used_count() + choice] = *reinterpret_cast<const float*>(address);
    }
  summed_.clear();
  summed_ends_.clear();
  for (int slot = 0; slot < routing_.slot_count(); ++slot) {
    if (routing_.expert_of(slot) != kElsewhere) summed_.push_back(slot);
    if ((slot + 1) % routing_.used_count() == 0) summed_ends_.push_back(static_cast<int>(summed_.size()));
  }

  const int64_t hidden_rows = chain.gate.row_count, embedding_rows = chain.down.row_count;
  quantised_input_ =
      input_memory_.of(chain.gate.activation_row_bytes * static_cast<size_t>(routing_.token_count()));
  hidden_ = hidden_memory_.of(slots * static_cast<size_t>(hidden_rows));
  up_ = up_memory_.of(slots * static_cast<size_t>(hidden_rows));
  partial_ = partial_memory_.of(slots * static_cast<size_t>(embedding_rows));
  const size_t quantised_bytes = (slots * chain.down.activation_row_bytes + 63) / 64 * 64;
  char* quantised = quantised_memory_.of(quantised_bytes * static_cast<size_t>(slice_count_));
  plans_.resize(slice_count_);
  for (int slice = 0; slice < slice_count_; ++slice) {
    plans_[slice].hidden =
        tasks_of(hidden_rows, chain.gate.row_bytes(), pool, slice, routing_.expert_count(), hidden_rows);
    plans_[slice].embedding = tasks_of(embedding_rows, chain.down.row_bytes(), pool, slice,
                                       routing_.expert_count(), embedding_rows);
    plans_[slice].workers = static_cast<uint32_t>(pool.workers_of(slice));
    plans_[slice].quantised_hidden = quantised + quantised_bytes * static_cast<size_t>(slice);
  }
  size_t runs = 0;
  for (const SlicePlan& plan : plans_) runs += plan.embedding.count();
  std::atomic<int>* left = left_memory_.of(runs);
  for (SlicePlan& plan : plans_) {
    plan.experts_left = left;
    for (uint32_t run = 0; run < plan.embedding.count(); ++run)
      std::construct_at(left++, routing_.expert_count());
  }
  // One token is quantised here: a phase of its own would cost more than the work in it.
  first_phase_ = routing_.token_count() > 1 ? kQuantiseInput : kGateUp;
  if (first_phase_ == kGateUp) quantise_input(0);
}

uint32_t ChainJob::task_count(int phase, int slice) const noexcept {
  const SlicePlan& plan = plans_[slice];
  switch (first_phase_ + phase) {
    case kQuantiseInput:
      return dealt(routing_.token_count(), slice, slice_count_);
    case kGateUp:
      return plan.hidden.count() * static_cast<uint32_t>(routing_.expert_count());
    case kQuantiseHidden:
      return static_cast<uint32_t>(routing_.slot_count());
    default:
      return plan.embedding.count() * static_cast<uint32_t>(routing_.expert_count());
  }
}

// Down reads the hidden rows that its own slice quantised; every other phase reads what all slices wrote.
bool ChainJob::joins_slices(int phase) const noexcept {
  return first_phase_ + phase != kDown;
}

void ChainJob::run(int phase, int slice, uint32_t task, int) noexcept {
  const SlicePlan& plan = plans_[slice];
  switch (first_phase_ + phase) {
    case kQuantiseInput:
      quantise_input(static_cast<int>(task) * slice_count_ + slice);
      break;
    case kGateUp:
      gate_up(plan, task);
      break;
    case kQuantiseHidden:
      if (routing_.expert_of(static_cast<int>(task)) == kElsewhere) break;
      chain_.down.quantise(hidden_ + static_cast<size_t>(task) * static_cast<size_t>(chain_.gate.row_count),
                           plan.quantised_hidden + task * chain_.down.activation_row_bytes);
      break;
    default:
      down(plan, task);
  }
}

void ChainJob::quantise_input(int token) noexcept {
  const char* row =
      static_cast<const char*>(chain_.input->data) + static_cast<size_t>(token) * chain_.input->nb[2];
  chain_.gate.quantise(reinterpret_cast<const float*>(row),
                       quantised_input_ + static_cast<size_t>(token) * chain_.gate.activation_row_bytes);
}

// Tasks go expert by expert, so that neighbours in claim order are neighbours in memory.
void ChainJob::gate_up(const SlicePlan& plan, uint32_t task) noexcept {
  const RowRun run = run_of(plan.hidden, task);
  const RowRun next = run_of(plan.hidden, following(plan, plan.hidden, task));
  by_slot_groups(slots_of(plan.hidden, task), [&](std::span<const int> slots) {
    const char* inputs[kTokenGroup] = {};
    float *gate[kTokenGroup] = {}, *up[kTokenGroup] = {};
    for (size_t index = 0; index < slots.size(); ++index) {
      const auto slot = static_cast<size_t>(slots[index]);
      const size_t first = slot * static_cast<size_t>(chain_.gate.row_count) + run.rows.begin;
      inputs[index] = quantised_input_ +
                      slot / static_cast<size_t>(routing_.used_count()) * chain_.gate.activation_row_bytes;
      gate[index] = hidden_ + first;
      up[index] = up_ + first;
    }
    multiply_pair(chain_.gate, chain_.up, run, next, inputs, static_cast<int>(slots.size()), gate, up);
    for (size_t index = 0; index < slots.size(); ++index) activate(run.rows.count(), gate[index], up[index]);
  });
}

RowRun ChainJob::run_of(const RowTasks& tasks, uint32_t task) const noexcept {
  return {routing_.expert(static_cast<int>(task / tasks.count())), tasks.task(task % tasks.count())};
}

std::span<const int> ChainJob::slots_of(const RowTasks& tasks, uint32_t task) const noexcept {
  return routing_.slots(static_cast<int>(task / tasks.count()));
}

// The task that the calling worker is most likely to claim next, as all workers take them in turn.
uint32_t ChainJob::following(const SlicePlan& plan, const RowTasks& tasks, uint32_t task) const noexcept {
  const uint32_t total = tasks.count() * static_cast<uint32_t>(routing_.expert_count());
  return std::min(task + plan.workers, total - 1);
}

// gate = activation(gate, up), as ggml's node computes it.
void ChainJob::activate(int64_t count, float* gate, const float* up) const noexcept {
  if (chain_.activation == Activation::kSwiglu) {
    ggml_vec_swiglu_f32(static_cast<int>(count), gate, gate, up);
    return;
  }
  for (int64_t row = 0; row < count; ++row)
    gate[row] = swiglu_oai(gate[row], up[row], chain_.alpha, chain_.limit);
}

void ChainJob::down(const SlicePlan& plan, uint32_t task) noexcept {
  const RowRun run = run_of(plan.embedding, task);
  const RowRun next = run_of(plan.embedding, following(plan, plan.embedding, task));
  by_slot_groups(slots_of(plan.embedding, task), [&](std::span<const int> slots) {
    const char* inputs[kTokenGroup] = {};
    float* outputs[kTokenGroup];
    for (size_t index = 0; index < slots.size(); ++index) {
      const auto slot = static_cast<size_t>(slots[index]);
      inputs[index] = plan.quantised_hidden + slot * chain_.down.activation_row_bytes;
      outputs[index] = partial_ + slot * static_cast<size_t>(chain_.down.row_count) + run.rows.begin;
    }
    chain_.down.multiply(run, next, inputs, static_cast<int>(slots.size()), outputs);
  });
  // Acquire-release: the last one sees what the others wrote into `partial_`.
  std::atomic<int>& experts_left = plan.experts_left[task % plan.embedding.count()];
  if (experts_left.fetch_sub(1, std::memory_order_acq_rel) == 1) sum(run.rows);
}

// In the graph's order: weight each expert's row, then add them up from the first choice to the last. Choice
// by choice over all rows, which the compiler makes vectors of.
void ChainJob::sum(RowRange rows) noexcept {
  for (int token = 0, next = 0; token < routing_.token_count(); next = summed_ends_[token++]) {
    auto* output = reinterpret_cast<float*>(static_cast<char*>(chain_.output->data) +
                                            static_cast<size_t>(token) * chain_.output->nb[1]) +
                   rows.begin;
    if (next == summed_ends_[token]) std::fill_n(output, rows.count(), 0.f);
    for (int index = next; index < summed_ends_[token]; ++index)
      add_weighted(summed_[index], rows, index == next, output);
  }
}

void ChainJob::add_weighted(int slot, RowRange rows, bool is_first, float* __restrict output) const noexcept {
  const float* __restrict part =
      partial_ + static_cast<size_t>(slot) * static_cast<size_t>(chain_.down.row_count) + rows.begin;
  const float weight = weights_[slot];
  const int64_t count = rows.count();
  if (is_first) {
    for (int64_t row = 0; row < count; ++row) output[row] = part[row] * weight;
  } else {
    for (int64_t row = 0; row < count; ++row) output[row] += part[row] * weight;
  }
}

uint64_t ChainJob::weight_bytes(int slice) const noexcept {
  const SlicePlan& plan = plans_[slice];
  const uint64_t per_expert =
      static_cast<uint64_t>(plan.hidden.rows.count()) * (chain_.gate.row_bytes() + chain_.up.row_bytes()) +
      static_cast<uint64_t>(plan.embedding.rows.count()) * chain_.down.row_bytes();
  return per_expert * static_cast<uint64_t>(routing_.expert_count());
}

// ---------------------------------------------------------------- ProductJob

void ProductJob::prepare(ggml_tensor* node, const Pool& pool, const ProductSettings& settings) {
  const ggml_tensor* weight = node->src[0];
  node_ = node;
  parts_ = part_count(weight);
  product_ = WeightProduct(weight, 0, weight->ne[1], settings);
  slice_count_ = pool.slice_count();
  routing_.read(node->src[2], weight->ne[2]);
  const ggml_tensor* input = node->src[1];
  quantised_ = memory_.of(static_cast<size_t>(input->ne[1] * input->ne[2]) * product_.activation_row_bytes);
  plans_.resize(slice_count_);
  workers_.resize(slice_count_);
  for (int slice = 0; slice < slice_count_; ++slice) {
    plans_[slice] = tasks_of(weight->ne[1] / parts_, weight->nb[1], pool, slice,
                             routing_.expert_count() * parts_, weight->ne[1]);
    workers_[slice] = static_cast<uint32_t>(pool.workers_of(slice));
  }
}

uint32_t ProductJob::task_count(int phase, int slice) const noexcept {
  if (phase == 0)
    return dealt(static_cast<int>(node_->src[1]->ne[1] * node_->src[1]->ne[2]), slice, slice_count_);
  return plans_[slice].count() * static_cast<uint32_t>(routing_.expert_count() * parts_);
}

void ProductJob::quantise(uint32_t row) noexcept {
  const ggml_tensor* input = node_->src[1];
  const char* address = static_cast<const char*>(input->data) +
                        row / static_cast<size_t>(input->ne[1]) * input->nb[2] +
                        row % static_cast<size_t>(input->ne[1]) * input->nb[1];
  product_.quantise(reinterpret_cast<const float*>(address),
                    quantised_ + row * product_.activation_row_bytes);
}

void ProductJob::run(int phase, int slice, uint32_t task, int) noexcept {
  if (phase == 0) {
    quantise(task * static_cast<uint32_t>(slice_count_) + static_cast<uint32_t>(slice));
    return;
  }
  const RowTasks& plan = plans_[slice];
  const RowRun run = run_of(plan, task);
  const uint32_t total = task_count(phase, slice);
  const RowRun next = run_of(plan, std::min(task + workers_[slice], total - 1));
  const int64_t input_rows = node_->src[1]->ne[1];
  by_slot_groups(
      routing_.slots(static_cast<int>(task / plan.count()) / parts_), [&](std::span<const int> slots) {
        const char* inputs[kTokenGroup];
        float* outputs[kTokenGroup];
        for (size_t index = 0; index < slots.size(); ++index) {
          const int token = slots[index] / routing_.used_count(),
                    choice = slots[index] % routing_.used_count();
          inputs[index] = quantised_ + static_cast<size_t>(token * input_rows + choice % input_rows) *
                                           product_.activation_row_bytes;
          char* row = static_cast<char*>(node_->data) + static_cast<size_t>(token) * node_->nb[2] +
                      static_cast<size_t>(choice) * node_->nb[1];
          outputs[index] = reinterpret_cast<float*>(row) + run.rows.begin;
        }
        product_.multiply(run, next, inputs, static_cast<int>(slots.size()), outputs);
      });
}

// The parts of a merged matrix are cut each by itself and lie one behind the other.
RowRun ProductJob::run_of(const RowTasks& plan, uint32_t task) const noexcept {
  const int matrix = static_cast<int>(task / plan.count());
  RowRange rows = plan.task(task % plan.count());
  const int64_t shift = matrix % parts_ * (product_.row_count / parts_);
  rows.begin += shift;
  rows.end += shift;
  return {routing_.expert(matrix / parts_), rows};
}

uint64_t ProductJob::weight_bytes(int slice) const noexcept {
  return static_cast<uint64_t>(plans_[slice].rows.count() * parts_ * routing_.expert_count()) *
         product_.row_bytes();
}

}  // namespace stratad
