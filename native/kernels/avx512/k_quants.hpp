// Q4_K and Q5_K: 256 weights in eight blocks of 32, a 6-bit scale and a 6-bit minimum for each block.
//
// Bytes of a step: scale and minimum of the scales (16-bit floats), 12 bytes with the scales, (Q5_K: 32 bytes
// with the fifth bits), 128 bytes of 4 bits each. Of every 32 bytes the lower halves are one block and the
// upper halves the next.
#pragma once

#include "kernels/avx512/activations.hpp"

namespace stratad {
namespace {

// One step of a token for both types.
struct alignas(64) KQuantActivations {
  // In the order in which the weights come: the first halves of the blocks 0 2 4 6, their last halves, the
  // same of the blocks 1 3 5 7.
  int8_t values[256];
  int16_t block_sums[8];  // in their natural order, for the minima
  float scale;
};

STRATAD_INLINE void arrange_k_quant(const int8_t* values, float scale, KQuantActivations& record) {
  record.scale = scale;
  for (int block = 0; block < 8; ++block) {
    int8_t* first = record.values + block % 2 * 128 + block / 2 * 16;
    std::memcpy(first, values + 32 * block, 16);
    std::memcpy(first + 64, values + 32 * block + 16, 16);
    record.block_sums[block] = static_cast<int16_t>(sum_of(values + 32 * block, 32));
  }
}

// The 16-byte headers of up to four rows, one in each lane: they are unpacked together. Lanes without a row
// repeat the first one's.
template <int kRowCount>
STRATAD_INLINE __m512i load_headers(const char* const* rows, int64_t offset) {
  const auto header = [=](int row) { return rows[row < kRowCount ? row : 0] + offset; };
  return join_128(header(0), header(1), header(2), header(3));
}

// Of each lane's header: bytes 0-3 and 8-11 are the scales 0-3 and 4-7, the others the minima likewise.
//
// Of the header's four words the second has the scales 0-3 in the lower 6 bits of its bytes and the upper 2
// bits of the scales 4-7 above them, the third the same of the minima; the fourth has the lower 4 bits of
// scales (low) and minima (high) 4-7.
STRATAD_INLINE __m512i unpack_scales(__m512i headers) {
  const __m512i low_shifts = _mm512_set4_epi32(2, 2, 0, 0), high_shifts = _mm512_set4_epi32(4, 0, 0, 0);
  const __m512i low_bits = _mm512_set4_epi32(0x30303030, 0x30303030, 0x3f3f3f3f, 0x3f3f3f3f);
  const __m512i high_bits = _mm512_set4_epi32(0x0f0f0f0f, 0x0f0f0f0f, 0, 0);
  const __m512i low = _mm512_srlv_epi32(_mm512_shuffle_epi32(headers, _MM_PERM_CBCB), low_shifts);
  const __m512i high = _mm512_srlv_epi32(_mm512_shuffle_epi32(headers, _MM_PERM_DDDD), high_shifts);
  constexpr int kFirstAndSecondOrThird = 0xea;
  return _mm512_ternarylogic_epi32(high, high_bits, _mm512_and_si512(low, low_bits), kFirstAndSecondOrThird);
}

// Shuffles one row's scales (in every lane) to 16-bit elements as _mm512_packs_epi32 leaves the products:
// four of block 2 L, four of block 2 L + 1 in lane L.
STRATAD_INLINE __m512i spread_scales(__m512i scales) {
  constexpr int kZeroUpper = static_cast<int>(0x80008000u);
  const auto element = [](int byte) { return kZeroUpper | twice(byte); };
  return _mm512_shuffle_epi8(
      scales, _mm512_setr_epi32(element(0), element(0), element(1), element(1), element(2), element(2),
                                element(3), element(3), element(8), element(8), element(9), element(9),
                                element(10), element(10), element(11), element(11)));
}

// 128 bytes of 4 bits each: those of the first halves of all blocks (even ones in the lower 4 bits, odd ones
// in the upper), those of the last halves.
struct FourBits {
  __m512i first, last;
};

STRATAD_INLINE FourBits load_four_bits(const char* bytes) {
  const __m512i lower = load_512(bytes), upper = load_512(bytes + 64);
  return {_mm512_shuffle_i64x2(lower, upper, 0x88), _mm512_shuffle_i64x2(lower, upper, 0xdd)};
}

// In each 32-bit element the products of four unsigned weights of each vector with values.
STRATAD_INLINE __m512i sum_of_eight(__m512i first, __m512i last, const int8_t* values) {
  const __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), first, load_512(values));
  return _mm512_dpbusd_epi32(sum, last, load_512(values + 64));
}

// 256 weights of one row, in the order of KQuantActivations::values.
struct Q4KLayout {
  static constexpr ggml_type kWeightType = GGML_TYPE_Q4_K;
  static constexpr int kBytes = 144;
  static constexpr bool kHasFifthBits = false;

  STRATAD_INLINE void unpack(const char* step, __m512i* weights) {
    const __m512i low_bits = _mm512_set1_epi8(15);
    const FourBits bits = load_four_bits(step + 16);
    weights[0] = _mm512_and_si512(bits.first, low_bits);
    weights[1] = _mm512_and_si512(bits.last, low_bits);
    weights[2] = _mm512_and_si512(_mm512_srli_epi16(bits.first, 4), low_bits);
    weights[3] = _mm512_and_si512(_mm512_srli_epi16(bits.last, 4), low_bits);
  }
};

struct Q5KLayout {
  static constexpr ggml_type kWeightType = GGML_TYPE_Q5_K;
  static constexpr int kBytes = 176;
  static constexpr bool kHasFifthBits = true;

  // Bit b of the 32 bytes of fifth bits belongs to block b: it is rotated to bit 4.
  STRATAD_INLINE void unpack(const char* step, __m512i* weights) {
    const FourBits bits = load_four_bits(step + 48);
    const __m512i first = repeat_128(step + 16), last = repeat_128(step + 32);
    const __m512i even = lanes(4, 2, 0, -2), odd = lanes(3, 1, -1, -3);
    weights[0] = merge(bits.first, _mm512_rolv_epi32(first, even));
    weights[1] = merge(bits.last, _mm512_rolv_epi32(last, even));
    weights[2] = merge(_mm512_srli_epi16(bits.first, 4), _mm512_rolv_epi32(first, odd));
    weights[3] = merge(_mm512_srli_epi16(bits.last, 4), _mm512_rolv_epi32(last, odd));
  }

 private:
  STRATAD_INLINE __m512i lanes(int first, int second, int third, int fourth) {
    return _mm512_setr_epi32(first, first, first, first, second, second, second, second, third, third, third,
                             third, fourth, fourth, fourth, fourth);
  }
  // The lower 4 bits of one, bit 4 of the other, and nothing above.
  STRATAD_INLINE __m512i merge(__m512i four_bits, __m512i fifth_bit) {
    constexpr int kSelectSecondOrThird = 0xca;
    return _mm512_and_si512(_mm512_set1_epi8(31), _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), four_bits,
                                                                            fifth_bit, kSelectSecondOrThird));
  }
};

template <class Layout>
struct KQuantType : Layout {
  static constexpr ggml_type kWeightType = Layout::kWeightType;
  static constexpr int kRows = 4, kStepColumns = 256, kUnitColumns = 256, kStepBytes = Layout::kBytes;
  using Activations = KQuantActivations;

  static void arrange(const int8_t* values, float scale, Activations& record) {
    arrange_k_quant(values, scale, record);
  }

  template <int kRowCount, int kTokens>
  struct Sums {
    __m512 products[kTokens][kRowCount];
    __m512 minima[kTokens];  // lane r of 128 bits: row r

    [[gnu::always_inline]] Sums() {
      for (int token = 0; token < kTokens; ++token) {
        minima[token] = _mm512_setzero_ps();
        for (int row = 0; row < kRowCount; ++row) products[token][row] = _mm512_setzero_ps();
      }
    }

    [[gnu::always_inline]] void add(const char* const* rows, int64_t offset, const Activations* const* tokens,
                                    int64_t step) {
      const __m512i headers = load_headers<kRowCount>(rows, offset);
      const __m512i unpacked = unpack_scales(headers);
      // To 16 bits, for the product with the block sums.
      const __m512i minimum_scales = _mm512_shuffle_epi8(
          unpacked, _mm512_set4_epi32(static_cast<int>(0x800f800e), static_cast<int>(0x800d800c),
                                      static_cast<int>(0x80078006), static_cast<int>(0x80058004)));
      // Scale, minimum of row 0, scale, minimum of row 1, ...
      const __m512i first_words = _mm512_set4_epi32(12, 8, 4, 0);
      const __m256 row_scales =
          _mm256_cvtph_ps(_mm512_castsi512_si128(_mm512_permutexvar_epi32(first_words, headers)));
      // Single values are spread to whole vectors by loads from here: the load ports have room, the one port
      // that shuffles has none.
      alignas(64) uint8_t scales[64];
      alignas(64) float token_scales[kTokens][8];
      _mm512_store_si512(scales, unpacked);
      for (int token = 0; token < kTokens; ++token) {
        const Activations& activations = tokens[token][step];
        const __m256 both = _mm256_mul_ps(row_scales, _mm256_set1_ps(activations.scale));
        _mm256_store_ps(token_scales[token], both);
        const __m512i minimum = _mm512_madd_epi16(minimum_scales, repeat_128(activations.block_sums));
        const __m512i odd = _mm512_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3, 5, 5, 5, 5, 7, 7, 7, 7);
        minima[token] =
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(minimum),
                            _mm512_permutexvar_ps(odd, _mm512_castps256_ps512(both)), minima[token]);
      }
      // Or gcc would see through the stores and shuffle after all.
      __asm__("" : "+m"(scales), "+m"(token_scales));
      for (int row = 0; row < kRowCount; ++row) {
        __m512i weights[4];
        Layout::unpack(rows[row] + offset, weights);
        const __m512i block_scales = spread_scales(repeat_128(scales + 16 * row));
        for (int token = 0; token < kTokens; ++token) {
          const int8_t* values = tokens[token][step].values;
          // A sum of eight products is at most 31 * 127 * 8 = 31496 in magnitude and fits 16 bits: two
          // vectors become one, and one multiplication scales both.
          const __m512i even = sum_of_eight(weights[0], weights[1], values);
          const __m512i odd = sum_of_eight(weights[2], weights[3], values + 128);
          const __m512i sum = _mm512_madd_epi16(_mm512_packs_epi32(even, odd), block_scales);
          products[token][row] = _mm512_fmadd_ps(
              _mm512_cvtepi32_ps(sum), _mm512_set1_ps(token_scales[token][2 * row]), products[token][row]);
        }
      }
    }

    [[gnu::always_inline]] void finish(float* sums) const {
      for (int token = 0; token < kTokens; ++token) {
        __m512 minimum = minima[token];
        minimum = _mm512_add_ps(minimum, _mm512_permute_ps(minimum, 0xb1));
        minimum = _mm512_add_ps(minimum, _mm512_permute_ps(minimum, 0x4e));
        const __m128 by_row =
            _mm512_castps512_ps128(_mm512_permutexvar_ps(_mm512_set4_epi32(12, 8, 4, 0), minimum));
        store_rows<kRowCount>(_mm_sub_ps(row_sums<kRowCount>(products[token]), by_row),
                              sums + token * kRowCount);
      }
    }
  };
};

using Q4KFormat = SteppedFormat<KQuantType<Q4KLayout>>;
using Q5KFormat = SteppedFormat<KQuantType<Q5KLayout>>;

}  // namespace
}  // namespace stratad
