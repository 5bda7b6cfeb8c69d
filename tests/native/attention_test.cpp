// The attention kernels against a reference in double precision, on every shape of tile, mask and head; all
// memory ends at an unreadable page.
#include "kernels/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "check.hpp"
#include "guarded_bytes.hpp"

namespace {

using namespace stratad;
using test::GuardedBytes;

enum class Mask { kNone, kCausal, kRandom, kHidden };

struct Shape {
  int64_t key_columns, value_columns, key_count;
  int query_count;
  Mask mask;
  float scale;
  bool has_sinks;
};

float half(ggml_fp16_t bits) {
  return ggml_fp16_to_fp32(bits);
}

// One head's keys, values and queries.
class Head {
 public:
  Head(const Shape& shape, unsigned seed)
      : shape_(shape),
        keys_(bytes_of<ggml_fp16_t>(shape.key_count * shape.key_columns)),
        values_(bytes_of<ggml_fp16_t>(shape.key_count * shape.value_columns)),
        masks_(bytes_of<ggml_fp16_t>(shape.query_count * shape.key_count)),
        queries_(bytes_of<float>(shape.query_count * shape.key_columns)),
        sinks_(static_cast<size_t>(shape.query_count), -INFINITY),
        random_(seed) {
    fill_halves(keys_);
    fill_halves(values_);
    for (float* value = floats(queries_); value != reinterpret_cast<float*>(queries_.end()); ++value)
      *value = deviates_(random_);
    if (shape.has_sinks)
      for (float& sink : sinks_) sink = 3 * deviates_(random_);
    for (int query = 0; query < shape.query_count; ++query)
      for (int64_t key = 0; key < shape.key_count; ++key)
        mask(query)[key] = ggml_fp32_to_fp16(mask_of(query, key));
  }

  // Attention of the queries [first, first + count), their outputs one behind the other.
  std::vector<float> attend(const AttentionKernel& kernel, int first, int count) {
    GuardedBytes outputs(bytes_of<float>(count * shape_.value_columns));
    std::memset(outputs.begin(), 0xff, static_cast<size_t>(outputs.end() - outputs.begin()));
    std::vector<AttentionQuery> queries;
    for (int query = first; query < first + count; ++query)
      queries.push_back(
          {floats(queries_) + query * shape_.key_columns, shape_.mask == Mask::kNone ? nullptr : mask(query),
           floats(outputs) + (query - first) * shape_.value_columns, sinks_[static_cast<size_t>(query)]});
    const AttentionTile tile{
        queries.data(),       count,
        keys_.begin(),        static_cast<size_t>(shape_.key_columns) * sizeof(ggml_fp16_t),
        values_.begin(),      static_cast<size_t>(shape_.value_columns) * sizeof(ggml_fp16_t),
        shape_.key_count,     shape_.key_columns,
        shape_.value_columns, shape_.scale};
    const size_t scratch_floats = kernel.scratch_floats(shape_.key_columns, shape_.value_columns);
    GuardedBytes scratch(scratch_floats * sizeof(float));
    std::memset(scratch.begin(), 0xff, scratch_floats * sizeof(float));
    kernel.attend(tile, floats(scratch));
    const float* begin = floats(outputs);
    return {begin, begin + count * shape_.value_columns};
  }

  // The largest difference from the exact result, relative to the largest value.
  double error_of(const std::vector<float>& outputs) {
    double worst = 0;
    for (int query = 0; query < shape_.query_count; ++query) {
      const std::vector<double> exact = attend_exactly(query);
      for (int64_t column = 0; column < shape_.value_columns; ++column) {
        const double given = outputs[static_cast<size_t>(query * shape_.value_columns + column)];
        if (!std::isfinite(given)) return INFINITY;
        worst = std::max(worst, std::abs(given - exact[static_cast<size_t>(column)]));
      }
    }
    return worst / 4;  // values are normal deviates
  }

 private:
  template <class T>
  static size_t bytes_of(int64_t count) {
    return static_cast<size_t>(count) * sizeof(T);
  }
  static float* floats(const GuardedBytes& bytes) { return reinterpret_cast<float*>(bytes.begin()); }
  static ggml_fp16_t* halves(const GuardedBytes& bytes) {
    return reinterpret_cast<ggml_fp16_t*>(bytes.begin());
  }
  ggml_fp16_t* mask(int query) { return halves(masks_) + query * shape_.key_count; }

  void fill_halves(GuardedBytes& bytes) {
    for (auto* value = halves(bytes); value != reinterpret_cast<ggml_fp16_t*>(bytes.end()); ++value)
      *value = ggml_fp32_to_fp16(std::clamp(deviates_(random_), -4.f, 4.f));
  }

  float mask_of(int query, int64_t key) {
    switch (shape_.mask) {
      case Mask::kCausal:
        return key <= query + shape_.key_count / 2 ? 0 : -INFINITY;
      case Mask::kRandom:  // now and then a whole tile of keys, and finite numbers, too
        return (key / 32 + query) % 3 == 0 || random_() % 4 == 0 ? -INFINITY : deviates_(random_);
      case Mask::kHidden:
        return query % 2 == 0 ? -INFINITY : 0;
      default:
        return 0;
    }
  }

  std::vector<double> attend_exactly(int query) {
    std::vector<double> scores;
    double largest = sinks_[static_cast<size_t>(query)];
    for (int64_t key = 0; key < shape_.key_count; ++key) {
      double score = 0;
      for (int64_t column = 0; column < shape_.key_columns; ++column)
        score += static_cast<double>(floats(queries_)[query * shape_.key_columns + column]) *
                 half(halves(keys_)[key * shape_.key_columns + column]);
      scores.push_back(score * shape_.scale + (shape_.mask == Mask::kNone ? 0.0 : half(mask(query)[key])));
      largest = std::max(largest, scores.back());
    }
    std::vector<double> result(static_cast<size_t>(shape_.value_columns), 0.0);
    if (largest == -INFINITY) return result;
    double total = std::exp(sinks_[static_cast<size_t>(query)] - largest);
    for (int64_t key = 0; key < shape_.key_count; ++key) {
      const double weight = std::exp(scores[static_cast<size_t>(key)] - largest);
      total += weight;
      for (int64_t column = 0; column < shape_.value_columns; ++column)
        result[static_cast<size_t>(column)] +=
            weight * half(halves(values_)[key * shape_.value_columns + column]);
    }
    for (double& value : result) value /= total;
    return result;
  }

  const Shape shape_;
  GuardedBytes keys_, values_, masks_, queries_;
  std::vector<float> sinks_;
  std::mt19937 random_;
  std::normal_distribution<float> deviates_;
};

void test_against_double_precision(const AttentionKernel& kernel) {
  const int limit = kernel.query_limit;
  unsigned seed = 0;
  for (const auto& [key_columns, value_columns] :
       {std::pair{16, 16}, {64, 64}, {80, 80}, {192, 128}, {576, 512}})
    for (const int key_count : {1, 7, 32, 33, 160})
      for (const int query_count : {1, 5, limit})
        for (const Mask mask : {Mask::kNone, Mask::kCausal, Mask::kRandom, Mask::kHidden})
          for (const bool has_sinks : {false, true}) {
            const Shape shape{key_columns, value_columns, key_count,
                              query_count, mask,          1 / std::sqrt(static_cast<float>(key_columns)),
                              has_sinks};
            Head head(shape, ++seed);
            CHECK(head.error_of(head.attend(kernel, 0, query_count)) < 1e-6);
          }
}

// Scores far apart: one key takes everything, weights underflow, maxima grow and fall from tile to tile.
void test_extreme_scores(const AttentionKernel& kernel) {
  for (const float scale : {1e-6f, 3.f, 300.f, -300.f}) {
    Head head({64, 64, 200, kernel.query_limit, Mask::kCausal, scale, false}, 99);
    CHECK(head.error_of(head.attend(kernel, 0, kernel.query_limit)) < 2e-5);
  }
}

// Weights themselves, from 1 down to the smallest normal number: of two keys one has the score 0 and the
// value 0, the other the value 1.
void test_weights(const AttentionKernel& kernel) {
  std::vector<ggml_fp16_t> keys(2 * 16, 0), values(2 * 16, 0);
  keys[16] = values[16] = ggml_fp32_to_fp16(1);
  std::vector<float> scratch(kernel.scratch_floats(16, 16));
  for (float score = 0; score > -87; score -= 0.37f) {
    float query[16] = {score}, output[16];
    const AttentionQuery queries[] = {{query, nullptr, output, -INFINITY}};
    kernel.attend({queries, 1, reinterpret_cast<const char*>(keys.data()), 32,
                   reinterpret_cast<const char*>(values.data()), 32, 2, 16, 16, 1},
                  scratch.data());
    const double weight = std::exp(static_cast<double>(score)), exact = weight / (1 + weight);
    CHECK(std::abs(output[0] - exact) < 3e-7 * exact);
  }
}

// A query's bits are the same alone, and in whatever lane of whatever tile.
void test_bits_do_not_depend_on_company(const AttentionKernel& kernel) {
  const int limit = kernel.query_limit;
  for (const Mask mask : {Mask::kNone, Mask::kCausal, Mask::kRandom, Mask::kHidden}) {
    Head head({128, 128, 300, limit, mask, 0.2f, true}, 5);
    const std::vector<float> together = head.attend(kernel, 0, limit);
    for (int first = 0; first < limit; first += 3) {
      const int count = std::min(3, limit - first);
      const std::vector<float> apart = head.attend(kernel, first, count);
      CHECK(std::memcmp(apart.data(), together.data() + first * 128, apart.size() * sizeof(float)) == 0);
    }
  }
}

}  // namespace

int main() {
  for (const InstructionSet set : {InstructionSet::kAvx2, InstructionSet::kAvx512Vnni}) {
    if (!cpu_has(set)) continue;
    const AttentionKernel& kernel = attention_kernel(set);
    test_against_double_precision(kernel);
    test_extreme_scores(kernel);
    test_weights(kernel);
    test_bits_do_not_depend_on_company(kernel);
  }
  std::printf("attention: %d failures\n", stratad::test::failures);
  return stratad::test::failures == 0 ? 0 : 1;
}
