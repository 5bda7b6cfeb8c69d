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
  int8_t values[256];     // blocks 0 2 1 3 4 6 5 7: the order in which loads of 64 bytes give the weights
  int16_t block_sums[8];  // in their natural order, for the minima
  float scale;
};

STRATAD_INLINE void arrange_k_quant(const int8_t* values, float scale, KQuantActivations& record) {
  constexpr int kBlockOrder[8] = {0, 2, 1, 3, 4, 6, 5, 7};
  record.scale = scale;
  for (int block = 0; block < 8; ++block) {
    std::memcpy(record.values + 32 * block, values + 32 * kBlockOrder[block], 32);
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
// four of one block, four of the next. `byte` is where the four scales begin.
STRATAD_INLINE __m512i spread_scales(__m512i scales, int byte) {
  constexpr int kZeroUpper = static_cast<int>(0x80008000u);
  const auto element = [=](int block) { return kZeroUpper | twice(byte + block); };
  return _mm512_shuffle_epi8(
      scales, _mm512_setr_epi32(element(0), element(0), element(1), element(1), element(0), element(0),
                                element(1), element(1), element(2), element(2), element(3), element(3),
                                element(2), element(2), element(3), element(3)));
}

// 256 weights of one row, in the order of KQuantActivations::values.
struct Q4KLayout {
  static constexpr ggml_type kWeightType = GGML_TYPE_Q4_K;
  static constexpr int kBytes = 144;

  STRATAD_INLINE void unpack(const char* step, __m512i* weights) {
    const __m512i low_bits = _mm512_set1_epi8(15);
    for (int half = 0; half < 2; ++half) {
      const __m512i packed = load_once(step + 16 + 64 * half);
      weights[2 * half] = _mm512_and_si512(packed, low_bits);
      weights[2 * half + 1] = _mm512_and_si512(_mm512_srli_epi16(packed, 4), low_bits);
    }
  }
};

struct Q5KLayout {
  static constexpr ggml_type kWeightType = GGML_TYPE_Q5_K;
  static constexpr int kBytes = 176;

  // Bit b of the 32 bytes of fifth bits belongs to block b.
  STRATAD_INLINE void unpack(const char* step, __m512i* weights) {
    const __m512i fifth_bits = _mm512_broadcast_i64x4(load_256(step + 16));
    weights[0] = merge(load_512(step + 48), _mm512_sllv_epi16(fifth_bits, halves(4, 2)));
    weights[1] =
        merge(_mm512_srli_epi16(load_512(step + 48), 4), _mm512_sllv_epi16(fifth_bits, halves(3, 1)));
    weights[2] = merge(load_512(step + 112), _mm512_srlv_epi16(fifth_bits, halves(0, 2)));
    weights[3] =
        merge(_mm512_srli_epi16(load_512(step + 112), 4), _mm512_srlv_epi16(fifth_bits, halves(1, 3)));
  }

 private:
  STRATAD_INLINE __m512i halves(short lower, short upper) {
    return _mm512_inserti64x4(_mm512_set1_epi16(lower), _mm256_set1_epi16(upper), 1);
  }
  // The lower 4 bits of one, bit 4 of the other, and nothing above.
  STRATAD_INLINE __m512i merge(__m512i four_bits, __m512i fifth_bit) {
    constexpr int kSelectSecondOrThird = 0xca;
    return _mm512_and_si512(_mm512_set1_epi8(31), _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), four_bits,
                                                                            fifth_bit, kSelectSecondOrThird));
  }
};

template <class Layout>
struct KQuantType {
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
      constexpr int kSharing = kSharingRows<kRowCount>;
#pragma GCC unroll 4
      for (int first_row = 0; first_row < kRowCount; first_row += kSharing) {
        __m512i weights[kSharing][4], lower_scales[kSharing], upper_scales[kSharing];
        for (int row = 0; row < kSharing; ++row) {
          Layout::unpack(rows[first_row + row] + offset, weights[row]);
          const __m512i block_scales = repeat_128(scales + 16 * (first_row + row));
          lower_scales[row] = spread_scales(block_scales, 0);
          upper_scales[row] = spread_scales(block_scales, 8);
        }
        for (int token = 0; token < kTokens; ++token) {
          const int8_t* values = tokens[token][step].values;
          for (int row = 0; row < kSharing; ++row) {
            // A sum of four products is at most 31 * 127 * 4 = 15748 in magnitude and fits 16 bits: two
            // vectors become one, and one multiplication scales both.
            const __m512i lower = pack_products(weights[row][0], weights[row][1], values);
            const __m512i upper = pack_products(weights[row][2], weights[row][3], values + 128);
            const __m512i sum =
                _mm512_dpwssd_epi32(_mm512_madd_epi16(lower, lower_scales[row]), upper, upper_scales[row]);
            __m512& product = products[token][first_row + row];
            product = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum),
                                      _mm512_set1_ps(token_scales[token][2 * (first_row + row)]), product);
          }
        }
      }
    }

    [[gnu::always_inline]] void finish(float* sums) const {
      for (int token = 0; token < kTokens; ++token) {
        sum_rows<kRowCount>(products[token], sums + token * kRowCount);
        __m512 minimum = minima[token];
        minimum = _mm512_add_ps(minimum, _mm512_permute_ps(minimum, 0xb1));
        minimum = _mm512_add_ps(minimum, _mm512_permute_ps(minimum, 0x4e));
        float by_lane[16];
        _mm512_storeu_ps(by_lane, minimum);
        for (int row = 0; row < kRowCount; ++row) sums[token * kRowCount + row] -= by_lane[4 * row];
      }
    }
  };
};

using Q4KFormat = SteppedFormat<KQuantType<Q4KLayout>>;
using Q5KFormat = SteppedFormat<KQuantType<Q5KLayout>>;

}  // namespace
}  // namespace stratad
