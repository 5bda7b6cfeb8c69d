#include "engine/model.hpp"

#include <exception>
#include <mutex>

#include "backend/arena_buffer.hpp"
#include "backend/expert_device.hpp"
#include "engine/log.hpp"
#include "engine/model_stream.hpp"

namespace stratad {
namespace {

// Only the weights: biases are added by the chain from ordinary memory (they are small and read in order).
constexpr const char* kExpertTensors = "ffn_(up|gate|down|gate_up)_exps\\.weight";

void initialise_llama() {
  static std::once_flag once;
  std::call_once(once, [] {
    capture_llama_log();
    register_expert_device();
    llama_backend_init();
  });
}

llama_model_params common_parameters() {
  llama_model_params parameters = llama_model_default_params();
  parameters.n_gpu_layers = 0;
  parameters.load_mode = LLAMA_LOAD_MODE_NONE;
  // Repacked buffers sum in another order and lose prefill against ggml's tiled kernel (measured, ADR 0001).
  parameters.use_extra_bufts = false;
  return parameters;
}

// llama.cpp's progress callback: places the arena before the first byte is written, then reports.
struct Loading {
  LoadSession& session;
  std::exception_ptr error;

  static bool proceed(float fraction, void* self) noexcept {
    auto& loading = *static_cast<Loading*>(self);
    try {
      loading.session.place();
      if (loading.session.progress() && !loading.session.progress()("loading weights", fraction))
        throw LoadCancelled();
      return true;
    } catch (...) {
      loading.error = std::current_exception();
      return false;
    }
  }
};

[[noreturn]] void fail(const ModelOptions& options, const std::string& read_error) {
  const std::string log = take_llama_log();
  throw ModelLoadError("llama.cpp cannot load " + options.paths.front() + ": " +
                       (read_error.empty() ? log : read_error));
}

}  // namespace

std::shared_ptr<Model> Model::load(const ModelOptions& options, std::shared_ptr<Pool> pool,
                                   const Progress& progress) {
  static std::mutex one_at_a_time;
  const std::lock_guard guard(one_at_a_time);
  initialise_llama();
  take_llama_log();
  llama_model_params parameters = common_parameters();
  if (!options.use_arena) {
    std::vector<const char*> paths;
    for (const std::string& path : options.paths) paths.push_back(path.c_str());
    llama_model* model = llama_model_load_from_splits(paths.data(), paths.size(), parameters);
    if (model == nullptr) fail(options, "");
    return std::shared_ptr<Model>(new Model(model, {}));
  }

  attach_pool(pool);
  LoadSession session(std::move(pool), options.place, progress);
  Loading loading{session, nullptr};
  ModelStream stream(options.paths, options.release_page_cache);
  const llama_model_tensor_buft_override overrides[] = {{kExpertTensors, arena_buffer_type()},
                                                        {nullptr, nullptr}};
  parameters.tensor_buft_overrides = overrides;
  parameters.progress_callback = Loading::proceed;
  parameters.progress_callback_user_data = &loading;
  llama_model* model = llama_model_load_from_file_ptr(stream.file(), parameters);
  if (model == nullptr) {
    if (loading.error) std::rethrow_exception(loading.error);
    fail(options, stream.read_error());
  }
  return std::shared_ptr<Model>(new Model(model, session.arenas()));
}

Model::~Model() {
  llama_model_free(model_);
}

std::vector<llama_token> Model::tokenize(const std::string& text, bool add_special,
                                         bool parse_special) const {
  std::vector<llama_token> tokens(text.size() + 2);
  const auto call = [&] {
    return llama_tokenize(vocabulary(), text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                          static_cast<int32_t>(tokens.size()), add_special, parse_special);
  };
  int32_t count = call();
  if (count < 0) {  // the negated count that would have been needed
    tokens.resize(static_cast<size_t>(-count));
    count = call();
  }
  if (count < 0) throw std::invalid_argument("the text cannot be tokenized");
  tokens.resize(static_cast<size_t>(count));
  return tokens;
}

std::string Model::token_bytes(llama_token token) const {
  std::string bytes(32, '\0');
  int32_t count =
      llama_token_to_piece(vocabulary(), token, bytes.data(), static_cast<int32_t>(bytes.size()), 0, false);
  if (count < 0) {
    bytes.resize(static_cast<size_t>(-count));
    count =
        llama_token_to_piece(vocabulary(), token, bytes.data(), static_cast<int32_t>(bytes.size()), 0, false);
  }
  bytes.resize(static_cast<size_t>(std::max(count, 0)));
  return bytes;
}

std::optional<std::string> Model::chat_template() const {
  const char* text = llama_model_chat_template(model_, nullptr);
  return text == nullptr ? std::nullopt : std::optional<std::string>(text);
}

std::optional<std::string> Model::metadata(const std::string& key) const {
  std::string value(256, '\0');
  int32_t length = llama_model_meta_val_str(model_, key.c_str(), value.data(), value.size());
  if (length < 0) return std::nullopt;
  if (static_cast<size_t>(length) >= value.size()) {
    value.resize(static_cast<size_t>(length) + 1);
    length = llama_model_meta_val_str(model_, key.c_str(), value.data(), value.size());
  }
  value.resize(static_cast<size_t>(length));
  return value;
}

}  // namespace stratad
