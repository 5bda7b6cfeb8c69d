#include "chat/answer_format.hpp"

#include <chat.h>
#include <json-schema-to-grammar.h>

#include <mutex>
#include <stdexcept>

namespace stratad {
namespace {

// Parsers recurse with the nesting of what they read, on a thread's ordinary stack.
constexpr int kMostNestedBrackets = 256;

bool is_nested_too_deeply(const std::string& text) {
  int depth = 0;
  for (const char letter : text) {
    if (letter == '{' || letter == '[') ++depth;
    if ((letter == '}' || letter == ']') && depth > 0) --depth;
    if (depth > kMostNestedBrackets) return true;
  }
  return false;
}

// Whatever llama.cpp throws over a request is that request's fault or its template's.
template <class Function>
auto as_invalid_argument(const Function& function) {
  try {
    return function();
  } catch (const std::exception& error) {
    throw std::invalid_argument(error.what());
  }
}

common_chat_templates_inputs inputs_of(const common_json& request) {
  common_chat_templates_inputs inputs;
  inputs.messages = common_chat_msgs_parse_oaicompat(request.at("messages"));
  inputs.tools = common_chat_tools_parse_oaicompat(request.value("tools", common_json::array()));
  inputs.tool_choice =
      common_chat_tool_choice_parse_oaicompat(request.value("tool_choice", std::string("auto")));
  inputs.parallel_tool_calls = request.value("parallel_tool_calls", true);
  if (request.contains("json_schema")) inputs.json_schema = request.at("json_schema").dump();
  inputs.enable_thinking = request.value("enable_thinking", true);
  inputs.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
  if (request.contains("template_arguments"))
    for (const auto& [name, value] : request.at("template_arguments").items())
      inputs.chat_template_kwargs[name] = value.dump();
  return inputs;
}

AnswerPlan plan_of(const common_chat_params& found) {
  AnswerPlan plan;
  plan.prompt = found.prompt;
  plan.prompt_end = found.generation_prompt;
  plan.grammar = found.grammar;
  plan.marks = found.preserved_tokens;
  plan.stop_strings = found.additional_stops;
  plan.thinking_start = found.thinking_start_tag;
  plan.thinking_ends = found.thinking_end_tags;
  if (!found.grammar_lazy) return plan;
  for (const common_grammar_trigger& trigger : found.grammar_triggers) {
    if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD)
      plan.trigger_words.push_back(trigger.value);
    else if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL)
      plan.trigger_patterns.push_back("^" + trigger.value + "$");
    else
      plan.trigger_patterns.push_back(trigger.value);
  }
  // A lazy grammar that nothing triggers never holds.
  if (plan.trigger_words.empty() && plan.trigger_patterns.empty()) plan.grammar.clear();
  return plan;
}

}  // namespace

struct AnswerPlan::Parser {
  common_chat_parser_params parameters;
};

AnswerParts AnswerPlan::parse(const std::string& text, bool is_partial) const {
  if (is_nested_too_deeply(text)) throw std::invalid_argument("brackets are nested too deeply");
  const common_chat_msg message =
      as_invalid_argument([&] { return common_chat_parse(text, is_partial, parser_->parameters); });
  AnswerParts parts{message.reasoning_content, message.content, {}};
  for (const common_chat_tool_call& call : message.tool_calls)
    parts.tool_calls.push_back({call.id, call.name, call.arguments});
  return parts;
}

struct AnswerFormat::Templates {
  common_chat_templates_ptr parsed;
  std::mutex mutex;
};

AnswerFormat::AnswerFormat(const std::string& source, const std::string& start_text,
                           const std::string& end_text)
    : templates_(std::make_unique<Templates>()) {
  if (source.empty()) throw std::invalid_argument("the template is empty");
  as_invalid_argument([&] {
    // The first line alone would do, but it throws away what was wrong.
    const common_chat_template tried(source, start_text, end_text);
    templates_->parsed = common_chat_templates_init(nullptr, source, start_text, end_text);
    describes_tools_ = tried.caps.supports_tools;
    writes_tool_calls_ = tried.caps.supports_tool_calls;
    wants_object_arguments_ = tried.caps.supports_object_arguments;
    has_system_role_ = tried.caps.supports_system_role;
    wants_content_parts_ = tried.caps.supports_typed_content && !tried.caps.supports_string_content;
    return true;
  });
}

AnswerFormat::~AnswerFormat() = default;

AnswerPlan AnswerFormat::plan(const std::string& request) const {
  return as_invalid_argument([&] {
    const auto inputs = inputs_of(common_json::parse(request));
    const std::lock_guard guard(templates_->mutex);
    const common_chat_params found = common_chat_templates_apply(templates_->parsed.get(), inputs);
    AnswerPlan plan = plan_of(found);
    auto parser = std::make_shared<AnswerPlan::Parser>();
    parser->parameters = common_chat_parser_params(found);
    parser->parameters.reasoning_format = inputs.reasoning_format;
    if (!found.parser.empty()) parser->parameters.parser.load(found.parser);
    plan.parser_ = std::move(parser);
    return plan;
  });
}

std::string grammar_of_schema(const std::string& schema) {
  if (is_nested_too_deeply(schema)) throw std::invalid_argument("the schema is nested too deeply");
  return as_invalid_argument([&] { return json_schema_to_grammar(common_json::parse(schema)); });
}

}  // namespace stratad
