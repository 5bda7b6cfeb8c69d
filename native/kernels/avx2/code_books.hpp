// What the nibbles of 4-bit types with a code book stand for (ggml-common.h).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/avx2/vectors.hpp"

namespace stratad::avx2 {
namespace {

// IQ4_NL and IQ4_XS.
STRATAD_INLINE __m256i non_linear_values(__m256i nibbles) {
  const __m128i values =
      _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), nibbles);
}

// MXFP4: twice the number (E2M1), which makes it whole, plus 16, which makes it unsigned.
STRATAD_INLINE __m256i doubled_e2m1_plus_16(__m256i nibbles) {
  const __m128i values = _mm_setr_epi8(16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4);
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), nibbles);
}

}  // namespace
}  // namespace stratad::avx2
