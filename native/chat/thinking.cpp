#include "chat/thinking.hpp"

#include <reasoning-budget.h>

#include <limits>

namespace stratad {

// The vocabulary matters only to a budget that runs out.
ThinkingWatch::ThinkingWatch(const std::vector<llama_token>& start,
                             const std::vector<std::vector<llama_token>>& ends)
    : state_(common_reasoning_budget_init(nullptr, {start}, ends, {}, std::numeric_limits<int32_t>::max())) {}

bool ThinkingWatch::is_thinking() const {
  const auto state = common_reasoning_budget_get_state(state_.get());
  return state != REASONING_BUDGET_IDLE && state != REASONING_BUDGET_DONE;
}

std::vector<llama_token> ThinkingWatch::accept(llama_token token) {
  const bool was_thinking = is_thinking();
  llama_sampler_accept(state_.get(), token);
  if (!was_thinking || is_thinking()) return {};
  const llama_tokens* mark = common_reasoning_budget_get_end_match(state_.get());
  return mark == nullptr ? std::vector<llama_token>{} : *mark;
}

}  // namespace stratad
