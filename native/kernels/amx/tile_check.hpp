// A product of every shape that the kernels use, and of whole tiles, compared with sums by the book.
#pragma once

#include <cstring>

#include "kernels/amx/tile_registers.hpp"

namespace stratad {
namespace {

// 16 by `kColumns` numbers with signs times `kColumns` by 16 without, twice into the same sums.
template <class Tiles, int kColumns>
class TileCheck {
 public:
  static bool is_right() noexcept {
    TileCheck check;
    check.fill();
    Tiles::configure(kConfiguration);
    Tiles::template clear<kSum>();
    Tiles::template load<kSigned>(check.signed_, kColumns);
    Tiles::template load<kUnsigned>(check.unsigned_, 4 * kRows);
    Tiles::template multiply<kSum, kSigned, kUnsigned>();
    Tiles::template multiply<kSum, kSigned, kUnsigned>();
    Tiles::template store<kSum>(check.sums_, 4 * kRows);
    Tiles::release();
    for (int row = 0; row < kRows; ++row)
      for (int column = 0; column < kRows; ++column)
        if (check.sums_[row][column] != 2 * check.sum(row, column)) return false;
    return true;
  }

 private:
  static constexpr int kRows = 16, kSum = 0, kSigned = 4, kUnsigned = 6;

  static constexpr TileConfiguration configuration() {
    TileConfiguration shape;
    for (const int tile : {kSum, kSigned, kUnsigned}) {
      shape.rows[tile] = tile == kUnsigned ? kColumns / 4 : kRows;
      shape.row_bytes[tile] = tile == kSigned ? kColumns : 4 * kRows;
    }
    return shape;
  }
  static constexpr TileConfiguration kConfiguration = configuration();

  // All bytes come up, the extremes of both kinds too.
  void fill() noexcept {
    uint32_t number = 1;
    const auto next = [&number] {
      number = number * 1664525 + 1013904223;
      return number >> 24;
    };
    for (auto& row : signed_)
      for (int8_t& value : row) value = static_cast<int8_t>(next());
    for (auto& row : unsigned_)
      for (uint8_t& value : row) value = static_cast<uint8_t>(next());
    signed_[0][0] = -128;
    unsigned_[0][0] = 255;
    std::memset(sums_, 0xff, sizeof sums_);
  }

  int32_t sum(int row, int column) const noexcept {
    int32_t sum = 0;
    for (int depth = 0; depth < kColumns; ++depth)
      sum += signed_[row][depth] * unsigned_[depth / 4][4 * column + depth % 4];
    return sum;
  }

  alignas(64) int8_t signed_[kRows][kColumns];
  alignas(64) uint8_t unsigned_[kColumns / 4][4 * kRows];
  alignas(64) int32_t sums_[kRows][kRows];
};

template <class Tiles>
bool are_products_right() noexcept {
  return TileCheck<Tiles, 16>::is_right() && TileCheck<Tiles, 32>::is_right() &&
         TileCheck<Tiles, 64>::is_right();
}

}  // namespace
}  // namespace stratad
