// Tile registers as a model in plain C++, for CPUs that have none: what the instructions do by Intel's
// description (Software Developer's Manual, volume 2: LDTILECFG, TILELOADD, TILESTORED, TILEZERO, TDPBSUD,
// TILERELEASE). What would raise an exception ends the test.
//
// Included by files that are compiled for one instruction set, so everything has internal linkage and nothing
// of the standard library is instantiated.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/amx/tile_registers.hpp"

namespace stratad {
namespace {

class TileModel {
 public:
  static void configure(const TileConfiguration& configuration) noexcept {
    require(configuration.palette <= 1, "LDTILECFG: no such palette");
    require(reinterpret_cast<uintptr_t>(&configuration) % 64 == 0, "configuration in two cache lines");
    for (const uint8_t byte : configuration.reserved) require(byte == 0, "LDTILECFG: a reserved byte");
    for (int tile = 0; tile < 16; ++tile) {
      const int rows = configuration.rows[tile], row_bytes = configuration.row_bytes[tile];
      require(tile < kTiles || (rows == 0 && row_bytes == 0), "LDTILECFG: a register that there is not");
      require(rows <= kRows && row_bytes <= kRowBytes, "LDTILECFG: a tile too large");
      require((rows == 0) == (row_bytes == 0), "LDTILECFG: a tile with one extent");
    }
    state().configuration = configuration;
    std::memset(state().bytes, 0, sizeof state().bytes);
  }

  static void release() noexcept {
    TileConfiguration none;
    none.palette = 0;
    state().configuration = none;
    std::memset(state().bytes, 0, sizeof state().bytes);
  }

  // Whether the thread has no tiles, as release() leaves it and a thread begins.
  static bool is_released() noexcept { return state().configuration.palette == 0; }
  static int64_t product_count() noexcept { return state().products; }

  template <int kTile>
  static void clear() noexcept {
    require_tile(kTile);
    std::memset(state().bytes[kTile], 0, sizeof state().bytes[kTile]);
  }

  template <int kTile>
  static void load(const void* rows, int64_t stride) noexcept {
    require_tile(kTile);
    std::memset(state().bytes[kTile], 0, sizeof state().bytes[kTile]);
    for (int row = 0; row < rows_of(kTile); ++row)
      std::memcpy(state().bytes[kTile][row], static_cast<const char*>(rows) + row * stride, bytes_of(kTile));
  }

  template <int kTile>
  static void store(void* rows, int64_t stride) noexcept {
    require_tile(kTile);
    for (int row = 0; row < rows_of(kTile); ++row)
      std::memcpy(static_cast<char*>(rows) + row * stride, state().bytes[kTile][row], bytes_of(kTile));
  }

  template <int kSum, int kSigned, int kUnsigned>
  static void multiply() noexcept {
    multiply_bytes(kSum, kSigned, kUnsigned, [](uint8_t byte) { return static_cast<int>(byte); });
  }

  // TDPBSSD, which takes both operands for signed numbers: for tests of a CPU that multiplies wrongly.
  template <int kSum, int kSigned, int kOther>
  static void multiply_signed() noexcept {
    multiply_bytes(kSum, kSigned, kOther,
                   [](uint8_t byte) { return static_cast<int>(static_cast<int8_t>(byte)); });
  }

 private:
  static constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;
  struct State {
    TileConfiguration configuration{.palette = 0};
    uint8_t bytes[kTiles][kRows][kRowBytes] = {};
    int64_t products = 0;
  };

  static State& state() noexcept {
    static thread_local State here;
    return here;
  }
  static int rows_of(int tile) noexcept { return state().configuration.rows[tile]; }
  static int bytes_of(int tile) noexcept { return state().configuration.row_bytes[tile]; }

  template <class Number>
  static void multiply_bytes(int sum_tile, int first_tile, int second_tile, Number number) noexcept {
    for (const int tile : {sum_tile, first_tile, second_tile}) require_tile(tile);
    require(sum_tile != first_tile && sum_tile != second_tile && first_tile != second_tile,
            "a product with a register twice");
    require(bytes_of(sum_tile) % 4 == 0 && bytes_of(first_tile) % 4 == 0 && bytes_of(second_tile) % 4 == 0,
            "a product with rows that are not of whole elements");
    require(rows_of(sum_tile) == rows_of(first_tile), "a product with other rows than its first operand");
    require(bytes_of(sum_tile) == bytes_of(second_tile),
            "a product with other columns than its second operand");
    require(bytes_of(first_tile) == 4 * rows_of(second_tile), "a product of operands that do not meet");
    ++state().products;
    // What lies behind a sum's columns and rows becomes zero.
    uint8_t sums[kRows][kRowBytes] = {};
    for (int row = 0; row < rows_of(sum_tile); ++row)
      for (int column = 0; column < bytes_of(sum_tile) / 4; ++column) {
        uint32_t sum;
        std::memcpy(&sum, state().bytes[sum_tile][row] + 4 * column, sizeof sum);
        for (int depth = 0; depth < bytes_of(first_tile); ++depth) {
          const int first = static_cast<int8_t>(state().bytes[first_tile][row][depth]);
          const int second = number(state().bytes[second_tile][depth / 4][4 * column + depth % 4]);
          sum += static_cast<uint32_t>(first * second);
        }
        std::memcpy(sums[row] + 4 * column, &sum, sizeof sum);
      }
    std::memcpy(state().bytes[sum_tile], sums, sizeof sums);
  }

  static void require_tile(int tile) noexcept {
    require(state().configuration.palette == 1, "a tile instruction without a configuration");
    require(tile >= 0 && tile < kTiles && rows_of(tile) != 0, "a tile that is not configured");
  }
  static void require(bool holds, const char* fault) noexcept {
    if (holds) return;
    std::fprintf(stderr, "tile model: %s\n", fault);
    std::abort();
  }
};

}  // namespace
}  // namespace stratad
