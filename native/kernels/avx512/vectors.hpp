// Small vector operations that the AVX-512 kernels share, and the loop over a row's steps.
//
// Nothing beyond Cascade Lake is used (F, BW, DQ, VL, VNNI). As in kernels/walk.hpp everything has internal
// linkage, and nothing of the standard library is called.
#pragma once

#include <cstring>

// gcc 12 takes the undefined operands inside its own intrinsics for mistakes.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include "kernels/walk.hpp"

namespace stratad {
namespace {

STRATAD_INLINE __m512i load_512(const void* address) {
  return _mm512_loadu_si512(address);
}

STRATAD_INLINE __m256i load_256(const void* address) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(address));
}

STRATAD_INLINE __m128i load_128(const void* address) {
  return _mm_loadu_si128(static_cast<const __m128i*>(address));
}

// The same 16 bytes in all four lanes.
STRATAD_INLINE __m512i repeat_128(const void* address) {
  return _mm512_broadcast_i32x4(load_128(address));
}

// Four times 16 bytes. Zen 4 loads one vector of 64 bytes a cycle, a broadcast one too, but two smaller ones.
STRATAD_INLINE __m512i join_128(const void* first, const void* second, const void* third,
                                const void* fourth) {
  const __m256i lower = _mm256_inserti128_si256(_mm256_castsi128_si256(load_128(first)), load_128(second), 1);
  const __m256i upper = _mm256_inserti128_si256(_mm256_castsi128_si256(load_128(third)), load_128(fourth), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(lower), upper, 1);
}

STRATAD_INLINE uint16_t load_16_bits(const char* address) {
  uint16_t value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

STRATAD_INLINE float load_half(const char* address) {
  return _cvtsh_ss(load_16_bits(address));
}

// Eight 16-bit floats, `kStride` bytes apart.
template <int kStride>
STRATAD_INLINE __m256 load_halves(const char* address) {
  __m128i halves = _mm_cvtsi32_si128(load_16_bits(address));
  halves = _mm_insert_epi16(halves, load_16_bits(address + kStride), 1);
  halves = _mm_insert_epi16(halves, load_16_bits(address + 2 * kStride), 2);
  halves = _mm_insert_epi16(halves, load_16_bits(address + 3 * kStride), 3);
  halves = _mm_insert_epi16(halves, load_16_bits(address + 4 * kStride), 4);
  halves = _mm_insert_epi16(halves, load_16_bits(address + 5 * kStride), 5);
  halves = _mm_insert_epi16(halves, load_16_bits(address + 6 * kStride), 6);
  halves = _mm_insert_epi16(halves, load_16_bits(address + 7 * kStride), 7);
  return _mm256_cvtph_ps(halves);
}

// A loaded vector that is used twice. Without this gcc 12 folds the load into both uses, and an unaligned
// load of 64 bytes costs two accesses each time.
STRATAD_INLINE __m512i load_once(const void* address) {
  __m512i value = load_512(address);
  __asm__("" : "+v"(value));
  return value;
}

// 16 bits twice in 32: entries of the tables that permute or shuffle 16-bit elements.
constexpr int twice(int value) {
  return value * 0x10001;
}

// Of each of four vectors the sums of every fourth lane from the same one on: lane L of 128 bits has the four
// vectors' sums of what lay in their lanes L.
STRATAD_INLINE __m512 sums_within_lanes(__m512 first, __m512 second, __m512 third, __m512 fourth) {
  const __m512 lower = _mm512_add_ps(_mm512_unpacklo_ps(first, second), _mm512_unpackhi_ps(first, second));
  const __m512 upper = _mm512_add_ps(_mm512_unpacklo_ps(third, fourth), _mm512_unpackhi_ps(third, fourth));
  const __m512d left = _mm512_castps_pd(lower), right = _mm512_castps_pd(upper);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(left, right)),
                       _mm512_castpd_ps(_mm512_unpackhi_pd(left, right)));
}

// The same of two vectors, to the bit: each lane has the two sums twice.
STRATAD_INLINE __m512 two_sums_within_lanes(__m512 first, __m512 second) {
  const __m512 both = _mm512_add_ps(_mm512_unpacklo_ps(first, second), _mm512_unpackhi_ps(first, second));
  return _mm512_add_ps(both, _mm512_permute_ps(both, 0x4e));
}

// The four lanes of 128 bits of each vector added up, one behind the other.
STRATAD_INLINE __m512 sums_across_lanes(__m512 first, __m512 second, __m512 third, __m512 fourth) {
  constexpr int kLowerHalves = 0x44, kUpperHalves = 0xee, kEven = 0x88, kOdd = 0xdd;
  const auto halves = [](__m512 lower, __m512 upper) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(lower, upper, kLowerHalves),
                         _mm512_shuffle_f32x4(lower, upper, kUpperHalves));
  };
  const __m512 lower = halves(first, second), upper = halves(third, fourth);
  return _mm512_add_ps(_mm512_shuffle_f32x4(lower, upper, kEven), _mm512_shuffle_f32x4(lower, upper, kOdd));
}

STRATAD_INLINE __m512 sums_across_lanes(__m512 first, __m512 second) {
  return sums_across_lanes(first, second, first, second);
}

// The sums of the 16 lanes of each vector, at most 16 of them; what lies behind them in the result means
// nothing. All go through the same tree, so that a sum's bits do not depend on how many there are.
template <int kCount>
STRATAD_INLINE __m512 sums_of_lanes(const __m512* vectors) {
  static_assert(kCount >= 1 && kCount <= 16);
  const auto vector = [=](int index) { return vectors[index < kCount ? index : kCount - 1]; };
  const auto four = [=](int first) {
    if constexpr (kCount <= 2) return two_sums_within_lanes(vectors[0], vector(1));
    return sums_within_lanes(vector(first), vector(first + 1), vector(first + 2), vector(first + 3));
  };
  if constexpr (kCount <= 4) {
    const __m512 all = four(0);
    const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    return _mm512_castps128_ps512(
        _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
  }
  if constexpr (kCount <= 8) return sums_across_lanes(four(0), four(4));
  return sums_across_lanes(four(0), four(4), four(8), four(12));
}

// Stores at least the first kCount of them. Masked stores would write no more, but cost Zen 4 a tenth of a
// short row.
template <int kCount>
STRATAD_INLINE void store_first(__m512 values, float* to) {
  if constexpr (kCount <= 4) return _mm_storeu_ps(to, _mm512_castps512_ps128(values));
  if constexpr (kCount <= 8) return _mm256_storeu_ps(to, _mm512_castps512_ps256(values));
  _mm512_storeu_ps(to, values);
}

// Copies fewer bytes than `kBytes` and fills up with zeros. Masked loads touch no byte behind `count`.
template <int kBytes>
STRATAD_INLINE void copy_padded(const char* from, int64_t count, char* to) {
  for (int64_t offset = 0; offset < kBytes; offset += 64) {
    const int64_t left = count - offset;
    const __mmask64 mask = left >= 64 ? ~uint64_t{0} : left <= 0 ? 0 : (uint64_t{1} << left) - 1;
    _mm512_store_si512(to + offset, _mm512_maskz_loadu_epi8(mask, from + offset));
  }
}

// At most eight numbers, one or four of which can be spread to a whole vector by a load: the load ports have
// room, the one that shuffles has none.
class SpreadByLoads {
 public:
  [[gnu::always_inline]] explicit SpreadByLoads(__m128 numbers) {
    _mm_store_ps(memory_, numbers);
    // Or gcc would see through the store and shuffle after all.
    __asm__("" : "+m"(memory_));
  }
  [[gnu::always_inline]] explicit SpreadByLoads(__m256 numbers) {
    _mm256_store_ps(memory_, numbers);
    __asm__("" : "+m"(memory_));
  }
  [[gnu::always_inline]] __m512 operator[](int index) const { return _mm512_set1_ps(memory_[index]); }
  [[gnu::always_inline]] __m512 four(int first) const {
    return _mm512_broadcast_f32x4(_mm_load_ps(memory_ + first));
  }

 private:
  alignas(32) float memory_[8];
};

// The 16-bit floats at one place of each row.
template <int kRowCount>
STRATAD_INLINE __m128 load_halves_of_rows(const char* const* rows, int64_t offset) {
  __m128i halves = _mm_cvtsi32_si128(load_16_bits(rows[0] + offset));
  if constexpr (kRowCount > 1) halves = _mm_insert_epi16(halves, load_16_bits(rows[1] + offset), 1);
  if constexpr (kRowCount > 2) halves = _mm_insert_epi16(halves, load_16_bits(rows[2] + offset), 2);
  if constexpr (kRowCount > 3) halves = _mm_insert_epi16(halves, load_16_bits(rows[3] + offset), 3);
  return _mm_cvtph_ps(halves);
}

// A vector for each row and token, whose lanes are added up at the end: the base of a type's Sums.
template <int kRowCount, int kTokens>
struct RowSums {
  static constexpr int kTokenCount = kTokens;
  __m512 products[kTokens][kRowCount];

  [[gnu::always_inline]] RowSums() {
    for (int token = 0; token < kTokens; ++token)
      for (int row = 0; row < kRowCount; ++row) products[token][row] = _mm512_setzero_ps();
  }

  [[gnu::always_inline]] void finish(float* sums) const {
    constexpr int kCount = kTokens * kRowCount;
    store_first<kCount>(sums_of_lanes<kCount>(products[0]), sums);
  }
};

// What kernels/walk.hpp calls a format, made from a weight type that is read in steps. `Type` gives
//   kStepColumns, kStepBytes     a step: so many weights of one row in so many bytes
//   kRows                        rows of one or two tokens multiplied together, half of them of each run: 4
//                                where unpacking takes most of the time, 2 where memory does. Zen 4
//                                prefetches better by itself when each run is read in order
//                                (docs/BENCHMARKS.md).
//   kUnitColumns                 a row is a multiple of this: a fraction of a step, or all of it
//   struct Activations           one step of one token
//   template <int kRowCount> struct Step, one step of some rows as it is multiplied, with
//     void unpack(const char* const* rows, int64_t offset)
//   template <int kRowCount, int kTokens> struct Sums, with
//     void add(const Step<kRowCount>& step, const Activations& activations, int token)
//     void finish(float* sums)
// A last step that is not full is multiplied as a full one, from a copy with zeros behind it: the
// activations are zero there too, and zero bytes give finite weights in every type.
template <class Type>
struct SteppedFormat : Type {
  // With more the sums do not fit into registers.
  static constexpr int kRowsOfMany = 2;
  using Activations = typename Type::Activations;

  template <int kRowCount, int kTokens>
  STRATAD_INLINE void group(const char* const* rows, int64_t columns, const Activations* const* tokens,
                            const char* ahead_first, const char* ahead_second, float* sums) {
    constexpr int kAheadBytes = kRowCount * Type::kStepBytes / 2;
    const int64_t full_steps = columns / Type::kStepColumns;
    typename Type::template Sums<kRowCount, kTokens> total;
    for (int64_t step = 0; step < full_steps; ++step) {
      if (ahead_first != nullptr) {
        prefetch_lines<kAheadBytes>(ahead_first);
        ahead_first += kAheadBytes;
      }
      if (ahead_second != nullptr) {
        prefetch_lines<kAheadBytes>(ahead_second);
        ahead_second += kAheadBytes;
      }
      add_step<kRowCount>(rows, step * Type::kStepBytes, tokens, step, total);
    }
    if constexpr (Type::kUnitColumns != Type::kStepColumns) {
      const int64_t left = columns - full_steps * Type::kStepColumns;
      if (left != 0) add_rest<kRowCount>(rows, full_steps, left, tokens, total);
    }
    total.finish(sums);
  }

 private:
  template <int kRowCount, class Total>
  STRATAD_INLINE void add_step(const char* const* rows, int64_t offset, const Activations* const* tokens,
                               int64_t step, Total& total) {
    typename Type::template Step<kRowCount> now;
    now.unpack(rows, offset);
    // All rows use a token's values while they are in registers: loads are what bounds this on Zen 4 else.
    for (int token = 0; token < Total::kTokenCount; ++token) total.add(now, tokens[token][step], token);
  }

  template <int kRowCount, class Total>
  STRATAD_INLINE void add_rest(const char* const* rows, int64_t full_steps, int64_t columns,
                               const Activations* const* tokens, Total& total) {
    constexpr int kPaddedBytes = (Type::kStepBytes + 63) / 64 * 64;
    alignas(64) char copies[kRowCount][kPaddedBytes];
    const char* copied[kRowCount];
    const int64_t bytes =
        columns / Type::kUnitColumns * (Type::kStepBytes * Type::kUnitColumns / Type::kStepColumns);
    for (int row = 0; row < kRowCount; ++row) {
      copy_padded<kPaddedBytes>(rows[row] + full_steps * Type::kStepBytes, bytes, copies[row]);
      copied[row] = copies[row];
    }
    add_step<kRowCount>(copied, 0, tokens, full_steps, total);
  }
};

}  // namespace
}  // namespace stratad
