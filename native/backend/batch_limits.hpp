// How weights are multiplied: which kernels, and from how many tokens on in which way.
//
// The limits decide bits: rows one by one and panels form sums in another order. So they are set once, before
// contexts compute, and whoever keeps results over a restart notes them (stratad/prompt_place.py).
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
  // From here on by tiles, where kernel and CPU have them; they have the bits of panels.
  int tile_tokens = kNoTokens;
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
