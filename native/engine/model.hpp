// A loaded model: libllama's weights and vocabulary, its experts (or all its large weights) in the arena.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "arena/arena.hpp"
#include "backend/device.hpp"
#include "gpu/gpu_offload.hpp"
#include "llama.h"
#include "pool/pool.hpp"

namespace stratad {

// llama.cpp refused the model; the message holds what it logged.
struct ModelLoadError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What the arena holds: the matrices of experts, or every large weight matrix that a token reads.
enum class ArenaScope { kExperts, kWeights };

struct ModelOptions {
  std::vector<std::string> paths;  // all parts of a split model, in order
  bool use_arena = true;           // false: llama.cpp's own buffers and loader, for comparison
  // With that: llama.cpp's own offload to this device, with the experts in host memory (--cpu-moe).
  std::string plain_gpu;
  // With kWeights, contexts of the model are computed in own mode (backend/own_backend.hpp).
  ArenaScope scope = ArenaScope::kExperts;
  // The GPUs that hold what is not in the arena, and compute it; with kExperts only. None: the CPU alone.
  std::shared_ptr<GpuOffload> gpu;
  int gpu_layer_count = -1;         // layers on them, the last ones first; negative for all
  bool release_page_cache = false;  // drop the file's cached pages before and while loading
  PlaceOptions place;
};

class Model {
 public:
  // What `scope` names goes to the arena and is computed by `pool`, which becomes the device's pool. Throws
  // ModelLoadError, LoadCancelled, std::system_error or std::invalid_argument; nothing stays allocated after
  // a throw.
  static std::shared_ptr<Model> load(const ModelOptions& options, std::shared_ptr<Pool> pool,
                                     const Progress& progress);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  llama_model* get() const noexcept { return model_; }
  const llama_vocab* vocabulary() const noexcept { return llama_model_get_vocab(model_); }
  const std::vector<std::shared_ptr<Arena>>& arenas() const noexcept { return arenas_; }
  // The nodes of the arena's slices where there are several, ascending: what all slices read lies on all.
  std::vector<int> shared_node_ids() const;
  // How the pool's device computes contexts of this model.
  DeviceMode mode() const noexcept { return mode_; }
  // Null without GPUs.
  const std::shared_ptr<GpuOffload>& gpu() const noexcept { return gpu_; }

  std::vector<llama_token> tokenize(const std::string& text, bool add_special, bool parse_special) const;
  std::string token_bytes(llama_token token) const;  // may hold part of a UTF-8 sequence
  std::optional<std::string> chat_template() const;
  std::optional<std::string> metadata(const std::string& key) const;

 private:
  Model(llama_model* model, DeviceMode mode) : model_(model), mode_(mode) {}

  llama_model* model_;
  DeviceMode mode_;
  std::shared_ptr<GpuOffload> gpu_;
  std::vector<std::shared_ptr<Arena>> arenas_;
};

}  // namespace stratad
