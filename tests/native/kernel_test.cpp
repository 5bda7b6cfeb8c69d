// Row kernels: right against sums in double precision and against ggml, the same bits however rows are cut
// and tokens are batched, and no byte read or written outside of what they were given.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "ggml-cpu.h"
#include "guarded_bytes.hpp"
#include "kernel_weights.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/row_kernel.hpp"

namespace {

using namespace stratad;
using stratad::test::Filling;
using stratad::test::GuardedBytes;
using stratad::test::kFillings;
using stratad::test::Weights;

constexpr ggml_type kExpectedTypes[] = {GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K,   GGML_TYPE_IQ4_XS,
                                        GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL, GGML_TYPE_MXFP4,
                                        GGML_TYPE_BF16, GGML_TYPE_F16};

constexpr int64_t kMaximumRows = 17;
constexpr int64_t kRowCounts[] = {0, 1, 2, 3, 5, 16, 17};
constexpr double kLargestError = 2e-6;     // of the sum of the products' magnitudes
constexpr double kLargestNmse = 1e-6;      // against ggml's own dot product
constexpr double kSmallestNormal = 1e-36;  // below it floats lose digits, in ggml's kernels as in ours

// ---- What they are multiplied with.

using Tokens = std::array<std::vector<float>, kKernelTokens>;

// Token 0 is ordinary. In token 1 every value rounds to the largest number of one sign, in token 2 nearly
// every one to that of the other; token 3 is blocks of zeros, denormals and single peaks.
Tokens make_tokens(int64_t columns, std::mt19937& random) {
  std::normal_distribution<float> normal;
  Tokens tokens;
  for (auto& token : tokens) token.resize(static_cast<size_t>(columns));
  for (size_t column = 0; column < static_cast<size_t>(columns); ++column) {
    tokens[0][column] = normal(random);
    tokens[1][column] = 3.0f;
    tokens[2][column] = column % 32 == 0 ? 3.0f : -3.0f;
    tokens[3][column] = column % 64 < 32    ? 0.0f
                        : column % 96 == 33 ? -2.0f
                        : column % 5 == 0   ? 1e-41f
                                            : 0.01f;
  }
  return tokens;
}

// A token as ggml rounds it for a weight type: in ggml's own form, and as floats.
struct Rounded {
  std::vector<char> blocks;
  std::vector<float> values;
};

Rounded round_as_ggml(ggml_type weight_type, const std::vector<float>& token) {
  const auto columns = static_cast<int64_t>(token.size());
  const ggml_type type = ggml_get_type_traits_cpu(weight_type)->vec_dot_type;
  Rounded rounded{std::vector<char>(ggml_row_size(type, columns)), std::vector<float>(token.size())};
  ggml_get_type_traits_cpu(type)->from_float(token.data(), rounded.blocks.data(), columns);
  if (type != GGML_TYPE_Q8_K) {
    ggml_get_type_traits(type)->to_float(rounded.blocks.data(), rounded.values.data(), columns);
    return rounded;
  }
  // ggml has no function for this one: a float, 256 numbers, 16 sums of 16 bits.
  for (size_t column = 0; column < token.size(); ++column) {
    const char* block = rounded.blocks.data() + column / 256 * ggml_type_size(type);
    float scale;
    std::memcpy(&scale, block, sizeof scale);
    const auto number = std::bit_cast<int8_t>(block[sizeof scale + column % 256]);
    CHECK(number != -128);  // the kernels' bounds rest on it
    rounded.values[column] = scale * static_cast<float>(number);
  }
  return rounded;
}

// ---- Kernels and what they give.

constexpr uint32_t kPoison = 0x7fc0dead;  // not a number
constexpr size_t kGuards = 16;

std::vector<float> poisoned(size_t count) {
  return std::vector<float>(count, std::bit_cast<float>(kPoison));
}

bool is_poison(float value) {
  return std::bit_cast<uint32_t>(value) == kPoison;
}

// Activations in a kernel's form, in exactly as many bytes as it asked for.
class Activations {
 public:
  Activations(const RowKernel& kernel, const std::vector<float>& token)
      : size_(kernel.activation_bytes(static_cast<int64_t>(token.size()))),
        bytes_(static_cast<char*>(std::aligned_alloc(64, size_)), &std::free) {
    CHECK(size_ % 64 == 0);
    std::memset(bytes_.get(), 0xff, size_);  // so that nothing rests on memory being clear
    kernel.quantise(token.data(), static_cast<int64_t>(token.size()), bytes_.get());
  }
  const void* get() const noexcept { return bytes_.get(); }

 private:
  size_t size_;
  std::unique_ptr<char, decltype(&std::free)> bytes_;
};

// By run and token: one float per row.
using Products = std::array<std::array<std::vector<float>, kKernelTokens>, 2>;

struct Case {
  const RowKernel& kernel;
  int64_t columns;
  const char* filling;
  std::vector<Activations> activations;
  Products expected;
  std::string name() const {
    return std::string(ggml_type_name(kernel.weight_type)) +
           (kernel.instruction_set == InstructionSet::kAvx2 ? " avx2" : " avx512") + " columns " +
           std::to_string(columns) + ", " + filling;
  }
};

// Multiplies and checks that exactly the rows asked for were written.
Products multiply(const Case& test, const RowStreams& streams, const std::vector<int>& token_indices) {
  const auto row_count = static_cast<size_t>(streams.row_count);
  Products products;
  const void* activations[kKernelTokens] = {};
  float* outputs[2][kKernelTokens] = {};
  for (size_t index = 0; index < token_indices.size(); ++index) {
    activations[index] = test.activations[static_cast<size_t>(token_indices[index])].get();
    for (size_t run = 0; run < 2; ++run) {
      products[run][index] = poisoned(row_count + kGuards);
      outputs[run][index] = products[run][index].data();
    }
  }
  test.kernel.multiply(streams, activations, static_cast<int>(token_indices.size()), outputs[0], outputs[1]);
  for (size_t run = 0; run < 2; ++run)
    for (size_t index = 0; index < token_indices.size(); ++index) {
      auto& values = products[run][index];
      const bool is_given = run == 0 || streams.second != nullptr;
      for (size_t row = 0; row < row_count + kGuards; ++row)
        CHECK(is_poison(values[row]) == (!is_given || row >= row_count));
      values.resize(row_count);
    }
  return products;
}

bool same_bits(const std::vector<float>& values, const std::vector<float>& expected, int64_t first_row) {
  return values.empty() ||
         std::memcmp(values.data(), expected.data() + first_row, values.size() * sizeof(float)) == 0;
}

void check_same(bool is_same, const Case& test, const char* what) {
  if (!is_same) std::fprintf(stderr, "%s: bits depend on %s\n", test.name().c_str(), what);
  CHECK(is_same);
}

// The numbers themselves: against double precision, and against ggml.
void check_values(const Case& test, const Weights (&weights)[2], const Tokens& tokens) {
  const auto* traits = ggml_get_type_traits_cpu(test.kernel.weight_type);
  double worst = 0, error_energy = 0, energy = 0;
  for (size_t token = 0; token < kKernelTokens; ++token) {
    const Rounded rounded = round_as_ggml(test.kernel.weight_type, tokens[token]);
    for (size_t run = 0; run < 2; ++run)
      for (int64_t row = 0; row < kMaximumRows; ++row) {
        const auto values = weights[run].values(row);
        const auto magnitudes = weights[run].magnitudes(row);
        double sum = 0, magnitude = 0;
        for (size_t column = 0; column < values.size(); ++column) {
          sum += static_cast<double>(values[column]) * rounded.values[column];
          magnitude += magnitudes[column] * std::abs(rounded.values[column]);
        }
        const double ours = test.expected[run][token][static_cast<size_t>(row)];
        const double error = std::max(0.0, std::abs(ours - sum) - kSmallestNormal);
        worst = std::isfinite(ours) ? std::max(worst, magnitude == 0 ? error : error / magnitude) : INFINITY;
        float theirs = 0;
        traits->vec_dot(static_cast<int>(test.columns), &theirs, 0, weights[run].row(row), 0,
                        rounded.blocks.data(), 0, 1);
        error_energy += (ours - theirs) * (ours - theirs);
        energy += static_cast<double>(theirs) * theirs;
      }
  }
  const bool is_near = worst <= kLargestError,
             is_ggml = error_energy <= kLargestNmse * energy + kSmallestNormal;
  if (!is_near || !is_ggml)
    std::fprintf(stderr, "%s: error %.1e, NMSE %.1e\n", test.name().c_str(), worst, error_energy / energy);
  CHECK(is_near);
  CHECK(is_ggml);
}

// Every number of rows and tokens, one and two runs, with and without prefetching, at any address.
void check_bits(const Case& test, const Weights (&weights)[2]) {
  const size_t row_bytes = weights[0].row_bytes();
  const GuardedBytes memory[2] = {GuardedBytes(weights[0].bytes().size()),
                                  GuardedBytes(weights[1].bytes().size())};
  bool is_same = true;
  for (size_t shift : {0u, 1u}) {
    // Shifted by one byte the first row is cut off; with no shift the last byte lies at the unreadable page.
    const size_t kept = static_cast<size_t>(kMaximumRows) * row_bytes - (shift == 0 ? 0 : row_bytes);
    for (size_t run = 0; run < 2; ++run)
      std::memcpy(memory[run].end() - shift - kept,
                  weights[run].bytes().data() + weights[run].bytes().size() - kept, kept);
    for (int64_t row_count : kRowCounts)
      for (bool has_second : {false, true})
        for (bool knows_next : {false, true}) {
          const int64_t first_row = kMaximumRows - row_count;
          if (shift != 0 && first_row == 0) continue;
          RowStreams streams;
          streams.first = memory[0].end() - shift - static_cast<size_t>(row_count) * row_bytes;
          if (has_second)
            streams.second = memory[1].end() - shift - static_cast<size_t>(row_count) * row_bytes;
          streams.row_count = row_count;
          streams.row_bytes = row_bytes;
          streams.columns = test.columns;
          if (knows_next) streams.after_first = streams.after_second = memory[1].begin();
          for (const auto& token_indices :
               {std::vector<int>{0}, {1}, {2}, {3}, {1, 0}, {2, 0, 1}, {3, 2, 1, 0}}) {
            const Products products = multiply(test, streams, token_indices);
            for (size_t run = 0; run < (has_second ? 2u : 1u); ++run)
              for (size_t index = 0; index < token_indices.size(); ++index) {
                const auto& expected = test.expected[run][static_cast<size_t>(token_indices[index])];
                is_same = is_same && same_bits(products[run][index], expected, first_row);
              }
          }
        }
  }
  check_same(is_same, test, "rows, tokens or addresses");
}

// Any cut of a run into two.
void check_cuts(const Case& test, const Weights& weights) {
  bool is_same = true;
  for (int64_t cut = 0; cut <= kMaximumRows; ++cut)
    for (const auto& [begin, end] : {std::pair{int64_t{0}, cut}, {cut, kMaximumRows}}) {
      RowStreams streams;
      streams.first = weights.row(begin);
      streams.row_count = end - begin;
      streams.row_bytes = weights.row_bytes();
      streams.columns = test.columns;
      const Products products = multiply(test, streams, {0, 3});
      is_same = is_same && same_bits(products[0][0], test.expected[0][0], begin) &&
                same_bits(products[0][1], test.expected[0][3], begin);
    }
  check_same(is_same, test, "a cut");
}

// Panels: one run, any number of tokens.
std::vector<std::vector<float>> multiply_panels(const Case& test, const char* rows, int64_t row_count,
                                                size_t row_bytes, int token_count) {
  std::vector<std::vector<float>> products;
  std::vector<const void*> activations;
  std::vector<float*> outputs;
  for (int token = 0; token < token_count; ++token) {
    products.push_back(poisoned(static_cast<size_t>(row_count) + kGuards));
    activations.push_back(test.activations[static_cast<size_t>(token % kKernelTokens)].get());
  }
  for (auto& values : products) outputs.push_back(values.data());
  test.kernel.multiply_panels(rows, row_count, row_bytes, test.columns, activations.data(), token_count,
                              outputs.data());
  for (auto& values : products) {
    for (size_t row = 0; row < values.size(); ++row)
      CHECK(is_poison(values[row]) == (row >= static_cast<size_t>(row_count)));
    values.resize(static_cast<size_t>(row_count));
  }
  return products;
}

// The numbers, and the same bits for any number of rows and tokens.
void check_panels(Case test, const Weights (&weights)[2], const Tokens& tokens) {
  const size_t row_bytes = weights[0].row_bytes();
  for (size_t run = 0; run < 2; ++run) {
    const auto products = multiply_panels(test, weights[run].row(0), kMaximumRows, row_bytes, kKernelTokens);
    std::copy(products.begin(), products.end(), test.expected[run].begin());
  }
  check_values(test, weights, tokens);
  const GuardedBytes memory(weights[0].bytes().size());
  std::memcpy(memory.begin(), weights[0].bytes().data(), weights[0].bytes().size());
  bool is_same = true;
  for (int64_t row_count : kRowCounts)
    for (int token_count : {1, 2, 5, 8, 66}) {
      const char* rows = memory.end() - static_cast<size_t>(row_count) * row_bytes;
      const auto products = multiply_panels(test, rows, row_count, row_bytes, token_count);
      for (size_t token = 0; token < products.size(); ++token)
        is_same = is_same && same_bits(products[token], test.expected[0][token % kKernelTokens],
                                       kMaximumRows - row_count);
    }
  check_same(is_same, test, "panels");
}

void test_kernel(const RowKernel& kernel, int64_t columns, const Filling& filling, std::mt19937& random) {
  const Weights weights[2] = {{kernel.weight_type, kMaximumRows, columns, filling, random},
                              {kernel.weight_type, kMaximumRows, columns, filling, random}};
  const Tokens tokens = make_tokens(columns, random);
  Case test{kernel, columns, filling.name, {}, {}};
  for (const auto& token : tokens) test.activations.emplace_back(kernel, token);
  RowStreams streams;
  streams.first = weights[0].row(0);
  streams.second = weights[1].row(0);
  streams.row_count = kMaximumRows;
  streams.row_bytes = weights[0].row_bytes();
  streams.columns = columns;
  test.expected = multiply(test, streams, {0, 1, 2, 3});
  check_values(test, weights, tokens);
  check_bits(test, weights);
  check_cuts(test, weights[0]);
  if (kernel.multiply_panels != nullptr) check_panels(std::move(test), weights, tokens);
}

void test_kernels(InstructionSet set, std::span<const RowKernel> kernels) {
  std::mt19937 random(7);
  for (const RowKernel& kernel : kernels) {
    CHECK(kernel.instruction_set == set);
    CHECK(find_row_kernel(kernel.weight_type, set) == &kernel);
    for (const Filling& filling : kFillings) {
      for (int64_t columns : {256, 768, 2048}) test_kernel(kernel, columns, filling, random);
      if (kernel.column_unit == 256) continue;
      CHECK(kernel.column_unit == 32);
      for (int64_t columns : {32, 96, 288, 800}) test_kernel(kernel, columns, filling, random);
    }
  }
}

void test_every_expected_type_has_a_kernel(std::span<const RowKernel> kernels) {
  CHECK(kernels.size() == std::size(kExpectedTypes));
  for (ggml_type type : kExpectedTypes) {
    int count = 0;
    for (const RowKernel& kernel : kernels) count += kernel.weight_type == type;
    CHECK(count == 1);
  }
}

}  // namespace

int main() {
  ggml_cpu_init();
  for (const auto& [set, kernels] : {std::pair{InstructionSet::kAvx2, avx2_row_kernels()},
                                     {InstructionSet::kAvx512Vnni, avx512_row_kernels()}}) {
    if (cpu_has(set)) test_kernels(set, kernels);
    test_every_expected_type_has_a_kernel(kernels);
  }
  std::printf("kernel: %d failures\n", stratad::test::failures);
  return stratad::test::failures == 0 ? 0 : 1;
}
