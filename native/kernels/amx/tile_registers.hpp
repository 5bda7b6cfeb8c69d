// The CPU's tile registers (AMX): eight of them, each at most 16 rows of 64 bytes.
//
// Instructions are written out instead of taken from the compiler's intrinsics: GCC 12's say neither that
// ldtilecfg reads 64 bytes nor that a tile load reads memory at all, so stores in front of them may be
// dropped. The compiler keeps nothing in tile registers, so it need not be told which ones are changed.
//
// The same members, as a model in plain C++, are in tests/native/tile_model.hpp.
#pragma once

#include <cstdint>

namespace stratad {
namespace {

// What ldtilecfg reads. Palette 1 is the only one there is; what is not named has to be zero.
struct alignas(64) TileConfiguration {
  uint8_t palette = 1;
  uint8_t first_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfiguration) == 64);

struct TileRegisters {
  // Gives every register its shape and zeros. The configuration has to be a constant.
  [[gnu::always_inline]] static void configure(const TileConfiguration& configuration) noexcept {
    __asm__ volatile("ldtilecfg %0" : : "m"(configuration));
  }

  // Tiles are empty afterwards and cost a thread that is switched out nothing.
  [[gnu::always_inline]] static void release() noexcept { __asm__ volatile("tilerelease"); }

  template <int kTile>
  [[gnu::always_inline]] static void clear() noexcept {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }

  // Row r from `rows` + r * `stride` bytes.
  template <int kTile>
  [[gnu::always_inline]] static void load(const void* rows, int64_t stride) noexcept {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(stride), "i"(kTile) : "memory");
  }

  template <int kTile>
  [[gnu::always_inline]] static void store(void* rows, int64_t stride) noexcept {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(rows), "r"(stride), "i"(kTile) : "memory");
  }

  // sum[m][n] += signed[m][k] * unsigned[k / 4][4 n + k % 4] over all k; the sums have 32 bits.
  template <int kSum, int kSigned, int kUnsigned>
  [[gnu::always_inline]] static void multiply() noexcept {
    // In this order of operands the last one is the destination.
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kSigned), "i"(kUnsigned));
  }
};

}  // namespace
}  // namespace stratad
