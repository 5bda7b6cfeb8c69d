// Small steps that the AVX2 kernels share.
//
// Nothing here or in the kernels calls a function template or inline function of the standard library: the
// linker may keep this instruction set's copy of such a function for all callers.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/walk.hpp"

namespace stratad::avx2 {
namespace {

STRATAD_INLINE __m256i load(const void* address) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(address));
}

STRATAD_INLINE __m128i load_lane(const void* address) {
  return _mm_loadu_si128(static_cast<const __m128i*>(address));
}

// The same 16 bytes in both lanes. The load unit does it: no shuffle.
STRATAD_INLINE __m256i load_into_both_lanes(const void* address) {
  return _mm256_broadcastsi128_si256(load_lane(address));
}

STRATAD_INLINE __m256i load_lanes(const void* first, const void* second) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load_lane(first)), load_lane(second), 1);
}

STRATAD_INLINE float load_half_float(const void* address) {
  uint16_t bits;
  __builtin_memcpy(&bits, address, sizeof bits);
  return _cvtsh_ss(bits);
}

// Half floats at four addresses.
STRATAD_INLINE __m128 load_half_floats(const void* a, const void* b, const void* c, const void* d) {
  uint16_t bits[4];
  __builtin_memcpy(&bits[0], a, sizeof bits[0]);
  __builtin_memcpy(&bits[1], b, sizeof bits[1]);
  __builtin_memcpy(&bits[2], c, sizeof bits[2]);
  __builtin_memcpy(&bits[3], d, sizeof bits[3]);
  return _mm_cvtph_ps(_mm_setr_epi16(static_cast<short>(bits[0]), static_cast<short>(bits[1]),
                                     static_cast<short>(bits[2]), static_cast<short>(bits[3]), 0, 0, 0, 0));
}

// In each 128-bit lane the sums of that lane's elements of a, b, c and d.
STRATAD_INLINE __m256i sum_within_lanes(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  const __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
  return _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
}

// The sums of all elements of a, b, c and d.
STRATAD_INLINE __m128i sum_elements(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i sums = sum_within_lanes(a, b, c, d);
  return _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
}

// Sums of two neighbouring products of signed bytes: maddubs takes one factor unsigned, so that is |value|,
// and the value's sign goes to the weight. No weight may be -128.
STRATAD_INLINE __m256i signed_products(__m256i weights, const int8_t* values, const uint8_t* magnitudes) {
  return _mm256_maddubs_epi16(load(magnitudes), _mm256_sign_epi8(weights, load(values)));
}

STRATAD_INLINE float sum_elements(__m128 values) {
  const __m128 sum = _mm_add_ps(values, _mm_movehl_ps(values, values));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

STRATAD_INLINE float sum_elements(__m256 values) {
  return sum_elements(_mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1)));
}

STRATAD_INLINE __m256i low_nibbles(__m256i bytes) {
  return _mm256_and_si256(bytes, _mm256_set1_epi8(15));
}

STRATAD_INLINE __m256i high_nibbles(__m256i bytes) {
  return low_nibbles(_mm256_srli_epi16(bytes, 4));
}

// Keeps a value that was stored for broadcasting loads in memory; the compiler would shuffle it instead. The
// load units have time to spare in these kernels, the shuffle unit has not.
template <class T>
STRATAD_INLINE void keep_in_memory(T& value) {
  __asm__("" : "+m"(value));
}

// Keeps the compiler from loading a value twice to save a copy: half of the loads cross a cache line.
STRATAD_INLINE void keep_in_register(__m256i& value) {
  __asm__("" : "+x"(value));
}

// Prefetches for a group of rows while it is multiplied: half of the rows' bytes from each of two addresses,
// or nothing where that is null. Asked for row by row, as the rows are read: all at once at the start of a
// step costs a tenth of the rate.
template <int kRowCount, int kStepBytes>
struct GroupPrefetch {
  const char* first;
  const char* second;

  __attribute__((always_inline)) void for_row(int row, int64_t step) const {
    constexpr int kHalf = (kRowCount + 1) / 2;
    const char* ahead = row < kHalf ? first : second;
    if (ahead != nullptr) prefetch_lines<kStepBytes>(ahead + (step * kHalf + row % kHalf) * kStepBytes);
  }
};

}  // namespace
}  // namespace stratad::avx2
