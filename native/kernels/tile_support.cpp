#include "kernels/tile_support.hpp"

#include <cpuid.h>

#include <cstdint>

#include "kernels/row_kernel.hpp"

namespace stratad {
namespace {

struct CpuidLeaf {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

// Zeros where the CPU has no such leaf.
CpuidLeaf cpuid_leaf(unsigned leaf, unsigned part) noexcept {
  CpuidLeaf words;
  __get_cpuid_count(leaf, part, &words.a, &words.b, &words.c, &words.d);
  return words;
}

constexpr bool has_bit(uint64_t word, int bit) noexcept {
  return (word >> bit & 1) != 0;
}

// Which parts of a thread's state the operating system saves. Only where cpuid says that there is the
// register.
uint64_t enabled_state() noexcept {
  constexpr int kHasEnabledState = 27;
  if (!has_bit(cpuid_leaf(1, 0).c, kHasEnabledState)) return 0;
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

// Palette 1: bytes of all tiles and of one, bytes of a row and tiles, rows.
bool has_known_palette() noexcept {
  constexpr unsigned kTileLeaf = 0x1d, kPalette = 1;
  if (cpuid_leaf(kTileLeaf, 0).a < kPalette) return false;
  const CpuidLeaf words = cpuid_leaf(kTileLeaf, kPalette);
  return words.a == (1024u << 16 | 8192u) && words.b == (8u << 16 | 64u) && (words.c & 0xffff) == 16;
}

}  // namespace

TileSupport tile_support() noexcept {
  constexpr unsigned kFeatures = 7;
  constexpr int kTiles = 24, kByteProducts = 25, kConfigurationState = 17, kTileState = 18;
  const CpuidLeaf features = cpuid_leaf(kFeatures, 0);
  const uint64_t enabled = enabled_state();
  return {cpu_has(InstructionSet::kAvx512Vnni), has_bit(features.d, kTiles),
          has_bit(features.d, kByteProducts), has_known_palette(),
          has_bit(enabled, kConfigurationState) && has_bit(enabled, kTileState)};
}

}  // namespace stratad
