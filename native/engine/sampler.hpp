// A chain of llama.cpp samplers that picks the next token of one request, and the grammar it may not leave.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "chat/thinking.hpp"
#include "engine/context.hpp"

namespace stratad {

// No token of the vocabulary fits the grammar where the answer stands.
struct GrammarDeadEnd : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct GrammarOptions {
  std::string text;    // GBNF with a rule named root
  std::string prefix;  // the end of the prompt, where the grammar begins before the answer does
  // With one of these the grammar holds only from where the answer first has it: words as they are, and
  // patterns as std::regex reads them, of which the first group, or all of the match, is where it begins.
  std::vector<std::string> trigger_words;
  std::vector<std::string> trigger_patterns;
  // Between these nothing triggers the grammar. Empty: the model does not think.
  std::string thinking_start;
  std::vector<std::string> thinking_ends;

  bool is_lazy() const noexcept { return !trigger_words.empty() || !trigger_patterns.empty(); }
};

struct SamplerOptions {
  float temperature = 0.8f;  // 0: always the likeliest token
  int top_k = 40;            // 0: no limit
  float top_p = 0.95f;
  float min_p = 0.05f;
  std::optional<uint32_t> seed;  // none: a fresh one
  float repeat_penalty = 1.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  int penalty_last_tokens = 64;
  std::optional<GrammarOptions> grammar;  // none: free text
  std::vector<std::pair<llama_token, float>> logit_bias;
};

class Sampler {
 public:
  // Throws std::invalid_argument for a grammar that does not parse or does not begin with its prefix, or a
  // token outside the vocabulary.
  Sampler(std::shared_ptr<Model> model, const SamplerOptions& options);

  // Picks from the logits of the batch's `index`-th token (-1: the last) and remembers the choice. Throws
  // GrammarDeadEnd, having remembered nothing.
  llama_token sample(Context& context, int index);

 private:
  struct Free {
    void operator()(llama_sampler* sampler) const noexcept { llama_sampler_free(sampler); }
  };
  using Handle = std::unique_ptr<llama_sampler, Free>;

  void add(llama_sampler* sampler, const char* what);
  void add_biases(const SamplerOptions& options);
  void add_penalties(const SamplerOptions& options);
  void add_draw(const SamplerOptions& options);
  void open_grammar(const GrammarOptions& options);
  void start_grammar(const GrammarOptions& options);
  llama_token pick(Context& context, int index, bool by_grammar);
  bool fits(llama_token token) const;
  void accept_in_grammar(llama_token token);
  bool grammar_holds() const { return grammar_ && (!thinking_ || !thinking_->is_thinking()); }

  std::shared_ptr<Model> model_;
  Handle chain_;
  Handle grammar_;
  bool is_lazy_ = false;
  std::optional<ThinkingWatch> thinking_;
  std::vector<llama_token_data> candidates_;
};

}  // namespace stratad
