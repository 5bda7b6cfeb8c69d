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
  // Four vectors, each with eight of the 32 values of every block: lane L of 128 bits has those of the blocks
  // 2 L and 2 L + 1. So one accumulator takes all four, and each of its elements is of one block.
  int8_t values[256];
  // -16 times the sums of the values that meet in an element of the accumulator: what it starts with where
  // weights have five bits. Taken back through the block sums.
  int32_t offsets[16];
  int16_t block_sums[16];  // 0-3 twice, 4-7 twice
  float scale;
};

// Where the four values 4 `part` to 4 `part` + 3 of a block are.
constexpr int k_quant_value_offset(int block, int part) {
  return part / 2 * 64 + block / 2 * 16 + block % 2 * 8 + part % 2 * 4;
}

// Where a block's sum is, for the first time.
constexpr int block_sum_index(int block) {
  return block / 4 * 8 + block % 4;
}

STRATAD_INLINE void arrange_k_quant(const int8_t* values, float scale, KQuantActivations& record) {
  record.scale = scale;
  std::memset(record.offsets, 0, sizeof record.offsets);
  for (int block = 0; block < 8; ++block) {
    const auto sum = static_cast<int16_t>(sum_of(values + 32 * block, 32));
    record.block_sums[block_sum_index(block)] = record.block_sums[block_sum_index(block) + 4] = sum;
    for (int part = 0; part < 8; ++part) {
      const int8_t* four = values + 32 * block + 4 * part;
      const int offset = k_quant_value_offset(block, part);
      std::memcpy(record.values + offset, four, 4);
      record.offsets[offset % 64 / 4] -= 16 * sum_of(four, 4);
    }
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

// 128 bytes of 4 bits each: those of the first halves of all blocks (even ones in the lower 4 bits, odd ones
// in the upper), those of the last halves.
struct FourBits {
  __m512i first, last;
};

STRATAD_INLINE FourBits load_four_bits(const char* bytes) {
  const __m512i lower = load_512(bytes), upper = load_512(bytes + 64);
  return {_mm512_shuffle_i64x2(lower, upper, 0x88), _mm512_shuffle_i64x2(lower, upper, 0xdd)};
}

// 256 weights of one row: the first halves of the blocks 0 2 4 6, their last halves, the same of the blocks
// 1 3 5 7.
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

// What the headers of two rows say. Lanes of 128 bits begin with two elements of the first row, then come two
// of the second, as in the sums.
struct KQuantHeaders {
  __m512i block_scales;    // 16 bits each: of lane L those of the blocks 2 L and 2 L + 1, twice
  __m256i scales, minima;  // 16 bits each: 0-3 of both rows, 4-7 of both rows
  __m256 factors;          // scales of the scales, of the minima

  [[gnu::always_inline]] KQuantHeaders() = default;

  [[gnu::always_inline]] KQuantHeaders(const char* first_row, const char* second_row) {
    const __m128i first = load_128(first_row), second = load_128(second_row);
    const __m256 both = _mm256_castps128_ps256(_mm_cvtph_ps(_mm_unpacklo_epi32(first, second)));
    factors = _mm256_permutevar8x32_ps(both, _mm256_setr_epi32(0, 0, 2, 2, 1, 1, 3, 3));
    // By fours: scales 0-3 and 4-7 of the first row, of the second, the minima likewise.
    const __m256i bytes = _mm256_permutevar8x32_epi32(unpack_scales(_mm256_set_m128i(second, first)),
                                                      _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
    scales = _mm256_cvtepu8_epi16(_mm_shuffle_epi32(_mm256_castsi256_si128(bytes), kRowByRow));
    minima = _mm256_cvtepu8_epi16(_mm_shuffle_epi32(_mm256_extracti128_si256(bytes, 1), kRowByRow));
    // Spread by a load from here, see SpreadByLoads.
    alignas(32) uint8_t memory[32];
    _mm256_store_si256(reinterpret_cast<__m256i*>(memory), bytes);
    __asm__("" : "+m"(memory));
    constexpr int kZeroUpper = static_cast<int>(0x80008000u);
    const auto two = [](int byte) { return kZeroUpper | twice(byte); };
    block_scales = _mm512_shuffle_epi8(
        repeat_128(memory),
        _mm512_setr_epi32(two(0), two(1), two(8), two(9), two(2), two(3), two(10), two(11), two(4), two(5),
                          two(12), two(13), two(6), two(7), two(14), two(15)));
  }

 private:
  static constexpr int kRowByRow = 0xd8;
};

template <class Layout>
struct KQuantType : Layout {
  static constexpr ggml_type kWeightType = Layout::kWeightType;
  static constexpr int kRows = 2, kStepColumns = 256, kUnitColumns = 256, kStepBytes = Layout::kBytes;
  using Activations = KQuantActivations;

  static void arrange(const int8_t* values, float scale, Activations& record) {
    arrange_k_quant(values, scale, record);
  }

  // One or two rows; a single one is taken for both.
  template <int kRowCount>
  struct Step {
    KQuantHeaders headers;
    __m512i weights[2][4];

    [[gnu::always_inline]] void unpack(const char* const* rows, int64_t offset) {
      headers = KQuantHeaders(rows[0] + offset, rows[kRowCount - 1] + offset);
      for (int row = 0; row < kRowCount; ++row) {
        __m512i halves[4];
        Layout::unpack(rows[row] + offset, halves);
        for (int half = 0; half < 2; ++half) {
          weights[row][2 * half] = _mm512_unpacklo_epi64(halves[half], halves[half + 2]);
          weights[row][2 * half + 1] = _mm512_unpackhi_epi64(halves[half], halves[half + 2]);
        }
      }
    }
  };

  template <int kRowCount, int kTokens>
  struct Sums {
    static constexpr int kTokenCount = kTokens;
    __m512 products[kTokens];  // of each lane two elements are the first row's, two the second's
    __m256 minima[kTokens];    // likewise

    [[gnu::always_inline]] Sums() {
      for (int token = 0; token < kTokens; ++token) {
        products[token] = _mm512_setzero_ps();
        minima[token] = _mm256_setzero_ps();
      }
    }

    [[gnu::always_inline]] void add(const Step<kRowCount>& step, const Activations& activations, int token) {
      const KQuantHeaders& headers = step.headers;
      const SpreadByLoads factors(_mm256_mul_ps(headers.factors, _mm256_set1_ps(activations.scale)));
      const __m256i block_sums = _mm256_load_si256(reinterpret_cast<const __m256i*>(activations.block_sums));
      minima[token] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(headers.minima, block_sums)),
                                      _mm512_castps512_ps256(factors.four(4)), minima[token]);
      const __m512i first = multiply_row(step.weights[0], activations);
      const __m512i second = kRowCount == 1 ? first : multiply_row(step.weights[1], activations);
      // A sum of sixteen products is at most 16 * 127 * 16 = 32512 in magnitude and fits 16 bits: two rows
      // become one vector.
      __m512i sum = _mm512_madd_epi16(_mm512_packs_epi32(first, second), headers.block_scales);
      if constexpr (Layout::kHasFifthBits)
        sum = _mm512_dpwssd_epi32(sum, _mm512_zextsi256_si512(_mm256_slli_epi16(headers.scales, 4)),
                                  _mm512_zextsi256_si512(block_sums));
      products[token] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), factors.four(0), products[token]);
    }

    [[gnu::always_inline]] void finish(float* sums) const {
      const __m512 all = sums_by_row();
      if constexpr (kRowCount == 2) return store_first<2 * kTokens>(all, sums);
      const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
      store_first<kTokens>(_mm512_permutexvar_ps(even, all), sums);
    }

   private:
    [[gnu::always_inline]] static __m512i multiply_row(const __m512i* weights,
                                                       const Activations& activations) {
      __m512i sum = Layout::kHasFifthBits ? load_512(activations.offsets) : _mm512_setzero_si512();
      for (int part = 0; part < 4; ++part)
        sum = _mm512_dpbusd_epi32(sum, weights[part], load_512(activations.values + 64 * part));
      return sum;
    }

    // Both rows of a token, then those of the next one.
    [[gnu::always_inline]] __m512 sums_by_row() const {
      const auto whole = [this](int token) {
        token = token < kTokens ? token : kTokens - 1;
        return _mm512_sub_ps(products[token], _mm512_zextps256_ps512(minima[token]));
      };
      const auto two_tokens = [whole](int token) {
        const __m512 first = whole(token), second = whole(token + 1);
        return _mm512_add_ps(_mm512_shuffle_ps(first, second, 0x88), _mm512_shuffle_ps(first, second, 0xdd));
      };
      return sums_across_lanes(two_tokens(0), kTokens > 2 ? two_tokens(2) : two_tokens(0));
    }
  };
};

using Q4KFormat = SteppedFormat<KQuantType<Q4KLayout>>;
using Q5KFormat = SteppedFormat<KQuantType<Q5KLayout>>;

}  // namespace
}  // namespace stratad
