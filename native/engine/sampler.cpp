#include "engine/sampler.hpp"

#include <stdexcept>

#include "engine/log.hpp"

namespace stratad {

// The order is llama.cpp's usual one: what forbids tokens first, then what narrows them, then the draw.
Sampler::Sampler(std::shared_ptr<Model> model, const SamplerOptions& options)
    : model_(std::move(model)), chain_(llama_sampler_chain_init(llama_sampler_chain_default_params())) {
  const llama_vocab* vocabulary = model_->vocabulary();
  const int32_t token_count = llama_vocab_n_tokens(vocabulary);
  if (!options.logit_bias.empty()) {
    std::vector<llama_logit_bias> biases;
    for (const auto& [token, bias] : options.logit_bias) {
      if (token < 0 || token >= token_count)
        throw std::invalid_argument("logit_bias names token " + std::to_string(token) + " of " +
                                    std::to_string(token_count));
      biases.push_back({token, bias});
    }
    add(llama_sampler_init_logit_bias(token_count, static_cast<int32_t>(biases.size()), biases.data()),
        "logit_bias");
  }
  const bool penalises =
      options.repeat_penalty != 1.0f || options.frequency_penalty != 0.0f || options.presence_penalty != 0.0f;
  if (penalises && options.penalty_last_tokens > 0)
    add(llama_sampler_init_penalties(token_count, options.penalty_last_tokens, options.repeat_penalty,
                                     options.frequency_penalty, options.presence_penalty),
        "penalties");
  if (!options.grammar.empty()) {
    take_llama_log();
    add(llama_sampler_init_grammar(vocabulary, options.grammar.c_str(), "root"), "grammar");
  }
  if (options.temperature <= 0.0f) {
    add(llama_sampler_init_greedy(), "greedy");
    return;
  }
  if (options.top_k > 0) add(llama_sampler_init_top_k(options.top_k), "top_k");
  if (options.top_p < 1.0f) add(llama_sampler_init_top_p(options.top_p, 1), "top_p");
  if (options.min_p > 0.0f) add(llama_sampler_init_min_p(options.min_p, 1), "min_p");
  add(llama_sampler_init_temp(options.temperature), "temperature");
  add(llama_sampler_init_dist(options.seed.value_or(LLAMA_DEFAULT_SEED)), "seed");
}

void Sampler::add(llama_sampler* sampler, const char* what) {
  if (sampler == nullptr)
    throw std::invalid_argument(std::string(what) + " cannot be used: " + take_llama_log());
  llama_sampler_chain_add(chain_.get(), sampler);
}

llama_token Sampler::sample(Context& context, int index) {
  return llama_sampler_sample(chain_.get(), context.get(), index);
}

}  // namespace stratad
