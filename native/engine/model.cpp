#include "engine/model.hpp"

#include <exception>
#include <mutex>
#include <set>

#include "backend/arena_buffer.hpp"
#include "backend/device.hpp"
#include "engine/log.hpp"
#include "engine/model_files.hpp"

// Exported by libllama without a public header: where llama.cpp has put each weight.
const std::vector<std::pair<std::string, ggml_tensor*>>& llama_internal_get_tensor_map(
    const llama_model* model);

namespace stratad {
namespace {

// Only the weights: biases are added by the chain from ordinary memory (they are small and read in order).
constexpr const char* kExpertTensors = "ffn_(up|gate|down|gate_up)_exps\\.weight";

// The matrices that every token reads: attention with its latent forms, router, dense and shared
// feed-forward, the projections of recurrent layers, the output head. Not the token embeddings, of which a
// token reads one row (a model that ties its output to them is computed from ordinary memory), and no
// vectors. stratad/gguf/model.py counts the same tensors (WEIGHT_TENSOR_NAME).
constexpr const char* kWeightTensors =
    "^(output|blk\\.[0-9]+\\.("
    "attn_(q|k|v|qkv|gate|output|q_a|q_b|kv_a_mqa|kv_b|k_b|v_b)|ssm_(in|out)|"
    "ffn_gate_inp|ffn_(up|gate|down|gate_up)(_exps|_shexp|_chexps)?))\\.weight$";

void initialise_llama() {
  static std::once_flag once;
  std::call_once(once, [] {
    capture_llama_log();
    register_pool_device();
    llama_backend_init();
  });
}

llama_model_params common_parameters() {
  llama_model_params parameters = llama_model_default_params();
  // None unless one is named: llama.cpp would take every GPU whose module is loaded.
  static ggml_backend_dev_t no_devices[] = {nullptr};
  parameters.devices = no_devices;
  parameters.n_gpu_layers = 0;
  parameters.load_mode = LLAMA_LOAD_MODE_NONE;
  // Repacked buffers sum in another order and lose prefill against ggml's tiled kernel (measured, ADR 0001).
  parameters.use_extra_bufts = false;
  return parameters;
}

// llama.cpp's progress callback, over what it reads itself. Nothing may be thrown through it.
struct Loading {
  const Progress& progress;
  std::exception_ptr error;

  static bool proceed(float fraction, void* self) noexcept {
    auto& loading = *static_cast<Loading*>(self);
    try {
      if (loading.progress && !loading.progress("loading weights", fraction)) throw LoadCancelled();
      return true;
    } catch (...) {
      loading.error = std::current_exception();
      return false;
    }
  }
};

// Throws ModelLoadError with llama.cpp's own words, or what the progress callback threw.
llama_model* load_llama_model(const ModelOptions& options, llama_model_params parameters,
                              const Progress& progress) {
  Loading loading{progress, nullptr};
  parameters.progress_callback = Loading::proceed;
  parameters.progress_callback_user_data = &loading;
  std::vector<const char*> paths;
  for (const std::string& path : options.paths) paths.push_back(path.c_str());
  llama_model* model = llama_model_load_from_splits(paths.data(), paths.size(), parameters);
  if (model != nullptr) return model;
  if (loading.error) std::rethrow_exception(loading.error);
  throw ModelLoadError("llama.cpp cannot load " + options.paths.front() + ": " + take_llama_log());
}

// Layers by free memory, as llama.cpp would have it; but it divides by zero where nothing is free.
std::vector<float> shares_of(const GpuOffload& gpu) {
  std::vector<float> shares;
  for (const InnerDevice& device : gpu.inner_devices())
    shares.push_back(static_cast<float>(device.free_bytes) + 1);
  shares.resize(llama_max_devices());
  return shares;
}

void bind(GpuOffload& gpu, const LoadSession& session, const llama_model* model) {
  std::vector<GpuOffload::NamedTensor> experts, others;
  for (const DeferredTensor& deferred : session.tensors())
    experts.emplace_back(deferred.name, deferred.tensor);
  for (const auto& [name, tensor] : llama_internal_get_tensor_map(model))
    if (!is_in_arena(tensor)) others.emplace_back(name, tensor);
  gpu.bind(experts, others);
}

}  // namespace

std::shared_ptr<Model> Model::load(const ModelOptions& options, std::shared_ptr<Pool> pool,
                                   const Progress& progress) {
  static std::mutex one_at_a_time;
  const std::lock_guard guard(one_at_a_time);
  initialise_llama();
  take_llama_log();
  ModelFiles files(options.paths, options.release_page_cache);
  llama_model_params parameters = common_parameters();
  if (!options.use_arena) {
    ggml_backend_dev_t plain_devices[] = {nullptr, nullptr};
    const llama_model_tensor_buft_override on_cpu[] = {{kExpertTensors, ggml_backend_cpu_buffer_type()},
                                                       {nullptr, nullptr}};
    if (!options.plain_gpu.empty()) {
      plain_devices[0] = ggml_backend_dev_by_name(options.plain_gpu.c_str());
      if (plain_devices[0] == nullptr)
        throw std::invalid_argument("no device is called '" + options.plain_gpu + "'");
      parameters.devices = plain_devices;
      parameters.n_gpu_layers = options.gpu_layer_count;
      parameters.tensor_buft_overrides = on_cpu;
    }
    return std::shared_ptr<Model>(
        new Model(load_llama_model(options, parameters, progress), DeviceMode::kStructural));
  }

  attach_pool(pool);
  LoadSession session(std::move(pool), options.place, progress);
  const bool has_all = options.scope == ArenaScope::kWeights;
  const llama_model_tensor_buft_override overrides[] = {
      {has_all ? kWeightTensors : kExpertTensors, arena_buffer_type()}, {nullptr, nullptr}};
  parameters.tensor_buft_overrides = overrides;
  std::vector<ggml_backend_dev_t> devices;
  std::vector<float> shares;
  if (options.gpu) {
    if (has_all) throw std::invalid_argument("with a GPU the arena holds experts only");
    devices = options.gpu->devices();
    parameters.devices = devices.data();
    parameters.n_gpu_layers = options.gpu_layer_count;
    shares = shares_of(*options.gpu);
    parameters.tensor_split = shares.data();
  }
  std::shared_ptr<Model> model(new Model(load_llama_model(options, parameters, progress),
                                         has_all ? DeviceMode::kOwn : DeviceMode::kStructural));
  model->gpu_ = options.gpu;
  session.place();
  session.fill([&](Arena& arena, std::byte* destination, size_t size, const std::string& name) {
    files.fill(arena, destination, size, name);
  });
  model->arenas_ = session.arenas();
  if (options.gpu) bind(*options.gpu, session, model->get());
  return model;
}

std::vector<int> Model::shared_node_ids() const {
  std::set<int> node_ids;
  for (const auto& arena : arenas_) {
    if (arena->layout().slices.size() < 2) continue;
    for (const SliceSeat& slice : arena->layout().slices)
      node_ids.insert(slice.node_ids.begin(), slice.node_ids.end());
  }
  return {node_ids.begin(), node_ids.end()};
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
