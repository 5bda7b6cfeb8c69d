// Follows an answer token by token and says whether the model is thinking: llama.cpp's reasoning-budget
// sampler without a budget (ADR 0031).
#pragma once

#include <memory>
#include <vector>

#include "llama.h"

namespace stratad {

class ThinkingWatch {
 public:
  ThinkingWatch(const std::vector<llama_token>& start, const std::vector<std::vector<llama_token>>& ends);

  bool is_thinking() const;
  // Takes the next token. Gives the tokens of the mark that ended the thinking with this one; else none.
  std::vector<llama_token> accept(llama_token token);

 private:
  struct Free {
    void operator()(llama_sampler* sampler) const noexcept { llama_sampler_free(sampler); }
  };
  std::unique_ptr<llama_sampler, Free> state_;
};

}  // namespace stratad
