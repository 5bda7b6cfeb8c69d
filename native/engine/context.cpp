#include "engine/context.hpp"

#include <algorithm>
#include <chrono>

#include "backend/ggml_threads.hpp"
#include "engine/log.hpp"
#include "ggml-cpu.h"
#include "placement/memory_policy.hpp"
#include "placement/thread_affinity.hpp"

namespace stratad {
namespace {

bool is_aborted(void* flag) {
  return static_cast<std::atomic<bool>*>(flag)->load(std::memory_order_relaxed);
}

}  // namespace

void Batch::add(llama_token token, llama_pos position, llama_seq_id sequence, bool wants_logits) {
  tokens_.push_back(token);
  positions_.push_back(position);
  sequences_.push_back(sequence);
  wants_logits_.push_back(wants_logits ? 1 : 0);
}

void Batch::clear() noexcept {
  tokens_.clear();
  positions_.clear();
  sequences_.clear();
  wants_logits_.clear();
}

Context::Context(std::shared_ptr<Model> model, const ContextOptions& options) : model_(std::move(model)) {
  llama_context_params parameters = llama_context_default_params();
  parameters.n_ctx = options.context_tokens;
  parameters.n_batch = options.batch_tokens;
  parameters.n_ubatch = options.batch_tokens;
  parameters.n_seq_max = options.sequence_count;
  parameters.n_threads = options.thread_count;
  parameters.n_threads_batch = options.thread_count;
  parameters.no_perf = true;
  parameters.abort_callback = is_aborted;
  parameters.abort_callback_data = &abort_;
  threadpool_ = start_ggml_threads(options.thread_count, options.cpu_ids);
  take_llama_log();
  {
    const BackendSettings settings{model_->mode(), threadpool_, is_aborted, &abort_};
    const ScopedBackendSettings scope(settings);
    // The cache is cleared, and so touched, in here. A cell holds all heads next to each other, so its pages
    // cannot follow the heads to their slices (ADR 0006): they are spread over the nodes of all.
    const ScopedTouchPolicy policy(model_->shared_node_ids());
    context_ = llama_init_from_model(model_->get(), parameters);
  }
  if (context_ == nullptr) {
    ggml_threadpool_free(threadpool_);
    throw std::runtime_error("llama.cpp cannot make a context: " + take_llama_log());
  }
  batch_tokens_ = llama_n_batch(context_);  // llama.cpp caps it at the context, and aborts on larger batches
  llama_attach_threadpool(context_, threadpool_, threadpool_);
}

Context::~Context() {
  llama_free(context_);
  ggml_threadpool_free(threadpool_);
}

void Context::decode(Batch& batch) {
  const auto count = static_cast<int32_t>(batch.size());
  if (count == 0) throw std::invalid_argument("an empty batch cannot be decoded");
  if (batch.size() > batch_tokens_)
    throw std::invalid_argument("a batch of " + std::to_string(count) +
                                " tokens exceeds batch_tokens = " + std::to_string(batch_tokens_));
  batch.sequence_counts_.assign(batch.size(), 1);
  batch.sequence_pointers_.resize(batch.size());
  for (size_t index = 0; index < batch.size(); ++index)
    batch.sequence_pointers_[index] = &batch.sequences_[index];
  llama_batch view{};
  view.n_tokens = count;
  view.token = batch.tokens_.data();
  view.pos = batch.positions_.data();
  view.n_seq_id = batch.sequence_counts_.data();
  view.seq_id = batch.sequence_pointers_.data();
  view.logits = batch.wants_logits_.data();

  abort_.store(false, std::memory_order_relaxed);
  take_llama_log();
  const auto start = std::chrono::steady_clock::now();
  const int status = compute(view);
  const auto elapsed = std::chrono::steady_clock::now() - start;
  calls_.fetch_add(1, std::memory_order_relaxed);
  tokens_.fetch_add(batch.size(), std::memory_order_relaxed);
  nanoseconds_.fetch_add(static_cast<uint64_t>(elapsed / std::chrono::nanoseconds(1)),
                         std::memory_order_relaxed);
  if (status == 0) return;
  std::string log = take_llama_log();
  if (model_->gpu())
    if (const auto failure = model_->gpu()->failure()) log = *failure + (log.empty() ? "" : "; " + log);
  throw DecodeError(status, "decoding " + std::to_string(count) + " tokens failed with status " +
                                std::to_string(status) + (log.empty() ? "" : ": " + log));
}

// llama.cpp hears of a GPU's failure late or not at all: drivers report it while one waits for them.
int Context::compute(const llama_batch& batch) {
  const std::shared_ptr<GpuOffload>& gpu = model_->gpu();
  if (!gpu) {
    const int status = llama_decode(context_, batch);
    if (status == 0) llama_synchronize(context_);
    return status;
  }
  if (gpu->failure()) return kDeviceFailed;
  try {
    const int status = llama_decode(context_, batch);
    if (status == 0) llama_synchronize(context_);
    return gpu->failure() ? kDeviceFailed : status;
  } catch (const std::exception& error) {
    gpu->fail(error.what());
    return kDeviceFailed;
  }
}

std::span<const float> Context::logits(int index) const {
  const float* values = llama_get_logits_ith(context_, index);
  if (values == nullptr)
    throw std::invalid_argument("no logits for token " + std::to_string(index) + " of the last batch");
  return {values, static_cast<size_t>(llama_vocab_n_tokens(model_->vocabulary()))};
}

bool Context::forget(llama_seq_id sequence, llama_pos from, llama_pos to) {
  return llama_memory_seq_rm(llama_get_memory(context_), sequence, from, to);
}

bool Context::cut(llama_seq_id sequence, llama_pos position) {
  if (position <= 0) return forget(sequence, -1, -1);
  const llama_memory_t memory = llama_get_memory(context_);
  const llama_pos last = llama_memory_seq_pos_max(memory, sequence);
  if (position > last) return position == last + 1;
  // Cells that no token of the window can read any more are given to others.
  const llama_pos window = llama_model_n_swa(model_->get());
  const llama_pos first_read = window > 0 ? std::max(0, position - window + 1) : 0;
  if (llama_memory_seq_pos_min(memory, sequence) > first_read) return false;
  return forget(sequence, position, -1);
}

llama_pos Context::first_cut(llama_seq_id sequence) const {
  return first_cut_from(sequence, llama_memory_seq_pos_min(llama_get_memory(context_), sequence));
}

llama_pos Context::first_cut_when_restored(llama_seq_id sequence) const {
  const llama_memory_t memory = llama_get_memory(context_);
  const llama_pos first = llama_memory_seq_pos_min(memory, sequence);
  const llama_pos window = llama_model_n_swa(model_->get());
  if (window <= 0) return first_cut_from(sequence, first);
  return first_cut_from(sequence, std::max(first, llama_memory_seq_pos_max(memory, sequence) - window + 1));
}

// The rule of cut(), solved for the position.
llama_pos Context::first_cut_from(llama_seq_id sequence, llama_pos first_held) const {
  const llama_model* model = model_->get();
  const llama_pos end = llama_memory_seq_pos_max(llama_get_memory(context_), sequence) + 1;
  if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model)) return end;
  if (first_held <= 0) return 0;
  const llama_pos window = llama_model_n_swa(model);
  return window > 0 ? std::min(end, first_held + window - 1) : end;
}

size_t Context::state_bytes(llama_seq_id sequence) const {
  return llama_state_seq_get_size(context_, sequence);
}

void Context::save_state(llama_seq_id sequence, std::span<uint8_t> state) const {
  if (state.size() != state_bytes(sequence))
    throw std::invalid_argument("a state of " + std::to_string(state_bytes(sequence)) +
                                " bytes does not fit a buffer of " + std::to_string(state.size()));
  if (llama_state_seq_get_data(context_, state.data(), state.size(), sequence) != state.size())
    throw std::runtime_error("llama.cpp cannot save a sequence: " + take_llama_log());
}

void Context::restore_state(llama_seq_id sequence, std::span<const uint8_t> state) {
  take_llama_log();
  // Where nothing is in the state, llama.cpp would leave what the sequence holds.
  forget(sequence, -1, -1);
  if (llama_state_seq_set_data(context_, state.data(), state.size(), sequence) == state.size()) return;
  // A part of it may be there.
  forget(sequence, -1, -1);
  throw std::invalid_argument("this state does not belong to this model and context: " + take_llama_log());
}

DecodeCounters Context::counters() const noexcept {
  return {calls_.load(std::memory_order_relaxed), tokens_.load(std::memory_order_relaxed),
          static_cast<double>(nanoseconds_.load(std::memory_order_relaxed)) * 1e-9};
}

}  // namespace stratad
