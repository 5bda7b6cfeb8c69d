// Types whose weights are 4-bit indices into a code book of sixteen values: Q4_0, IQ4_NL and MXFP4 (blocks of
// 32 with a scale in front of each), IQ4_XS (256 weights with eight 6-bit scales).
//
// Of a block's 16 bytes the lower halves are its first 16 weights, the upper halves the last 16.
#pragma once

#include "kernels/avx512/activations.hpp"

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

// Values of 256 columns in the order in which the weights come: of every four blocks the first halves, then
// the last halves; in 128-bit lane L those of block L. And for each sum of eight, -128 times it: where an
// accumulator starts, to take back the 128 by which code books are raised.
struct CodeBookValues {
  int8_t values[256];
  int32_t offsets[32];
};

STRATAD_INLINE void arrange_by_halves(const int8_t* values, CodeBookValues& record) {
  for (int block = 0; block < 8; ++block) {
    int8_t* first = record.values + block / 4 * 128 + block % 4 * 16;
    std::memcpy(first, values + 32 * block, 16);
    std::memcpy(first + 64, values + 32 * block + 16, 16);
    for (int lane = 0; lane < 4; ++lane)
      record.offsets[4 * block + lane] =
          -128 * (sum_of(first + 4 * lane, 4) + sum_of(first + 64 + 4 * lane, 4));
  }
}

// Weights of four blocks, plus 128: their first halves, their last halves.
struct CodedWeights {
  __m512i first, last;
};

STRATAD_INLINE CodedWeights look_up(__m512i indices, __m512i code_book) {
  const __m512i low_bits = _mm512_set1_epi8(15);
  return {_mm512_shuffle_epi8(code_book, _mm512_and_si512(indices, low_bits)),
          _mm512_shuffle_epi8(code_book, _mm512_and_si512(_mm512_srli_epi16(indices, 4), low_bits))};
}

// Products of four blocks with their columns, `quad` 0 or 1: in lane L sums of eight of block L.
STRATAD_INLINE __m512i multiply_quad(const CodedWeights& weights, const CodeBookValues& activations,
                                     int quad) {
  const int8_t* values = activations.values + 128 * quad;
  const __m512i first =
      _mm512_dpbusd_epi32(load_512(activations.offsets + 16 * quad), weights.first, load_512(values));
  return _mm512_dpbusd_epi32(first, weights.last, load_512(values + 64));
}

// Blocks of 32. `Layout` gives kWeightType, kScaleBytes, kCodeBook and load_scales.
template <class Layout>
struct CodeBookType {
  static constexpr ggml_type kWeightType = Layout::kWeightType;
  static constexpr int kRows = 4, kUnitColumns = 32, kBlockBytes = Layout::kScaleBytes + 16;
  static constexpr int kStepColumns = 8 * kUnitColumns, kStepBytes = 8 * kBlockBytes;

  struct alignas(64) Activations : CodeBookValues {
    float scales[8];
    int32_t block_offsets[8];  // each the sum of a block's offsets, for panels
  };

  static void arrange(const int8_t* values, const float* scales, Activations& record) {
    arrange_by_halves(values, record);
    std::memcpy(record.scales, scales, sizeof record.scales);
    for (int block = 0; block < 8; ++block)
      record.block_offsets[block] = -128 * sum_of(values + 32 * block, 32);
  }

  STRATAD_INLINE __m256 load_scales(const char* blocks) { return Layout::load_scales(blocks); }

  STRATAD_INLINE void unpack(const char* step, __m512i* weights) {
    for (int quad = 0; quad < 2; ++quad) {
      const CodedWeights coded =
          look_up(load_quad(step + 4 * quad * kBlockBytes), load_code_book(Layout::kCodeBook));
      weights[2 * quad] = coded.first;
      weights[2 * quad + 1] = coded.last;
    }
  }

  // The indices of four blocks, one block in each lane.
  STRATAD_INLINE __m512i load_quad(const char* blocks) {
    const char* indices = blocks + Layout::kScaleBytes;
    return join_128(indices, indices + kBlockBytes, indices + 2 * kBlockBytes, indices + 3 * kBlockBytes);
  }

  template <int kRowCount, int kTokens>
  struct Sums : RowSums<kRowCount, kTokens> {
    using RowSums<kRowCount, kTokens>::products;

    [[gnu::always_inline]] void add(const char* const* rows, int64_t offset, const Activations* const* tokens,
                                    int64_t step) {
      const __m512i code_book = load_code_book(Layout::kCodeBook);
      const __m512i lower_lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
      const __m512i upper_lanes = _mm512_add_epi32(lower_lanes, _mm512_set1_epi32(4));
      CodedWeights weights[kRowCount][2];
      __m256 row_scales[kRowCount];
      for (int row = 0; row < kRowCount; ++row) {
        const char* bytes = rows[row] + offset;
        row_scales[row] = Layout::load_scales(bytes);
        for (int quad = 0; quad < 2; ++quad)
          weights[row][quad] = look_up(load_quad(bytes + 4 * quad * kBlockBytes), code_book);
      }
      // All rows use a token's values while they are in registers: with four tokens it is their loads that
      // bound this on Zen 4.
      for (int token = 0; token < kTokens; ++token) {
        const Activations& activations = tokens[token][step];
        const __m256 token_scales = _mm256_load_ps(activations.scales);
        for (int row = 0; row < kRowCount; ++row) {
          const __m512 scales = _mm512_castps256_ps512(_mm256_mul_ps(row_scales[row], token_scales));
          __m512& product = products[token][row];
          for (int quad = 0; quad < 2; ++quad) {
            const __m512i sum = multiply_quad(weights[row][quad], activations, quad);
            const __m512i lanes = quad == 0 ? lower_lanes : upper_lanes;
            product = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_permutexvar_ps(lanes, scales), product);
          }
        }
      }
    }
  };
};

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

struct Q40Layout : HalfScales {
  static constexpr ggml_type kWeightType = GGML_TYPE_Q4_0;
  static constexpr const int8_t* kCodeBook = kOffsetBy8;
};

struct IQ4NLLayout : HalfScales {
  static constexpr ggml_type kWeightType = GGML_TYPE_IQ4_NL;
  static constexpr const int8_t* kCodeBook = kNonLinear;
};

struct MXFP4Layout {
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
    const __m256i shifted =
        _mm256_srlv_epi32(_mm512_castsi512_si256(words), _mm256_setr_epi32(0, 8, 16, 24, 0, 8, 16, 24));
    const __m256i exponents = _mm256_and_si256(shifted, _mm256_set1_epi32(0xff)), one = _mm256_set1_epi32(1);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(exponents, one), 23);
    const __m256i below_normal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), exponents);
    return _mm256_castsi256_ps(
        _mm256_mask_mov_epi32(normal, _mm256_cmple_epu32_mask(exponents, one), below_normal));
  }
};

struct IQ4XSType {
  static constexpr ggml_type kWeightType = GGML_TYPE_IQ4_XS;
  static constexpr int kRows = 4, kStepColumns = 256, kUnitColumns = 256, kStepBytes = 136;
  // A 16-bit float; the upper 2 bits of eight scales; their lower 4 bits, two a byte; the indices.
  static constexpr int kUpperScaleBits = 2, kLowerScaleBits = 4, kIndices = 8;

  struct alignas(64) Activations : CodeBookValues {
    float scale;
    int32_t block_offsets[8];  // each the sum of a block's offsets, for panels
  };

  static void arrange(const int8_t* values, float scale, Activations& record) {
    arrange_by_halves(values, record);
    record.scale = scale;
    for (int block = 0; block < 8; ++block)
      record.block_offsets[block] = -128 * sum_of(values + 32 * block, 32);
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

  template <int kRowCount, int kTokens>
  struct Sums : RowSums<kRowCount, kTokens> {
    using RowSums<kRowCount, kTokens>::products;

    [[gnu::always_inline]] void add(const char* const* rows, int64_t offset, const Activations* const* tokens,
                                    int64_t step) {
      const __m512i code_book = load_code_book(kNonLinear);
      const __m512i lower_lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
      const __m512i upper_lanes = _mm512_add_epi32(lower_lanes, _mm512_set1_epi32(4));
      for (int row = 0; row < kRowCount; ++row) {
        const char* bytes = rows[row] + offset;
        const __m512i scales = _mm512_castsi256_si512(load_block_scales(bytes));
        const __m512i lower_scales = _mm512_permutexvar_epi32(lower_lanes, scales);
        const __m512i upper_scales = _mm512_permutexvar_epi32(upper_lanes, scales);
        const CodedWeights lower = look_up(load_512(bytes + kIndices), code_book);
        const CodedWeights upper = look_up(load_512(bytes + kIndices + 64), code_book);
        const float scale = load_half(bytes);
        for (int token = 0; token < kTokens; ++token) {
          const Activations& activations = tokens[token][step];
          // Eight products are at most 8 * 127 * 127, times a scale of at most 32: far from 32 bits.
          const __m512i sum =
              _mm512_add_epi32(_mm512_mullo_epi32(multiply_quad(lower, activations, 0), lower_scales),
                               _mm512_mullo_epi32(multiply_quad(upper, activations, 1), upper_scales));
          products[token][row] = _mm512_fmadd_ps(
              _mm512_cvtepi32_ps(sum), _mm512_set1_ps(scale * activations.scale), products[token][row]);
        }
      }
    }
  };
};

using Q40Format = SteppedFormat<CodeBookType<Q40Layout>>;
using IQ4NLFormat = SteppedFormat<CodeBookType<IQ4NLLayout>>;
using MXFP4Format = SteppedFormat<CodeBookType<MXFP4Layout>>;
using IQ4XSFormat = SteppedFormat<IQ4XSType>;

}  // namespace
}  // namespace stratad
