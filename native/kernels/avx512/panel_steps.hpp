// One step of 16 rows, rearranged for many tokens: row r is 32-bit lane r of every vector.
//
// Bytes are fetched 16 of each row at a time and transposed on the way. What is packed is unpacked
// afterwards: so 4-bit weights take half of the shuffles.
#pragma once

#include "kernels/avx512/code_books.hpp"
#include "kernels/avx512/k_quants.hpp"
#include "kernels/avx512/q6_k.hpp"
#include "kernels/avx512/q8_0.hpp"

namespace stratad {
namespace {

constexpr int kPanelRows = 16;

// What a panel of a type adds to it (Activations, sizes of a step):
//   kBlockColumns                       weights of a row that share a scale
//   struct Step : PanelStep             and what else `finish` wants to know of the rows
//   void rearrange(rows, step)
//   int value_offset(block, part)       where in Activations::values the four values begin that meet a
//                                       block's weights 4 `part` to 4 `part` + 3
//   __m512i start(activations, block)   what a block's sum starts with, to take back what was added to
//   weights
//                                       to make them unsigned
//   __m512 factor(scales, activations, block)         of a block's sum
//   __m512 finish(total, step, activations, sum)      `sum` and the step's total
template <int kBlockCount>
struct PanelStep {
  __m512i weights[64];  // in the order of columns, four of a row in each lane
  __m512 scales[kBlockCount];
};

// A step of 16 rows where it lies: row r begins at `first` + r * `stride`.
struct PanelRows {
  const char* first;
  int64_t stride;
};

// Of the 16 bytes behind `offset` in each row the bytes 4 w to 4 w + 3 become words[w].
STRATAD_INLINE void gather_16_bytes(PanelRows rows, int64_t offset, __m512i* words) {
  __m512i quarters[4];  // lane L of quarters[q]: row 4 L + q
  for (int quarter = 0; quarter < 4; ++quarter) {
    const char* row = rows.first + offset + quarter * rows.stride;
    quarters[quarter] = join_128(row, row + 4 * rows.stride, row + 8 * rows.stride, row + 12 * rows.stride);
  }
  const __m512i first_low = _mm512_unpacklo_epi32(quarters[0], quarters[1]);
  const __m512i first_high = _mm512_unpackhi_epi32(quarters[0], quarters[1]);
  const __m512i last_low = _mm512_unpacklo_epi32(quarters[2], quarters[3]);
  const __m512i last_high = _mm512_unpackhi_epi32(quarters[2], quarters[3]);
  words[0] = _mm512_unpacklo_epi64(first_low, last_low);
  words[1] = _mm512_unpackhi_epi64(first_low, last_low);
  words[2] = _mm512_unpacklo_epi64(first_high, last_high);
  words[3] = _mm512_unpackhi_epi64(first_high, last_high);
}

// 16-bit floats of the rows, `offset` bytes behind their beginnings.
STRATAD_INLINE __m512 gather_halves(PanelRows rows, int64_t offset) {
  alignas(32) uint16_t halves[kPanelRows];
  for (int row = 0; row < kPanelRows; ++row)
    halves[row] = load_16_bits(rows.first + offset + row * rows.stride);
  return _mm512_cvtph_ps(load_256(halves));
}

// The lower half of each lane, as a float.
STRATAD_INLINE __m512 lower_halves(__m512i words) {
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
}

STRATAD_INLINE __m512i lower_four_bits(__m512i bytes) {
  return _mm512_and_si512(bytes, _mm512_set1_epi8(15));
}

STRATAD_INLINE __m512i upper_four_bits(__m512i bytes) {
  return lower_four_bits(_mm512_srli_epi16(bytes, 4));
}

// The lower 4 bits of one, and of the other what is above them, `mask` in all.
STRATAD_INLINE __m512i merge_bits(__m512i four_bits, __m512i upper, int mask) {
  constexpr int kSelectSecondOrThird = 0xca;
  return _mm512_and_si512(
      _mm512_set1_epi8(static_cast<char>(mask)),
      _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), four_bits, upper, kSelectSecondOrThird));
}

STRATAD_INLINE __m512i broadcast_32(const void* address) {
  int value;
  std::memcpy(&value, address, sizeof value);
  return _mm512_set1_epi32(value);
}

// ---------------------------------------------------------------- activations with a scale for each block

template <class Type>
struct ScaledBlockPanel : Type {
  static constexpr int kBlockColumns = 32;
  using Step = PanelStep<8>;
  using Activations = typename Type::Activations;

  static constexpr int value_offset(int block, int part) { return block_value_offset(block, part); }
  STRATAD_INLINE __m512i start(const Activations& activations, int block) {
    return _mm512_set1_epi32(activations.block_offsets[block]);
  }
  STRATAD_INLINE __m512 factor(__m512 row_scales, const Activations& activations, int block) {
    return _mm512_mul_ps(row_scales, _mm512_set1_ps(activations.scales[block]));
  }
  STRATAD_INLINE __m512 finish(__m512 total, const Step&, const Activations&, __m512 sum) {
    return _mm512_add_ps(sum, total);
  }
};

struct Q80Panel : ScaledBlockPanel<Q80Type> {
  STRATAD_INLINE void rearrange(PanelRows rows, Step& step) {
    const __m512i sign_bits = _mm512_set1_epi8(static_cast<char>(0x80));
    for (int block = 0; block < 8; ++block) {
      step.scales[block] = gather_halves(rows, block * kBlockBytes);
      for (int half = 0; half < 2; ++half) {
        __m512i words[4];
        gather_16_bytes(rows, block * kBlockBytes + 2 + 16 * half, words);
        for (int word = 0; word < 4; ++word)
          step.weights[8 * block + 4 * half + word] = _mm512_xor_si512(words[word], sign_bits);
      }
    }
  }
};

// Eight blocks of 16 bytes with indices into a code book, `block_bytes` apart.
STRATAD_INLINE void rearrange_indices(PanelRows rows, int64_t offset, int64_t block_bytes, __m512i code_book,
                                      __m512i* weights) {
  for (int block = 0; block < 8; ++block) {
    __m512i words[4];
    gather_16_bytes(rows, offset + block * block_bytes, words);
    for (int word = 0; word < 4; ++word) {
      const CodedWeights coded = look_up(words[word], code_book);
      weights[8 * block + word] = coded.first;
      weights[8 * block + 4 + word] = coded.last;
    }
  }
}

template <class Book>
struct CodeBookPanel : ScaledBlockPanel<CodeBookType<Book>> {
  using Type = CodeBookType<Book>;
  using Step = PanelStep<8>;

  STRATAD_INLINE void rearrange(PanelRows rows, Step& step) {
    alignas(64) float scales[8][kPanelRows];
    for (int row = 0; row < kPanelRows; ++row) {
      alignas(32) float row_scales[8];
      _mm256_store_ps(row_scales, Type::load_scales(rows.first + row * rows.stride));
      for (int block = 0; block < 8; ++block) scales[block][row] = row_scales[block];
    }
    rearrange_indices(rows, Book::kScaleBytes, Type::kBlockBytes, load_code_book(Book::kCodeBook),
                      step.weights);
    for (int block = 0; block < 8; ++block) step.scales[block] = _mm512_load_ps(scales[block]);
  }
};

// ---------------------------------------------------------------- activations with one scale for a step

template <class Type>
struct ScaledStepPanel : Type {
  using Activations = typename Type::Activations;

  STRATAD_INLINE __m512 factor(__m512 row_scales, const Activations&, int) { return row_scales; }
  template <class Step>
  STRATAD_INLINE __m512 finish(__m512 total, const Step&, const Activations& activations, __m512 sum) {
    return _mm512_fmadd_ps(total, _mm512_set1_ps(activations.scale), sum);
  }
};

struct IQ4XSPanel : ScaledStepPanel<IQ4XSType> {
  static constexpr int kBlockColumns = 32;
  using Step = PanelStep<8>;

  static constexpr int value_offset(int block, int part) { return block_value_offset(block, part); }
  STRATAD_INLINE __m512i start(const Activations& activations, int block) {
    return _mm512_set1_epi32(activations.block_offsets[block]);
  }

  STRATAD_INLINE void rearrange(PanelRows rows, Step& step) {
    alignas(64) int32_t scales[8][kPanelRows];
    for (int row = 0; row < kPanelRows; ++row) {
      alignas(32) int32_t row_scales[8];
      _mm256_store_si256(reinterpret_cast<__m256i*>(row_scales),
                         load_block_scales(rows.first + row * rows.stride));
      for (int block = 0; block < 8; ++block) scales[block][row] = row_scales[block];
    }
    const __m512 scale = gather_halves(rows, 0);
    rearrange_indices(rows, kIndices, 16, load_code_book(kNonLinear), step.weights);
    for (int block = 0; block < 8; ++block)
      step.scales[block] = _mm512_mul_ps(_mm512_cvtepi32_ps(load_512(scales[block])), scale);
  }
};

struct Q6KPanel : ScaledStepPanel<Q6KType> {
  static constexpr int kBlockColumns = 16;
  using Step = PanelStep<16>;

  STRATAD_INLINE __m512i start(const Activations& activations, int block) {
    return _mm512_set1_epi32(activations.block_offsets[block]);
  }

  STRATAD_INLINE void rearrange(PanelRows rows, Step& step) {
    rearrange_scales(rows, step.scales);
    for (int half = 0; half < 2; ++half)
      for (int parity = 0; parity < 2; ++parity)
        rearrange_blocks(rows, half, parity, step.weights + 4 * (8 * half + parity));
  }

 private:
  // The even or odd blocks of a half: of all four the upper bits lie in the same 16 bytes.
  STRATAD_INLINE void rearrange_blocks(PanelRows rows, int half, int parity, __m512i* weights) {
    __m512i upper[4];
    gather_16_bytes(rows, kUpperBits + 32 * half + 16 * parity, upper);
    for (int pair = 0; pair < 2; ++pair) {
      __m512i lower[4];
      gather_16_bytes(rows, 64 * half + 32 * pair + 16 * parity, lower);
      const __m512i left = _mm512_set1_epi32(4 - 2 * pair), right = _mm512_set1_epi32(2 * pair);
      for (int word = 0; word < 4; ++word) {
        weights[8 * pair + word] = merge_bits(lower[word], _mm512_sllv_epi32(upper[word], left), 63);
        weights[8 * (pair + 2) + word] =
            merge_bits(_mm512_srli_epi16(lower[word], 4), _mm512_srlv_epi32(upper[word], right), 63);
      }
    }
  }

  STRATAD_INLINE void rearrange_scales(PanelRows rows, __m512* scales) {
    __m512i words[4];
    gather_16_bytes(rows, kBlockScales, words);
    const __m512 scale = gather_halves(rows, kScale);
    for (int block = 0; block < 16; ++block) {
      const __m512i shifted = _mm512_sllv_epi32(words[block / 4], _mm512_set1_epi32(24 - block % 4 * 8));
      scales[block] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srai_epi32(shifted, 24)), scale);
    }
  }
};

// Q4_K and Q5_K.
template <class Layout>
struct KQuantPanel : ScaledStepPanel<KQuantType<Layout>> {
  static constexpr int kBlockColumns = 32;
  struct Step : PanelStep<8> {
    __m512i minima[4];  // 16 bits each, of two blocks side by side
    __m512 minimum_scale;
  };

  static constexpr int value_offset(int block, int part) { return k_quant_value_offset(block, part); }
  STRATAD_INLINE __m512i start(const KQuantActivations&, int) { return _mm512_setzero_si512(); }

  STRATAD_INLINE __m512 finish(__m512 total, const Step& step, const KQuantActivations& activations,
                               __m512 sum) {
    __m512i minimum = _mm512_setzero_si512();
    for (int pair = 0; pair < 4; ++pair)
      minimum = _mm512_dpwssd_epi32(minimum, step.minima[pair],
                                    broadcast_32(activations.block_sums + block_sum_index(2 * pair)));
    const __m512 product = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(minimum), step.minimum_scale, total);
    return _mm512_fmadd_ps(product, _mm512_set1_ps(activations.scale), sum);
  }

  STRATAD_INLINE void rearrange(PanelRows rows, Step& step) {
    rearrange_scales(rows, step);
    __m512i fifth_bits[2][4] = {};
    if constexpr (Layout::kHasFifthBits)
      for (int half = 0; half < 2; ++half) gather_16_bytes(rows, kHeaderBytes + 16 * half, fifth_bits[half]);
    for (int pair = 0; pair < 4; ++pair)
      for (int half = 0; half < 2; ++half)
        rearrange_pair(rows, pair, half, fifth_bits[half], step.weights + 16 * pair + 4 * half);
  }

 private:
  static constexpr int kHeaderBytes = 16;
  static constexpr int kFourBits = kHeaderBytes + (Layout::kHasFifthBits ? 32 : 0);

  // Halves of the blocks 2 `pair` and 2 `pair` + 1. Bit b of the bytes with the fifth bits is block b's.
  STRATAD_INLINE void rearrange_pair(PanelRows rows, int pair, int half, const __m512i* fifth_bits,
                                     __m512i* weights) {
    __m512i words[4];
    gather_16_bytes(rows, kFourBits + 32 * pair + 16 * half, words);
    const __m512i even = _mm512_set1_epi32(4 - 2 * pair), odd = _mm512_set1_epi32(3 - 2 * pair);
    for (int word = 0; word < 4; ++word) {
      const __m512i upper = _mm512_srli_epi16(words[word], 4);
      if constexpr (Layout::kHasFifthBits) {
        weights[word] = merge_bits(words[word], _mm512_rolv_epi32(fifth_bits[word], even), 31);
        weights[8 + word] = merge_bits(upper, _mm512_rolv_epi32(fifth_bits[word], odd), 31);
      } else {
        weights[word] = lower_four_bits(words[word]);
        weights[8 + word] = lower_four_bits(upper);
      }
    }
  }

  // See unpack_scales for where the bits lie.
  STRATAD_INLINE void rearrange_scales(PanelRows rows, Step& step) {
    __m512i words[4];
    gather_16_bytes(rows, 0, words);
    const __m512 scale = lower_halves(words[0]);
    step.minimum_scale = lower_halves(_mm512_srli_epi32(words[0], 16));
    for (int half = 0; half < 2; ++half) {
      const __m512i scales = six_bits(words[1], lower_four_bits(words[3]), half);
      const __m512i minima = six_bits(words[2], upper_four_bits(words[3]), half);
      for (int block = 0; block < 4; ++block) {
        const __m512i shifted = _mm512_srlv_epi32(scales, _mm512_set1_epi32(8 * block));
        step.scales[4 * half + block] =
            _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(63))), scale);
      }
      for (int pair = 0; pair < 2; ++pair) step.minima[2 * half + pair] = spread_bytes(minima, 2 * pair);
    }
  }

  // Numbers 0-3 (half 0) or 4-7, one a byte.
  STRATAD_INLINE __m512i six_bits(__m512i word, __m512i four_bits, int half) {
    if (half == 0) return _mm512_and_si512(word, _mm512_set1_epi8(63));
    return merge_bits(four_bits, _mm512_srli_epi16(word, 2), 63);
  }

  // Bytes `first` and `first` + 1 of every lane as 16-bit elements.
  STRATAD_INLINE __m512i spread_bytes(__m512i words, int first) {
    const __m512i order = _mm512_set4_epi32(static_cast<int>(0x800d800c), static_cast<int>(0x80098008),
                                            static_cast<int>(0x80058004), static_cast<int>(0x80018000));
    return _mm512_shuffle_epi8(words, _mm512_add_epi16(order, _mm512_set1_epi16(static_cast<short>(first))));
  }
};

}  // namespace
}  // namespace stratad
