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

STRATAD_INLINE __m256i both_lanes(uint32_t first, uint32_t second, uint32_t third, uint32_t fourth) {
  const int words[4] = {static_cast<int>(first), static_cast<int>(second), static_cast<int>(third),
                        static_cast<int>(fourth)};
  return _mm256_setr_epi32(words[0], words[1], words[2], words[3], words[0], words[1], words[2], words[3]);
}

// Of each lane's header: bytes 0-3 and 8-11 are the scales 0-3 and 4-7, the others the minima likewise.
//
// Of the header's four words the second has the scales 0-3 in the lower 6 bits of its bytes and the upper 2
// bits of the scales 4-7 above them, the third the same of the minima; the fourth has the lower 4 bits of
// scales (low) and minima (high) 4-7.
STRATAD_INLINE __m256i unpack_scales(__m256i headers) {
  const __m256i low_shifts = both_lanes(0, 0, 2, 2), high_shifts = both_lanes(0, 0, 0, 4);
  const __m256i low_bits = both_lanes(0x3f3f3f3f, 0x3f3f3f3f, 0x30303030, 0x30303030);
  const __m256i high_bits = both_lanes(0, 0, 0x0f0f0f0f, 0x0f0f0f0f);
  const __m256i low = _mm256_srlv_epi32(_mm256_shuffle_epi32(headers, 0x99), low_shifts);
  const __m256i high = _mm256_srlv_epi32(_mm256_shuffle_epi32(headers, 0xff), high_shifts);
  constexpr int kFirstAndSecondOrThird = 0xea;
  return _mm256_ternarylogic_epi32(high, high_bits, _mm256_and_si256(low, low_bits), kFirstAndSecondOrThird);
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
  static constexpr int kRows = 2, kStepColumns = 256, kUnitColumns = 256, kStepBytes = Layout::kBytes;
  using Activations = KQuantActivations;

  static void arrange(const int8_t* values, float scale, Activations& record) {
    arrange_k_quant(values, scale, record);
  }

  template <int kRowCount>
  struct Step {
    static constexpr int kPairs = (kRowCount + 1) / 2;  // of rows, whose headers are unpacked together

    __m512i weights[kRowCount][4], block_scales[kRowCount];
    __m256i minimum_scales[kPairs];  // lane r of 128 bits: row r's, 16 bits each
    __m128 scales[kPairs];           // scale, minimum of row 0, scale, minimum of row 1

    [[gnu::always_inline]] void unpack(const char* const* rows, int64_t offset) {
      for (int pair = 0; pair < kPairs; ++pair) unpack_headers(rows, offset, pair);
      for (int row = 0; row < kRowCount; ++row) Layout::unpack(rows[row] + offset, weights[row]);
    }

   private:
    [[gnu::always_inline]] void unpack_headers(const char* const* rows, int64_t offset, int pair) {
      const __m128i first = load_128(rows[2 * pair] + offset);
      const __m128i second = load_128(rows[kRowCount == 1 ? 0 : 2 * pair + 1] + offset);
      scales[pair] = _mm_cvtph_ps(_mm_unpacklo_epi32(first, second));
      const __m256i unpacked = unpack_scales(_mm256_set_m128i(second, first));
      // To 16 bits, for the product with the block sums.
      minimum_scales[pair] =
          _mm256_shuffle_epi8(unpacked, both_lanes(0x80058004u, 0x80078006u, 0x800d800cu, 0x800f800eu));
      // Lanes are spread to whole vectors by loads from here, see SpreadByLoads.
      alignas(32) uint8_t memory[32];
      _mm256_store_si256(reinterpret_cast<__m256i*>(memory), unpacked);
      __asm__("" : "+m"(memory));
      for (int row = 2 * pair; row < 2 * pair + 2 && row < kRowCount; ++row)
        block_scales[row] = spread_scales(repeat_128(memory + row % 2 * 16));
    }
  };

  template <int kRowCount, int kTokens>
  struct Sums : RowSums<kRowCount, kTokens> {
    using RowSums<kRowCount, kTokens>::products;
    static constexpr int kPairs = Step<kRowCount>::kPairs;
    __m256 minima[kTokens][kPairs];  // lane r of 128 bits: row r of the pair

    [[gnu::always_inline]] Sums() {
      for (auto& token : minima)
        for (__m256& pair : token) pair = _mm256_setzero_ps();
    }

    [[gnu::always_inline]] void add(const Step<kRowCount>& step, const Activations& activations, int token) {
      const __m256i block_sums = _mm256_broadcastsi128_si256(load_128(activations.block_sums));
      for (int pair = 0; pair < kPairs; ++pair) {
        const __m128 scales = _mm_mul_ps(step.scales[pair], _mm_set1_ps(activations.scale));
        const SpreadByLoads spread(scales);
        const __m256i minimum = _mm256_madd_epi16(step.minimum_scales[pair], block_sums);
        const __m256 minimum_scales = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(scales),
                                                               _mm256_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3));
        minima[token][pair] =
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(minimum), minimum_scales, minima[token][pair]);
        for (int row = 2 * pair; row < 2 * pair + 2 && row < kRowCount; ++row)
          add_row(step, activations, spread[row % 2 * 2], row, products[token][row]);
      }
    }

    [[gnu::always_inline]] void finish(float* sums) const {
      constexpr int kCount = kTokens * kRowCount;
      store_first<kCount>(_mm512_sub_ps(sums_of_lanes<kCount>(products[0]), sums_of_minima()), sums);
    }

   private:
    [[gnu::always_inline]] void add_row(const Step<kRowCount>& step, const Activations& activations,
                                        __m512 scale, int row, __m512& product) {
      const __m512i* weights = step.weights[row];
      // A sum of eight products is at most 31 * 127 * 8 = 31496 in magnitude and fits 16 bits: two vectors
      // become one, and one multiplication scales both.
      const __m512i even = sum_of_eight(weights[0], weights[1], activations.values);
      const __m512i odd = sum_of_eight(weights[2], weights[3], activations.values + 128);
      const __m512i sum = _mm512_madd_epi16(_mm512_packs_epi32(even, odd), step.block_scales[row]);
      product = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, product);
    }

    // In the order of the sums.
    [[gnu::always_inline]] __m512 sums_of_minima() const {
      __m512 by_row;  // lane r of 128 bits: row r, token by token
      if constexpr (kTokens == 1) {
        by_row = _mm512_add_ps(minima_of(0), _mm512_permute_ps(minima_of(0), 0x4e));
        by_row = _mm512_add_ps(by_row, _mm512_permute_ps(by_row, 0xb1));
      } else {
        by_row = sums_within_lanes(minima_of(0), minima_of(1), minima_of(2), minima_of(3));
      }
      const auto from = [](int index) { return index % kRowCount * 4 + index / kRowCount % 4; };
      return _mm512_permutexvar_ps(
          _mm512_setr_epi32(from(0), from(1), from(2), from(3), from(4), from(5), from(6), from(7), from(8),
                            from(9), from(10), from(11), from(12), from(13), from(14), from(15)),
          by_row);
    }

    // Lane r of 128 bits: row r.
    [[gnu::always_inline]] __m512 minima_of(int token) const {
      const __m256* pairs = minima[token < kTokens ? token : 0];
      const __m512 first = _mm512_castps256_ps512(pairs[0]);
      return kPairs == 1 ? first : _mm512_insertf32x8(first, pairs[kPairs - 1], 1);
    }
  };
};

using Q4KFormat = SteppedFormat<KQuantType<Q4KLayout>>;
using Q5KFormat = SteppedFormat<KQuantType<Q5KLayout>>;

}  // namespace
}  // namespace stratad
