// What llama.cpp's chat sources use of its common library, in their signatures: the rest of that library
// (downloads, command line, samplers) is not built. Logging goes nowhere: what matters is thrown.
#include <common.h>
#include <log.h>

#include <stdexcept>

std::string string_join(const std::vector<std::string>& values, const std::string& separator) {
  std::string joined;
  for (size_t index = 0; index < values.size(); ++index) joined += (index ? separator : "") + values[index];
  return joined;
}

std::vector<std::string> string_split(const std::string& text, const std::string& delimiter) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = text.find(delimiter); end != std::string::npos; end = text.find(delimiter, begin)) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + delimiter.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::string string_repeat(const std::string& text, size_t count) {
  std::string repeated;
  repeated.reserve(text.size() * count);
  while (count-- > 0) repeated += text;
  return repeated;
}

void string_replace_all(std::string& text, const std::string& search, const std::string& replacement) {
  if (search.empty()) return;
  for (size_t at = text.find(search); at != std::string::npos;
       at = text.find(search, at + replacement.size()))
    text.replace(at, search.size(), replacement);
}

// Only chats of a loaded model ask these, and ours are made of a template's text alone.
std::vector<llama_token> common_tokenize(const llama_vocab*, const std::string&, bool, bool) {
  throw std::logic_error("no vocabulary here");
}

std::string common_token_to_piece(const llama_vocab*, llama_token, bool) {
  throw std::logic_error("no vocabulary here");
}

int common_log_get_verbosity_thold() {
  return LOG_LEVEL_OUTPUT - 1;
}

common_log* common_log_main() {
  return nullptr;
}

void common_log_add(common_log*, enum ggml_log_level, const char*, ...) {}
