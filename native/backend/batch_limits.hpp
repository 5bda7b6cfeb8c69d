// How weights are multiplied: which kernels, and from how many tokens on in which way.
//
// The limits decide bits: rows one by one, panels and ggml's kernels form sums in different orders. So they
// are set once, before contexts compute, and whoever keeps results over a restart notes them
// (stratad/daemon/prompt_place.py).
#pragma once

#include <array>
#include <limits>
#include <optional>

#include "ggml.h"
#include "kernels/row_kernel.hpp"

namespace stratad {

// From no number of tokens on: never.
inline constexpr int kNoTokens = std::numeric_limits<int>::max();

// Of one weight type, in tokens that one matrix (an expert, or a dense weight) is multiplied with at once.
struct BatchLimits {
  // From here on by panels, where the kernel has them. 8 was right on the first machine (docs/BENCHMARKS.md);
  // `stratactl bench` finds it for this one.
  int panel_tokens = 8;
  // From here on by tiles, where the kernel has them; they have the bits of panels. Only after
  // prepare_tiles() (kernels/tiles.hpp) had no objection.
  int tile_tokens = kNoTokens;
  // The most that the pool takes; more are ggml's. Of experts on average: a batch is declined before anybody
  // knows which of them it uses. None: what is built in (DeviceState::takes_batch).
  std::optional<int> expert_pool_tokens, dense_pool_tokens;
};

struct ProductSettings {
  ProductSettings() = default;
  // With the limits that hold where nothing was measured.
  ProductSettings(std::optional<InstructionSet> set) noexcept : kernels(set) {}

  const BatchLimits& limits_of(ggml_type type) const noexcept { return limits[static_cast<size_t>(type)]; }

  // None: ggml's dot products, with ggml's bits. A type without a kernel has those in any case.
  std::optional<InstructionSet> kernels;
  std::array<BatchLimits, GGML_TYPE_COUNT> limits{};  // by weight type
};

}  // namespace stratad
