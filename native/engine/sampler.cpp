#include "engine/sampler.hpp"

#include <cctype>
#include <cmath>

#include "engine/log.hpp"

namespace stratad {
namespace {

std::string as_pattern(const std::string& word) {
  std::string pattern;
  for (const char letter : word) {
    if (std::string_view("\\^$.|?*+()[]{}").find(letter) != std::string_view::npos) pattern += '\\';
    pattern += letter;
  }
  return pattern;
}

// The tokens of a prompt's end. Some tokenizers begin every text with a space, which is none of it.
std::vector<llama_token> prefix_tokens(const Model& model, const std::string& prefix) {
  std::vector<llama_token> tokens = model.tokenize(prefix, false, true);
  const auto is_space = [](char letter) { return std::isspace(static_cast<unsigned char>(letter)) != 0; };
  if (!tokens.empty() && !is_space(prefix.front())) {
    const std::string first = model.token_bytes(tokens.front());
    if (first.empty() ? llama_vocab_get_text(model.vocabulary(), tokens.front()) == std::string("\u2581")
                      : is_space(first.front()))
      tokens.erase(tokens.begin());
  }
  return tokens;
}

}  // namespace

// The order is llama.cpp's usual one: what forbids tokens first, then what narrows them, then the draw.
Sampler::Sampler(std::shared_ptr<Model> model, const SamplerOptions& options)
    : model_(std::move(model)), chain_(llama_sampler_chain_init(llama_sampler_chain_default_params())) {
  add_biases(options);
  add_penalties(options);
  if (options.grammar) open_grammar(*options.grammar);
  add_draw(options);
}

void Sampler::add_biases(const SamplerOptions& options) {
  if (options.logit_bias.empty()) return;
  const int32_t token_count = llama_vocab_n_tokens(model_->vocabulary());
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

void Sampler::add_penalties(const SamplerOptions& options) {
  const bool penalises =
      options.repeat_penalty != 1.0f || options.frequency_penalty != 0.0f || options.presence_penalty != 0.0f;
  if (!penalises || options.penalty_last_tokens <= 0) return;
  add(llama_sampler_init_penalties(llama_vocab_n_tokens(model_->vocabulary()), options.penalty_last_tokens,
                                   options.repeat_penalty, options.frequency_penalty,
                                   options.presence_penalty),
      "penalties");
}

void Sampler::add_draw(const SamplerOptions& options) {
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

void Sampler::open_grammar(const GrammarOptions& options) {
  take_llama_log();
  std::vector<llama_token> tokens;
  std::vector<std::string> patterns = options.trigger_patterns;
  for (const std::string& word : options.trigger_words) {
    const auto word_tokens = model_->tokenize(word, false, true);
    if (word_tokens.size() == 1)
      tokens.push_back(word_tokens.front());
    else
      patterns.push_back(as_pattern(word));
  }
  std::vector<const char*> pattern_texts;
  for (const std::string& pattern : patterns) pattern_texts.push_back(pattern.c_str());
  try {
    grammar_.reset(options.is_lazy()
                       ? llama_sampler_init_grammar_lazy_patterns(
                             model_->vocabulary(), options.text.c_str(), "root", pattern_texts.data(),
                             pattern_texts.size(), tokens.data(), tokens.size())
                       : llama_sampler_init_grammar(model_->vocabulary(), options.text.c_str(), "root"));
  } catch (const std::exception& error) {  // a trigger that is no regular expression
    throw std::invalid_argument(std::string("grammar cannot be used: ") + error.what());
  }
  is_lazy_ = options.is_lazy();
  if (!grammar_) throw std::invalid_argument("grammar cannot be used: " + take_llama_log());
  start_grammar(options);
}

// Takes the prompt's end: a grammar that holds from the beginning may begin there, and the thinking as well.
void Sampler::start_grammar(const GrammarOptions& options) {
  const auto prefix = prefix_tokens(*model_, options.prefix);
  if (!options.is_lazy()) {
    for (const llama_token token : prefix) {
      if (!fits(token)) throw std::invalid_argument("the grammar does not begin with the end of the prompt");
      accept_in_grammar(token);
    }
    return;
  }
  if (options.thinking_start.empty() || options.thinking_ends.empty()) return;
  std::vector<std::vector<llama_token>> ends;
  for (const std::string& end : options.thinking_ends) ends.push_back(model_->tokenize(end, false, true));
  thinking_.emplace(model_->tokenize(options.thinking_start, false, true), ends);
  for (const llama_token token : prefix) thinking_->accept(token);
}

llama_token Sampler::sample(Context& context, int index) {
  // To ask a grammar about every token of a large vocabulary takes longer than a step of some models, about
  // one token nothing: most choices fit anyway. llama.cpp's own server draws like that.
  llama_token token = pick(context, index, false);
  if (grammar_holds() && !fits(token)) {
    token = pick(context, index, true);
    if (!fits(token)) throw GrammarDeadEnd("no token of this model fits the grammar here");
  }
  if (grammar_holds()) accept_in_grammar(token);
  if (thinking_)
    for (const llama_token mark : thinking_->accept(token)) accept_in_grammar(mark);
  llama_sampler_accept(chain_.get(), token);
  return token;
}

llama_token Sampler::pick(Context& context, int index, bool by_grammar) {
  const std::span<const float> logits = context.logits(index);
  candidates_.resize(logits.size());
  for (size_t token = 0; token < logits.size(); ++token)
    candidates_[token] = {static_cast<llama_token>(token), logits[token], 0.0f};
  llama_token_data_array array{candidates_.data(), candidates_.size(), -1, false};
  if (by_grammar) llama_sampler_apply(grammar_.get(), &array);
  llama_sampler_apply(chain_.get(), &array);
  if (array.selected < 0) throw std::runtime_error("no token was chosen");
  return array.data[array.selected].id;
}

bool Sampler::fits(llama_token token) const {
  llama_token_data candidate{token, 1.0f, 0.0f};
  llama_token_data_array array{&candidate, 1, -1, false};
  llama_sampler_apply(grammar_.get(), &array);
  return std::isfinite(candidate.logit);
}

// The token must fit: llama.cpp ends the process over an end of text that does not.
void Sampler::accept_in_grammar(llama_token token) {
  try {
    llama_sampler_accept(grammar_.get(), token);
  } catch (const std::runtime_error&) {
    // The token that triggered the grammar goes on with what does not fit. It was no call then: wait for the
    // next.
    if (!is_lazy_) throw;
    llama_sampler_reset(grammar_.get());
  }
}

}  // namespace stratad
