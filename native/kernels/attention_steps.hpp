// The steps of kernels/attention.hpp, for one instruction set. `Vectors` gives
//   Floats, kWidth                    a vector and its number of floats
//   load, load_halves, store, all     from memory, from 16-bit floats, to memory, the same in every lane
//   multiply_add, larger              a * b + c rounded once; the larger of two
//   shift_exponent(y, n)              y * 2^n for whole n, where the result is a normal number
//   zero_below(limit, x, y)           y, and 0 in lanes where x < limit
//   is_any_different(x, y)
// Arithmetic is that of GCC's vector types.
//
// Included by files that are compiled for one instruction set: as in kernels/walk.hpp everything has internal
// linkage, and nothing of the standard library is called.
#pragma once

#include "kernels/attention.hpp"
#include "kernels/walk.hpp"

namespace stratad {
namespace {

constexpr int kTileKeys = 32;     // keys between two looks at the maxima; masks are skipped by as many
constexpr int kTogether = 8;      // keys, or columns of values, whose sums are in registers at a time
constexpr int kQueryVectors = 2;  // vectors of queries

constexpr uint16_t kHalfMinusInfinity = 0xfc00;
constexpr float kMinusInfinity = -__builtin_inff();

// e^x for x <= 0, and 0 below the smallest normal number. The polynomial is that of Cephes (S. Moshier) for
// single precision: 2 ulp at most, and exactly 1 for 0.
template <class Vectors>
STRATAD_INLINE typename Vectors::Floats exponential(typename Vectors::Floats x) {
  using Floats = typename Vectors::Floats;
  constexpr float kSmallest = -87.3365f;
  const Floats bounded = Vectors::larger(x, Vectors::all(kSmallest));
  // Rounds to the nearest whole number.
  const Floats shift = Vectors::all(12582912.f);
  const Floats power = bounded * Vectors::all(1.44269504088896341f) + shift - shift;
  Floats rest = Vectors::multiply_add(power, Vectors::all(-0.693359375f), bounded);
  rest = Vectors::multiply_add(power, Vectors::all(2.12194440e-4f), rest);
  Floats sum = Vectors::all(1.9875691500e-4f);
  for (const float coefficient :
       {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    sum = Vectors::multiply_add(sum, rest, Vectors::all(coefficient));
  sum = Vectors::multiply_add(sum * rest, rest, rest) + Vectors::all(1.f);
  return Vectors::zero_below(kSmallest, x, Vectors::shift_exponent(sum, power));
}

template <class Vectors>
class TileAttention {
  using Floats = typename Vectors::Floats;
  static constexpr int kWidth = Vectors::kWidth;

 public:
  static constexpr int kQueries = kQueryVectors * kWidth;
  static_assert(kQueries <= kMostAttentionQueries && kAttentionColumns % kWidth == 0);

  static size_t scratch_floats(int64_t key_columns, int64_t value_columns) noexcept {
    return static_cast<size_t>((key_columns + value_columns) * kQueries + 2 * kTileKeys * kQueries +
                               kTogether * key_columns + kTileKeys * value_columns);
  }

  [[gnu::always_inline]] TileAttention(const AttentionTile& tile, float* scratch)
      : tile_(tile),
        queries_(scratch),
        sums_(queries_ + tile.key_columns * kQueries),
        scores_(sums_ + tile.value_columns * kQueries),
        mask_(scores_ + kTileKeys * kQueries),
        key_rows_(mask_ + kTileKeys * kQueries),
        value_rows_(key_rows_ + kTogether * tile.key_columns) {}

  [[gnu::always_inline]] void attend() {
    gather_queries();
    for (int64_t index = 0; index < tile_.value_columns * kQueries; ++index) sums_[index] = 0;
    for (int vector = 0; vector < kQueryVectors; ++vector) {
      largest_[vector] = Vectors::all(kMinusInfinity);
      totals_[vector] = Vectors::all(0);
    }
    for (int64_t key = 0; key < tile_.key_count; key += kTileKeys) {
      const int64_t left = tile_.key_count - key;
      const int count = left < kTileKeys ? static_cast<int>(left) : kTileKeys;
      const Sight sight = look(key, count);
      if (sight == Sight::kNone) continue;
      score(key, count, sight);
      soften(count);
      add_values(key, count);
    }
    add_sinks();
    write();
  }

 private:
  // Whether the queries see all of some keys, none of them, or a part.
  enum class Sight { kAll, kSome, kNone };

  // Four 16-bit floats of a mask at a time.
  STRATAD_INLINE uint64_t four_halves(const ggml_fp16_t* address) {
    uint64_t word;
    __builtin_memcpy(&word, address, sizeof word);
    return word;
  }

  // A query's row becomes a lane. Lanes without a query repeat the last one.
  [[gnu::always_inline]] void gather_queries() {
    for (int lane = 0; lane < kQueries; ++lane) {
      const float* row = query_of(lane).values;
      for (int64_t column = 0; column < tile_.key_columns; ++column)
        queries_[column * kQueries + lane] = row[column];
    }
  }

  [[gnu::always_inline]] const AttentionQuery& query_of(int lane) const {
    return tile_.queries[lane < tile_.query_count ? lane : tile_.query_count - 1];
  }

  [[gnu::always_inline]] Sight look(int64_t key, int count) {
    if (tile_.queries[0].mask == nullptr) return Sight::kAll;
    if (count < kTileKeys) return Sight::kSome;
    constexpr uint64_t kNothing = kHalfMinusInfinity * 0x0001000100010001ull;
    uint64_t added = 0;
    bool sees = false;
    for (int lane = 0; lane < tile_.query_count; ++lane) {
      const ggml_fp16_t* row = tile_.queries[lane].mask + key;
      uint64_t hidden = 0;
      for (int at = 0; at < kTileKeys; at += 4) {
        added |= four_halves(row + at);
        hidden |= four_halves(row + at) ^ kNothing;
      }
      sees = sees || hidden != 0;
    }
    return !sees ? Sight::kNone : added == 0 ? Sight::kAll : Sight::kSome;
  }

  // scores_[key][query], scaled and masked.
  [[gnu::always_inline]] void score(int64_t first, int count, Sight sight) {
    for (int key = 0; key < count; key += kTogether) {
      for (int row = 0; row < kTogether; ++row) {
        const int given = key + row < count ? key + row : count - 1;
        widen(tile_.keys + static_cast<size_t>(first + given) * tile_.key_stride, tile_.key_columns,
              key_rows_ + row * tile_.key_columns);
      }
      score_together(scores_ + key * kQueries);
    }
    if (sight == Sight::kAll) return;
    for (int lane = 0; lane < kQueries; ++lane) {
      const ggml_fp16_t* row = query_of(lane).mask + first;
      for (int key = 0; key < count; ++key)
        mask_[key * kQueries + lane] = row[key] == kHalfMinusInfinity ? kMinusInfinity : _cvtsh_ss(row[key]);
    }
    for (int at = 0; at < count * kQueries; at += kWidth)
      Vectors::store(scores_ + at, Vectors::load(scores_ + at) + Vectors::load(mask_ + at));
  }

  STRATAD_INLINE void widen(const char* halves, int64_t count, float* floats) {
    const auto* from = reinterpret_cast<const ggml_fp16_t*>(halves);
    for (int64_t at = 0; at < count; at += kWidth)
      Vectors::store(floats + at, Vectors::load_halves(from + at));
  }

  [[gnu::always_inline]] void score_together(float* scores) {
    Floats sums[kTogether][kQueryVectors];
    for (int row = 0; row < kTogether; ++row)
      for (int vector = 0; vector < kQueryVectors; ++vector) sums[row][vector] = Vectors::all(0);
#pragma GCC unroll 2
    for (int64_t column = 0; column < tile_.key_columns; ++column)
      multiply(queries_ + column * kQueries, key_rows_ + column, tile_.key_columns, sums);
    const Floats scale = Vectors::all(tile_.scale);
    for (int row = 0; row < kTogether; ++row)
      for (int vector = 0; vector < kQueryVectors; ++vector)
        Vectors::store(scores + row * kQueries + vector * kWidth, sums[row][vector] * scale);
  }

  // Adds the outer product of one factor for each query and kTogether others, `stride` apart.
  STRATAD_INLINE void multiply(const float* by_query, const float* others, int64_t stride,
                               Floats (&sums)[kTogether][kQueryVectors]) {
    Floats factors[kQueryVectors];
    for (int vector = 0; vector < kQueryVectors; ++vector)
      factors[vector] = Vectors::load(by_query + vector * kWidth);
    for (int row = 0; row < kTogether; ++row) {
      const Floats other = Vectors::all(others[row * stride]);
      for (int vector = 0; vector < kQueryVectors; ++vector)
        sums[row][vector] = Vectors::multiply_add(other, factors[vector], sums[row][vector]);
    }
  }

  // Scores become weights relative to the largest score so far; what was summed up is brought to the same.
  [[gnu::always_inline]] void soften(int count) {
    for (int vector = 0; vector < kQueryVectors; ++vector) {
      float* scores = scores_ + vector * kWidth;
      Floats largest = largest_[vector];
      for (int key = 0; key < count; ++key)
        largest = Vectors::larger(largest, Vectors::load(scores + key * kQueries));
      // A query that has seen nothing yet has nothing to be relative to.
      const Floats base = Vectors::larger(largest, Vectors::all(-3.4e38f));
      if (Vectors::is_any_different(largest, largest_[vector])) {
        const Floats change = exponential<Vectors>(largest_[vector] - base);
        totals_[vector] = totals_[vector] * change;
        for (int64_t column = 0; column < tile_.value_columns; ++column) {
          float* sum = sums_ + column * kQueries + vector * kWidth;
          Vectors::store(sum, Vectors::load(sum) * change);
        }
        largest_[vector] = largest;
      }
      for (int key = 0; key < count; ++key) {
        const Floats weight = exponential<Vectors>(Vectors::load(scores + key * kQueries) - base);
        Vectors::store(scores + key * kQueries, weight);
        totals_[vector] = totals_[vector] + weight;
      }
    }
  }

  [[gnu::always_inline]] void add_values(int64_t first, int count) {
    for (int key = 0; key < count; ++key)
      widen(tile_.values + static_cast<size_t>(first + key) * tile_.value_stride, tile_.value_columns,
            value_rows_ + key * tile_.value_columns);
    for (int64_t column = 0; column < tile_.value_columns; column += kTogether) {
      float* all = sums_ + column * kQueries;
      Floats sums[kTogether][kQueryVectors];
      for (int row = 0; row < kTogether; ++row)
        for (int vector = 0; vector < kQueryVectors; ++vector)
          sums[row][vector] = Vectors::load(all + row * kQueries + vector * kWidth);
#pragma GCC unroll 2
      for (int key = 0; key < count; ++key)
        multiply(scores_ + key * kQueries, value_rows_ + key * tile_.value_columns + column, 1, sums);
      for (int row = 0; row < kTogether; ++row)
        for (int vector = 0; vector < kQueryVectors; ++vector)
          Vectors::store(all + row * kQueries + vector * kWidth, sums[row][vector]);
    }
  }

  // A sink is a key like any other whose value is zero.
  [[gnu::always_inline]] void add_sinks() {
    alignas(64) float sinks[kQueries];
    for (int lane = 0; lane < kQueries; ++lane) sinks[lane] = query_of(lane).sink;
    for (int vector = 0; vector < kQueryVectors; ++vector) {
      const Floats sink = Vectors::load(sinks + vector * kWidth);
      const Floats base = Vectors::larger(Vectors::larger(largest_[vector], sink), Vectors::all(-3.4e38f));
      const Floats change = exponential<Vectors>(largest_[vector] - base);
      totals_[vector] = totals_[vector] * change + exponential<Vectors>(sink - base);
      Vectors::store(factors_ + vector * kWidth, change);
    }
  }

  // A query that has seen nothing has zeros.
  [[gnu::always_inline]] void write() {
    alignas(64) float totals[kQueries];
    for (int vector = 0; vector < kQueryVectors; ++vector)
      Vectors::store(totals + vector * kWidth, totals_[vector]);
    for (int lane = 0; lane < tile_.query_count; ++lane) {
      const float factor = totals[lane] == 0 ? 0 : factors_[lane] / totals[lane];
      float* output = tile_.queries[lane].output;
      for (int64_t column = 0; column < tile_.value_columns; ++column)
        output[column] = sums_[column * kQueries + lane] * factor;
    }
  }

  const AttentionTile& tile_;
  float* queries_;     // [key column][query]
  float* sums_;        // [value column][query]
  float* scores_;      // [key of the tile][query], then weights
  float* mask_;        // likewise
  float* key_rows_;    // kTogether keys, widened
  float* value_rows_;  // [key of the tile][value column]
  Floats largest_[kQueryVectors], totals_[kQueryVectors];
  alignas(64) float factors_[kQueries];
};

template <class Vectors>
void attend(const AttentionTile& tile, float* scratch) noexcept {
  TileAttention<Vectors>(tile, scratch).attend();
}

template <class Vectors>
constexpr AttentionKernel attention_kernel_of() {
  return {TileAttention<Vectors>::kQueries, TileAttention<Vectors>::scratch_floats, attend<Vectors>};
}

}  // namespace
}  // namespace stratad
