// A chain of llama.cpp samplers that picks the next token of one request.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/context.hpp"

namespace stratad {

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
  std::string grammar;  // GBNF with a rule named root; empty: free text
  std::vector<std::pair<llama_token, float>> logit_bias;
};

class Sampler {
 public:
  // Throws std::invalid_argument for a grammar that does not parse or a token outside the vocabulary.
  Sampler(std::shared_ptr<Model> model, const SamplerOptions& options);

  // Picks from the logits of the batch's `index`-th token (-1: the last) and remembers the choice.
  llama_token sample(Context& context, int index);

 private:
  struct Free {
    void operator()(llama_sampler* sampler) const noexcept { llama_sampler_free(sampler); }
  };
  void add(llama_sampler* sampler, const char* what);

  std::shared_ptr<Model> model_;
  std::unique_ptr<llama_sampler, Free> chain_;
};

}  // namespace stratad
