// Types whose weights are 4-bit indices into a code book of sixteen values: Q4_0, IQ4_NL and MXFP4 (blocks of
// 32 with a scale in front of each), IQ4_XS (256 weights with eight 6-bit scales).
//
// Of a block's 16 bytes the lower halves are its first 16 weights, the upper halves the last 16.
#pragma once

#include "kernels/avx512/scaled_blocks.hpp"

namespace stratad {
namespace {

// A code book in every lane, its values raised by 128 to make them unsigned.
STRATAD_INLINE __m512i load_code_book(const int8_t* values) {
  return _mm512_xor_si512(repeat_128(values), _mm512_set1_epi8(static_cast<char>(0x80)));
}

alignas(16) constexpr int8_t kOffsetBy8[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
alignas(16) constexpr int8_t kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
// Twice the values of the 4-bit floats.
alignas(16) constexpr int8_t kTwiceE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Weights of four blocks, plus 128: their first halves, their last halves.
struct CodedWeights {
  __m512i first, last;
};

STRATAD_INLINE CodedWeights look_up(__m512i indices, __m512i code_book) {
  const __m512i low_bits = _mm512_set1_epi8(15);
  return {_mm512_shuffle_epi8(code_book, _mm512_and_si512(indices, low_bits)),
          _mm512_shuffle_epi8(code_book, _mm512_and_si512(_mm512_srli_epi16(indices, 4), low_bits))};
}

// Eight blocks of 16 bytes with indices, in lanes of 128 bits, to weights in the order of BlockValues.
STRATAD_INLINE void look_up_blocks(__m512i lower_blocks, __m512i upper_blocks, __m512i code_book,
                                   __m512i* weights) {
  __m512i indices[2];
  join_blocks(lower_blocks, upper_blocks, indices);
  for (int part = 0; part < 2; ++part) {
    const CodedWeights coded = look_up(indices[part], code_book);
    weights[part] = coded.first;
    weights[2 + part] = coded.last;
  }
}

// Blocks of 32. `Book` gives kWeightType, kScaleBytes, kCodeBook and load_scales.
template <class Book>
struct CodeBookLayout : Book {
  static constexpr int kRows = 4, kBlockBytes = Book::kScaleBytes + 16, kRaised = 128;

  STRATAD_INLINE void unpack(const char* step, __m512i* weights) {
    look_up_blocks(load_quad(step), load_quad(step + 4 * kBlockBytes), load_code_book(Book::kCodeBook),
                   weights);
  }

  // The indices of four blocks, one block in each lane.
  STRATAD_INLINE __m512i load_quad(const char* blocks) {
    const char* indices = blocks + Book::kScaleBytes;
    return join_128(indices, indices + kBlockBytes, indices + 2 * kBlockBytes, indices + 3 * kBlockBytes);
  }
};

template <class Book>
using CodeBookType = ScaledBlockType<CodeBookLayout<Book>>;

// Scales of eight blocks are taken out of two loads of 64 bytes, which begin at the first and the fifth
// block.
struct HalfScales {
  static constexpr int kScaleBytes = 2;

  STRATAD_INLINE __m256 load_scales(const char* blocks) {
    constexpr int kBlockBytes = kScaleBytes + 16;
    const __m512i elements =
        _mm512_castsi128_si512(_mm_setr_epi16(0, 9, 18, 27, 32 + 0, 32 + 9, 32 + 18, 32 + 27));
    const __m512i halves =
        _mm512_permutex2var_epi16(load_512(blocks), elements, load_512(blocks + 4 * kBlockBytes));
    return _mm256_cvtph_ps(_mm512_castsi512_si128(halves));
  }
};

struct Q40Book : HalfScales {
  static constexpr ggml_type kWeightType = GGML_TYPE_Q4_0;
  static constexpr const int8_t* kCodeBook = kOffsetBy8;
};

struct IQ4NLBook : HalfScales {
  static constexpr ggml_type kWeightType = GGML_TYPE_IQ4_NL;
  static constexpr const int8_t* kCodeBook = kNonLinear;
};

struct MXFP4Book {
  static constexpr ggml_type kWeightType = GGML_TYPE_MXFP4;
  static constexpr const int8_t* kCodeBook = kTwiceE2M1;
  static constexpr int kScaleBytes = 1;

  // Scales are powers of two: a byte e is 2^(e - 127), here halved since the code book is doubled. So e - 1
  // is the exponent's bits of a float; for 0 and 1 the result is below the smallest normal number.
  STRATAD_INLINE __m256 load_scales(const char* blocks) {
    constexpr int kBlockBytes = kScaleBytes + 16;
    const __m512i elements =
        _mm512_castsi256_si512(_mm256_setr_epi32(0, 4, 8, 12, 16 + 0, 16 + 4, 16 + 8, 16 + 12));
    const __m512i words =
        _mm512_permutex2var_epi32(load_512(blocks), elements, load_512(blocks + 4 * kBlockBytes));
    // e << 21, wherever in its word the byte is. (e + 1) << 21 is the denormal number for 0 and 1 and below
    // (e - 1) << 23 for all others.
    const __m256i exponents = _mm256_and_si256(
        _mm256_rolv_epi32(_mm512_castsi512_si256(words), _mm256_setr_epi32(21, 13, 5, 29, 21, 13, 5, 29)),
        _mm256_set1_epi32(0xff << 21));
    const __m256i below_normal = _mm256_add_epi32(exponents, _mm256_set1_epi32(1 << 21));
    const __m256i normal = _mm256_sub_epi32(_mm256_slli_epi32(exponents, 2), _mm256_set1_epi32(1 << 23));
    return _mm256_castsi256_ps(_mm256_max_epi32(normal, below_normal));
  }
};

struct IQ4XSType {
  static constexpr ggml_type kWeightType = GGML_TYPE_IQ4_XS;
  static constexpr int kRows = 4, kStepColumns = 256, kUnitColumns = 256, kStepBytes = 136;
  // A 16-bit float; the upper 2 bits of eight scales; their lower 4 bits, two a byte; the indices.
  static constexpr int kUpperScaleBits = 2, kLowerScaleBits = 4, kIndices = 8;

  struct alignas(64) Activations : BlockValues {
    float scale;
  };

  static void arrange(const int8_t* values, float scale, Activations& record) {
    arrange_blocks(values, 128, record);
    record.scale = scale;
  }

  // Scales of the eight blocks, -32 to 31.
  STRATAD_INLINE __m256i load_block_scales(const char* step) {
    int lower_bits;
    std::memcpy(&lower_bits, step + kLowerScaleBits, sizeof lower_bits);
    const __m256i lower =
        _mm256_srlv_epi32(_mm256_set1_epi32(lower_bits), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    const __m256i upper =
        _mm256_sllv_epi32(_mm256_srlv_epi32(_mm256_set1_epi32(load_16_bits(step + kUpperScaleBits)),
                                            _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)),
                          _mm256_set1_epi32(4));
    const __m256i scales = _mm256_or_si256(_mm256_and_si256(lower, _mm256_set1_epi32(15)),
                                           _mm256_and_si256(upper, _mm256_set1_epi32(0x30)));
    return _mm256_sub_epi32(scales, _mm256_set1_epi32(32));
  }

  template <int kRowCount>
  struct Step {
    __m512i weights[kRowCount][4], block_scales[kRowCount];
    __m128 scales;

    [[gnu::always_inline]] void unpack(const char* const* rows, int64_t offset) {
      scales = load_halves_of_rows<kRowCount>(rows, offset);
      for (int row = 0; row < kRowCount; ++row) {
        const char* bytes = rows[row] + offset;
        look_up_blocks(load_512(bytes + kIndices), load_512(bytes + kIndices + 64),
                       load_code_book(kNonLinear), weights[row]);
        block_scales[row] =
            _mm512_permutexvar_epi32(block_elements(), _mm512_castsi256_si512(load_block_scales(bytes)));
      }
    }
  };

  template <int kRowCount, int kTokens>
  struct Sums : RowSums<kRowCount, kTokens> {
    using RowSums<kRowCount, kTokens>::products;

    [[gnu::always_inline]] void add(const Step<kRowCount>& step, const Activations& activations, int token) {
      const SpreadByLoads scales(_mm_mul_ps(step.scales, _mm_set1_ps(activations.scale)));
      for (int row = 0; row < kRowCount; ++row) {
        // Sixteen products are at most 16 * 127 * 127, times a scale of at most 32: far from 32 bits.
        const __m512i sum =
            _mm512_mullo_epi32(multiply_blocks(step.weights[row], activations), step.block_scales[row]);
        products[token][row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scales[row], products[token][row]);
      }
    }
  };
};

using Q40Format = SteppedFormat<CodeBookType<Q40Book>>;
using IQ4NLFormat = SteppedFormat<CodeBookType<IQ4NLBook>>;
using MXFP4Format = SteppedFormat<CodeBookType<MXFP4Book>>;
using IQ4XSFormat = SteppedFormat<IQ4XSType>;

}  // namespace
}  // namespace stratad
