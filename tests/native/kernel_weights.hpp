// Rows of a weight matrix as GGUF stores them: ordinary ones, and ones made of extremes.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "ggml-cpu.h"
#include "ggml.h"

namespace stratad::test {

enum class Scale { kHalf, kExponent, kNone };

// Where a block keeps its scales. `minimum` is the second one of types whose weights are scale * number -
// minimum; 0: none.
struct BlockLayout {
  Scale kind = Scale::kNone;
  size_t scale = 0;
  size_t minimum = 0;
};

inline BlockLayout layout_of(ggml_type type) {
  switch (type) {
    case GGML_TYPE_Q4_K:
    case GGML_TYPE_Q5_K:
      return {Scale::kHalf, 0, 2};
    case GGML_TYPE_Q6_K:
      return {Scale::kHalf, 208};
    case GGML_TYPE_MXFP4:
      return {Scale::kExponent, 0};
    case GGML_TYPE_BF16:
    case GGML_TYPE_F16:
      return {};
    default:
      return {Scale::kHalf, 0};
  }
}

// A kind of weights: what the scales are, and every other byte (-1: random).
struct Filling {
  const char* name;
  int byte;
  uint16_t half;     // 0xffff: random, near one thousandth, of either sign
  uint8_t exponent;  // of MXFP4; 0xff: random, near one
};

inline constexpr uint16_t kRandomHalf = 0xffff;
inline constexpr uint8_t kRandomExponent = 0xff;
inline constexpr Filling kFillings[] = {
    {"random", -1, kRandomHalf, kRandomExponent},
    {"zero", 0, 0, 0},
    {"zero scales", -1, 0, 1},
    {"denormal scales", -1, 0x0001, 1},
    {"negative denormal scales", 0xff, 0x8001, 2},
    {"largest scales, lowest numbers", 0x00, 0x7bff, 200},
    {"largest scales, all bits", 0xff, 0x7bff, 200},
    {"largest negative scales, all bits", 0xff, 0xfbff, 200},
    {"largest scales, highest signed numbers", 0x7f, 0x7bff, 200},
    {"largest scales, lowest signed numbers", 0x80, 0xfbff, 200},
    {"largest scales, alternating bits", 0xaa, 0x7bff, 3},
    {"largest scales, random", -1, 0x7bff, 200},
};

class Weights {
 public:
  Weights(ggml_type type, int64_t row_count, int64_t columns, const Filling& filling, std::mt19937& random)
      : type_(type), columns_(columns), row_bytes_(ggml_row_size(type, columns)) {
    bytes_.resize(row_bytes_ * static_cast<size_t>(row_count));
    for (char& byte : bytes_)
      byte = static_cast<char>(filling.byte < 0 ? random() : static_cast<unsigned>(filling.byte));
    const BlockLayout layout = layout_of(type);
    if (layout.kind == Scale::kNone) {
      fill_floats(filling, random);
      return;
    }
    for (size_t block = 0; block < bytes_.size(); block += ggml_type_size(type)) {
      if (layout.kind == Scale::kExponent) {
        const auto random_exponent = static_cast<uint8_t>(115 + random() % 8);
        put(block, filling.exponent == kRandomExponent ? random_exponent : filling.exponent);
        continue;
      }
      put(block + layout.scale, half(filling, random));
      if (layout.minimum != 0) put(block + layout.minimum, half(filling, random));
    }
  }

  const std::vector<char>& bytes() const noexcept { return bytes_; }
  const char* row(int64_t index) const noexcept {
    return bytes_.data() + static_cast<size_t>(index) * row_bytes_;
  }
  size_t row_bytes() const noexcept { return row_bytes_; }

  std::vector<float> values(int64_t index) const {
    std::vector<float> floats(static_cast<size_t>(columns_));
    ggml_get_type_traits(type_)->to_float(row(index), floats.data(), columns_);
    return floats;
  }

  // Magnitudes of what is added to make each weight: more than the weight's own where a minimum is taken off.
  std::vector<double> magnitudes(int64_t index) const {
    const std::vector<float> whole = values(index);
    std::vector<double> sums(whole.begin(), whole.end());
    for (double& sum : sums) sum = std::abs(sum);
    const BlockLayout layout = layout_of(type_);
    if (layout.minimum == 0) return sums;
    std::vector<char> without_minimum(row(index), row(index) + row_bytes_);
    for (size_t block = 0; block < row_bytes_; block += ggml_type_size(type_))
      std::memset(without_minimum.data() + block + layout.minimum, 0, 2);
    std::vector<float> products(whole.size());
    ggml_get_type_traits(type_)->to_float(without_minimum.data(), products.data(), columns_);
    for (size_t column = 0; column < sums.size(); ++column)
      sums[column] = std::abs(products[column]) + std::abs(products[column] - whole[column]);
    return sums;
  }

 private:
  template <class Value>
  void put(size_t offset, Value value) {
    std::memcpy(bytes_.data() + offset, &value, sizeof value);
  }

  static uint16_t half(const Filling& filling, std::mt19937& random) {
    if (filling.half != kRandomHalf) return filling.half;
    const float magnitude = 1e-3f * (0.5f + static_cast<float>(random() % 1000) * 1e-3f);
    return ggml_fp32_to_fp16(random() % 4 == 0 ? -magnitude : magnitude);
  }

  void fill_floats(const Filling& filling, std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (size_t offset = 0; offset < bytes_.size(); offset += 2) {
      const float value = normal(random);
      const bool is_denormal = (filling.half & 0x7c00) == 0;
      if (filling.half != kRandomHalf && (type_ == GGML_TYPE_F16 || is_denormal))
        put(offset, filling.half);
      else if (type_ == GGML_TYPE_F16)
        put(offset, ggml_fp32_to_fp16(value));
      else  // the largest BF16 numbers would give infinite sums, here and in ggml
        put(offset, ggml_fp32_to_bf16(filling.half == kRandomHalf ? value : ggml_fp16_to_fp32(filling.half)));
    }
  }

  ggml_type type_;
  int64_t columns_;
  size_t row_bytes_;
  std::vector<char> bytes_;
};

}  // namespace stratad::test
