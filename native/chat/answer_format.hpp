// How a model writes its answers: where its thinking, its calls of tools and its text begin and end, by its
// chat template. llama.cpp's common/chat learns that from the template (ADR 0031); here it is behind plain
// values.
//
// The prompt itself is written elsewhere (stratad/chat/template.py). `AnswerPlan::prompt` is what llama.cpp's
// own template engine makes of the same messages, for comparison.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace stratad {

struct ToolCall {
  std::string id;  // empty where the model writes none
  std::string name;
  std::string arguments;  // JSON text; a beginning of it while the answer is not complete
};

struct AnswerParts {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;
};

// What one request's answer looks like, and what may constrain it.
class AnswerPlan {
 public:
  std::string prompt;
  std::string prompt_end;  // what the template adds to the messages for the answer to begin
  std::string grammar;     // GBNF over `prompt_end` and the answer; empty: anything goes
  // With one of these the grammar holds only from where the answer first has it.
  std::vector<std::string> trigger_words;
  std::vector<std::string> trigger_patterns;
  // Marks that may be tokens without text of their own: the parser needs their text.
  std::vector<std::string> marks;
  std::vector<std::string> stop_strings;
  // Between these nothing triggers the grammar; empty where the model does not think.
  std::string thinking_start;
  std::vector<std::string> thinking_ends;

  // The parts of `text`, the answer so far. Throws std::invalid_argument when it cannot be read; with
  // `is_partial`, only when nothing of it can.
  AnswerParts parse(const std::string& text, bool is_partial) const;

 private:
  friend class AnswerFormat;
  struct Parser;
  std::shared_ptr<const Parser> parser_;
};

// The format of one template. Safe from several threads, one at a time.
class AnswerFormat {
 public:
  // Throws std::invalid_argument for a template that llama.cpp cannot read.
  AnswerFormat(const std::string& source, const std::string& start_text, const std::string& end_text);
  ~AnswerFormat();
  AnswerFormat(const AnswerFormat&) = delete;
  AnswerFormat& operator=(const AnswerFormat&) = delete;

  bool describes_tools() const noexcept { return describes_tools_; }  // the template shows tools to the model
  bool writes_tool_calls() const noexcept { return writes_tool_calls_; }  // and earlier calls of them
  bool wants_object_arguments() const noexcept { return wants_object_arguments_; }
  bool has_system_role() const noexcept { return has_system_role_; }
  bool wants_content_parts() const noexcept { return wants_content_parts_; }

  // `request`: JSON with messages, tools, tool_choice (auto, none, required), parallel_tool_calls,
  // json_schema, enable_thinking and template_arguments. Throws std::invalid_argument, with the reason in
  // llama.cpp's words.
  AnswerPlan plan(const std::string& request) const;

 private:
  struct Templates;
  std::unique_ptr<Templates> templates_;
  bool describes_tools_ = false;
  bool writes_tool_calls_ = false;
  bool wants_object_arguments_ = false;
  bool has_system_role_ = true;
  bool wants_content_parts_ = false;
};

// A GBNF grammar of the JSON values that a JSON schema allows. Throws std::invalid_argument naming what it
// cannot express.
std::string grammar_of_schema(const std::string& schema);

}  // namespace stratad
