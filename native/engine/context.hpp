// One llama.cpp context over a model: key-value cache, decode, logits, per-sequence state.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "engine/model.hpp"

namespace stratad {

// DecodeError's status when a GPU has failed: nothing can be computed with this model any more.
inline constexpr int kDeviceFailed = -100;

// llama_decode refused; `status` is its return value (1: no room in the cache, 2: aborted, below 0: an
// error), or kDeviceFailed.
struct DecodeError : std::runtime_error {
  DecodeError(int code, const std::string& message) : std::runtime_error(message), status(code) {}
  int status;
};

struct ContextOptions {
  // Of all sequences together; llama.cpp gives each an equal part of its own, so none can crowd out another,
  // and what lies in one does not depend on the others.
  uint32_t context_tokens = 4096;
  uint32_t batch_tokens = 512;  // most tokens of one decode call, and of one pass over the model
  uint32_t sequence_count = 1;
  int thread_count = 1;      // ggml's own threads, the caller included
  std::vector<int> cpu_ids;  // where ggml's helper threads may run; empty: anywhere
};

// Tokens for one decode call, of any sequences.
class Batch {
 public:
  void add(llama_token token, llama_pos position, llama_seq_id sequence, bool wants_logits);
  void clear() noexcept;
  size_t size() const noexcept { return tokens_.size(); }

 private:
  friend class Context;
  std::vector<llama_token> tokens_;
  std::vector<llama_pos> positions_;
  std::vector<llama_seq_id> sequences_;
  std::vector<int8_t> wants_logits_;
  // As llama.cpp wants them: one sequence for each token.
  std::vector<int32_t> sequence_counts_;
  std::vector<llama_seq_id*> sequence_pointers_;
};

struct DecodeCounters {
  uint64_t calls = 0;
  uint64_t tokens = 0;
  double seconds = 0;
};

class Context {
 public:
  // Throws std::runtime_error when llama.cpp refuses (its log says why) and std::system_error from affinity.
  Context(std::shared_ptr<Model> model, const ContextOptions& options);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Blocks until the logits are there. Throws DecodeError; on abort the passes already made stay in the
  // cache.
  void decode(Batch& batch);
  // Makes a running decode() return early, from any thread; the next decode() starts afresh.
  void abort() noexcept { abort_.store(true, std::memory_order_relaxed); }

  // Logits of the batch's `index`-th token (-1: the last), which must have asked for them; (vocabulary).
  std::span<const float> logits(int index) const;

  // Forgets positions [from, to) of a sequence; to < 0 means to the end. False: this cache cannot be cut
  // there.
  bool forget(llama_seq_id sequence, llama_pos from, llama_pos to);
  // Forgets a sequence from `position` on, so that its next token may stand there. False, and nothing
  // forgotten: what that token reads is not all there any more (recurrent layers, an attention window that
  // has moved on).
  bool cut(llama_seq_id sequence, llama_pos position);
  // The first position from which on a sequence can be cut: there, at every later one, and at 0.
  llama_pos first_cut(llama_seq_id sequence) const;
  // The same after restoring what save_state() saves now: of an attention window only the part that the next
  // token reads is saved.
  llama_pos first_cut_when_restored(llama_seq_id sequence) const;

  // Bytes that save_state() writes now.
  size_t state_bytes(llama_seq_id sequence) const;
  // Writes a sequence's memory into `state`, which has state_bytes(). A sequence that restores it goes on
  // with the same bits. Throws std::invalid_argument when the size is another.
  void save_state(llama_seq_id sequence, std::span<uint8_t> state) const;
  // Replaces what a sequence holds. Throws std::invalid_argument, and the sequence is empty then.
  void restore_state(llama_seq_id sequence, std::span<const uint8_t> state);

  llama_context* get() const noexcept { return context_; }
  const std::shared_ptr<Model>& model() const noexcept { return model_; }
  uint32_t context_tokens() const noexcept { return llama_n_ctx(context_); }
  DecodeCounters counters() const noexcept;

 private:
  int compute(const llama_batch& batch);
  llama_pos first_cut_from(llama_seq_id sequence, llama_pos first_held) const;

  std::shared_ptr<Model> model_;
  llama_context* context_ = nullptr;
  ggml_threadpool* threadpool_ = nullptr;
  uint32_t batch_tokens_ = 0;
  std::atomic<bool> abort_{false};
  std::atomic<uint64_t> calls_{0}, tokens_{0}, nanoseconds_{0};
};

}  // namespace stratad
