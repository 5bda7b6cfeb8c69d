// Q4_0, IQ4_NL and MXFP4: blocks of 32 weights, a scale and then 16 bytes of nibbles.
//
// Two blocks are multiplied in one register, a block a lane. A step's eight blocks are summed to eight whole
// numbers, which then share one conversion and one multiplication.
#include "kernels/avx2/code_books.hpp"
#include "kernels/avx2/kernels.hpp"
#include "kernels/avx2/steps.hpp"

namespace stratad::avx2 {
namespace {

// Pairs of blocks lie in the order in which their sums come out: PairedActivations.
template <int kBlockBytes>
STRATAD_INLINE __m256 half_float_scales(const char* step) {
  const __m128 even =
      load_half_floats(step, step + 2 * kBlockBytes, step + 4 * kBlockBytes, step + 6 * kBlockBytes);
  const char* second = step + kBlockBytes;
  const __m128 odd =
      load_half_floats(second, second + 2 * kBlockBytes, second + 4 * kBlockBytes, second + 6 * kBlockBytes);
  return _mm256_set_m128(odd, even);
}

// How a type stores its blocks: numbers are unsigned, with an offset of 2^kOffsetBits, or signed.
struct Q4 {
  static constexpr int kScaleBytes = 2;
  static constexpr bool kIsSigned = false;
  static constexpr int kOffsetBits = 3;
  STRATAD_INLINE __m256i numbers(__m256i nibbles) { return nibbles; }
  STRATAD_INLINE __m256 scales(const char* step) { return half_float_scales<18>(step); }
};

struct Iq4Nl {
  static constexpr int kScaleBytes = 2;
  static constexpr bool kIsSigned = true;
  static constexpr int kOffsetBits = 0;
  STRATAD_INLINE __m256i numbers(__m256i nibbles) { return non_linear_values(nibbles); }
  STRATAD_INLINE __m256 scales(const char* step) { return half_float_scales<18>(step); }
};

struct Mxfp4 {
  static constexpr int kScaleBytes = 1;
  static constexpr bool kIsSigned = false;
  static constexpr int kOffsetBits = 4;
  STRATAD_INLINE __m256i numbers(__m256i nibbles) { return doubled_e2m1_plus_16(nibbles); }

  // A byte e means 2^(e - 127), and half of that here because the numbers are doubled. As a float's exponent,
  // e = 0 would be zero: 2^-127 is a denormal float. e = 255 is not a number in the format.
  STRATAD_INLINE __m256 scales(const char* step) {
    const __m128i bytes = _mm_setr_epi8(step[0], step[34], step[68], step[102], step[17], step[51], step[85],
                                        step[119], 0, 0, 0, 0, 0, 0, 0, 0);
    const __m256i bits =
        _mm256_max_epi32(_mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23), _mm256_set1_epi32(0x00400000));
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0.5f));
  }
};

template <class Codes>
struct PairedBlocks {
  using Activations = PairedActivations;
  static constexpr int kRows = 4;
  static constexpr int kBlockBytes = Codes::kScaleBytes + kBlockColumns / 2;
  static constexpr int kBytes = kStepBlocks * kBlockBytes;

  // Partial sums of two blocks, a block a lane. Unsigned: a word is at most 28 * 128 * 4 = 14336. Signed, as
  // in iq4_xs.cpp: 128 * 127 * 2 = 32512, so the halves are joined after widening.
  STRATAD_INLINE __m256i sum_pair(__m256i first_halves, __m256i second_halves, const Activations& activations,
                                  int pair) {
    const __m256i ones = _mm256_set1_epi16(1);
    const int8_t* values = activations.values + 64 * pair;
    if constexpr (Codes::kIsSigned) {
      const uint8_t* magnitudes = activations.magnitudes + 64 * pair;
      const __m256i first = _mm256_madd_epi16(signed_products(first_halves, values, magnitudes), ones);
      const __m256i second =
          _mm256_madd_epi16(signed_products(second_halves, values + 32, magnitudes + 32), ones);
      return _mm256_add_epi32(first, second);
    } else {
      return _mm256_madd_epi16(_mm256_add_epi16(_mm256_maddubs_epi16(first_halves, load(values)),
                                                _mm256_maddubs_epi16(second_halves, load(values + 32))),
                               ones);
    }
  }

  template <int kTokens>
  STRATAD_INLINE void add(const char* weights, const Activations* const* tokens, int64_t step, __m256* sums) {
    __m256i pair_sums[kTokens][4];
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; ++pair) {
      const char* block = weights + 2 * pair * kBlockBytes + Codes::kScaleBytes;
      const __m256i nibbles = load_lanes(block, block + kBlockBytes);
      const __m256i first_halves = Codes::numbers(low_nibbles(nibbles)),
                    second_halves = Codes::numbers(high_nibbles(nibbles));
#pragma GCC unroll 4
      for (int token = 0; token < kTokens; ++token)
        pair_sums[token][pair] = sum_pair(first_halves, second_halves, tokens[token][step], pair);
    }
    const __m256 weight_scales = Codes::scales(weights);
#pragma GCC unroll 4
    for (int token = 0; token < kTokens; ++token) {
      const Activations& activations = tokens[token][step];
      __m256i block_sums = sum_within_lanes(pair_sums[token][0], pair_sums[token][1], pair_sums[token][2],
                                            pair_sums[token][3]);
      if constexpr (!Codes::kIsSigned)
        block_sums =
            _mm256_sub_epi32(block_sums, _mm256_slli_epi32(load(activations.sums), Codes::kOffsetBits));
      sums[token] =
          _mm256_fmadd_ps(_mm256_cvtepi32_ps(block_sums),
                          _mm256_mul_ps(weight_scales, _mm256_load_ps(activations.scales)), sums[token]);
    }
  }
};

}  // namespace

void multiply_q4_0(const RowStreams& streams, const void* const* activations, int token_count,
                   float* const* first_output, float* const* second_output) noexcept {
  multiply<StepFormat<PairedBlocks<Q4>>>(streams, activations, token_count, first_output, second_output);
}

void multiply_iq4_nl(const RowStreams& streams, const void* const* activations, int token_count,
                     float* const* first_output, float* const* second_output) noexcept {
  multiply<StepFormat<PairedBlocks<Iq4Nl>>>(streams, activations, token_count, first_output, second_output);
}

void multiply_mxfp4(const RowStreams& streams, const void* const* activations, int token_count,
                    float* const* first_output, float* const* second_output) noexcept {
  multiply<StepFormat<PairedBlocks<Mxfp4>>>(streams, activations, token_count, first_output, second_output);
}

}  // namespace stratad::avx2
