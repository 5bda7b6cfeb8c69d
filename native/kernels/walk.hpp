// How a run of rows is walked: the part of a kernel that all weight types and instruction sets share.
//
// `Format` gives, for one weight type and instruction set:
//   static constexpr int kRows             rows multiplied together, even
//   static constexpr int kRowsOfMany       the same from three tokens on, where it is another number
//   struct Activations                     one token's, as the kernel reads them
//   template <int kRowCount, int kTokens>
//   static void group(const char* const* rows, int64_t columns, const Activations* const* tokens,
//                     const char* ahead_first, const char* ahead_second, float* sums)
// with sums[token * kRowCount + row], room for kRoom floats. `ahead_*` are where to prefetch from, each
// advanced by half of the bytes that the group consumes; null where nothing is to be prefetched.
//
// Included by files that are compiled for one instruction set: everything here has internal linkage, so that
// the linker can never hand one set's code to another.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "kernels/row_kernel.hpp"

#define STRATAD_INLINE static inline __attribute__((always_inline))

namespace stratad {
namespace {

// Measured: on Emerald Rapids 2 to 8 KiB ahead are equal and none at all costs a quarter; on Zen 4 the
// kernels that read one row of each run at a time gain 6 to 10 % from 2 KiB over 4 (docs/BENCHMARKS.md).
constexpr int64_t kPrefetchBytes = 2048;

// Sums that a group may write, whether it has as many or not.
constexpr int kRoom = 4 * kKernelTokens;

template <int kBytes>
STRATAD_INLINE void prefetch_lines(const char* address) {
  for (int offset = 0; offset < kBytes; offset += 64) _mm_prefetch(address + offset, _MM_HINT_T0);
}

// Where to prefetch while `position` of a run of `length` bytes is read: ahead in it, or in what follows it.
STRATAD_INLINE const char* ahead(const char* run, int64_t length, int64_t position, const char* following) {
  position += kPrefetchBytes;
  if (position < length) return run + position;
  return following == nullptr ? nullptr : following + (position - length);
}

template <class Format, int kRowCount, int kTokens>
STRATAD_INLINE void store(const float* sums, int64_t row, int count, int skip, float* const* output) {
  for (int token = 0; token < kTokens; ++token)
    std::memcpy(output[token] + row, sums + token * kRowCount + skip,
                static_cast<size_t>(count) * sizeof(float));
}

template <class Format, int kTokens>
constexpr int rows_together() {
  if constexpr (kTokens > 2 && requires { Format::kRowsOfMany; }) return Format::kRowsOfMany;
  return Format::kRows;
}

// Both runs, kRows / 2 rows of each at a time; what is left over row by row of each.
template <class Format, int kTokens>
void walk_pair(const RowStreams& streams, const typename Format::Activations* const* tokens,
               float* const* first_output, float* const* second_output) noexcept {
  constexpr int kRows = rows_together<Format, kTokens>(), kHalf = kRows / 2;
  const int64_t row_bytes = static_cast<int64_t>(streams.row_bytes), length = streams.row_count * row_bytes;
  float sums[kRoom];
  const char* rows[kRows];
  int64_t row = 0;
  for (; row + kHalf <= streams.row_count; row += kHalf) {
    for (int index = 0; index < kHalf; ++index) {
      rows[index] = streams.first + (row + index) * row_bytes;
      rows[kHalf + index] = streams.second + (row + index) * row_bytes;
    }
    Format::template group<kRows, kTokens>(
        rows, streams.columns, tokens, ahead(streams.first, length, row * row_bytes, streams.after_first),
        ahead(streams.second, length, row * row_bytes, streams.after_second), sums);
    store<Format, kRows, kTokens>(sums, row, kHalf, 0, first_output);
    store<Format, kRows, kTokens>(sums, row, kHalf, kHalf, second_output);
  }
  for (; row < streams.row_count; ++row) {
    rows[0] = streams.first + row * row_bytes;
    rows[1] = streams.second + row * row_bytes;
    Format::template group<2, kTokens>(rows, streams.columns, tokens, nullptr, nullptr, sums);
    store<Format, 2, kTokens>(sums, row, 1, 0, first_output);
    store<Format, 2, kTokens>(sums, row, 1, 1, second_output);
  }
}

// One run: its two halves are the two streams, and an odd row is left over.
template <class Format, int kTokens>
void walk_single(const RowStreams& streams, const typename Format::Activations* const* tokens,
                 float* const* output) noexcept {
  const int64_t half = streams.row_count / 2;
  const int64_t length = half * static_cast<int64_t>(streams.row_bytes);
  RowStreams halves = streams;
  halves.second = streams.first + length;
  halves.row_count = half;
  // What follows in memory is another worker's; what this one reads next is cut in halves in the same way.
  halves.after_second = streams.after_first == nullptr ? nullptr : streams.after_first + length;
  float* second_output[kTokens];
  for (int token = 0; token < kTokens; ++token) second_output[token] = output[token] + half;
  walk_pair<Format, kTokens>(halves, tokens, output, second_output);
  if (2 * half == streams.row_count) return;
  const char* row = streams.first + 2 * length;
  float sums[kRoom];
  Format::template group<1, kTokens>(&row, streams.columns, tokens, nullptr, nullptr, sums);
  store<Format, 1, kTokens>(sums, 2 * half, 1, 0, output);
}

template <class Format, int kTokens>
void walk(const RowStreams& streams, const void* const* activations, float* const* first_output,
          float* const* second_output) noexcept {
  const typename Format::Activations* tokens[kTokens];
  for (int token = 0; token < kTokens; ++token)
    tokens[token] = static_cast<const typename Format::Activations*>(activations[token]);
  if (streams.second == nullptr) {
    walk_single<Format, kTokens>(streams, tokens, first_output);
  } else {
    walk_pair<Format, kTokens>(streams, tokens, first_output, second_output);
  }
}

// RowKernel::multiply of a format.
template <class Format>
void multiply(const RowStreams& streams, const void* const* activations, int token_count,
              float* const* first_output, float* const* second_output) noexcept {
  switch (token_count) {
    case 1:
      return walk<Format, 1>(streams, activations, first_output, second_output);
    case 2:
      return walk<Format, 2>(streams, activations, first_output, second_output);
    case 3:
      return walk<Format, 3>(streams, activations, first_output, second_output);
    default:
      return walk<Format, 4>(streams, activations, first_output, second_output);
  }
}

}  // namespace
}  // namespace stratad
