// Q8_0: blocks of 32 weights of 8 bits, a 16-bit float scale in front of each.
#pragma once

#include "kernels/avx512/scaled_blocks.hpp"

namespace stratad {
namespace {

struct Q80Layout {
  static constexpr ggml_type kWeightType = GGML_TYPE_Q8_0;
  static constexpr int kRows = 2, kBlockBytes = 34, kRaised = 128;

  STRATAD_INLINE __m256 load_scales(const char* blocks) { return load_halves<kBlockBytes>(blocks); }

  STRATAD_INLINE void unpack(const char* step, __m512i* weights) {
    const __m512i sign_bits = _mm512_set1_epi8(static_cast<char>(0x80));
    for (int half = 0; half < 2; ++half)
      join_blocks(load_quad(step + 2 + 16 * half), load_quad(step + 4 * kBlockBytes + 2 + 16 * half),
                  weights + 2 * half);
    for (int part = 0; part < 4; ++part) weights[part] = _mm512_xor_si512(weights[part], sign_bits);
  }

  // 16 bytes of each of four blocks.
  STRATAD_INLINE __m512i load_quad(const char* bytes) {
    return join_128(bytes, bytes + kBlockBytes, bytes + 2 * kBlockBytes, bytes + 3 * kBlockBytes);
  }
};

using Q80Type = ScaledBlockType<Q80Layout>;
using Q80Format = SteppedFormat<Q80Type>;

}  // namespace
}  // namespace stratad
