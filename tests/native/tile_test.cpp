// Products by tiles: the bits of panels, on a model of the tile registers anywhere and on the registers
// themselves where the CPU has them. And whether tiles may be used: what speaks against it, and who is asked.
//
//   tile_test model   what runs on any CPU with AVX-512
//   tile_test cpu     the same products by the CPU's own tiles; says what it left out, and why
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.hpp"
#include "ggml-cpu.h"
#include "guarded_bytes.hpp"
#include "kernel_weights.hpp"
#include "kernels/kernel_table.hpp"
#include "kernels/tiles.hpp"
#include "tile_model.hpp"
#include "tile_model_kernels.hpp"

namespace {

using namespace stratad;
using test::Filling;
using test::GuardedBytes;
using test::kFillings;
using test::Weights;

constexpr ggml_type kTypes[] = {GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K,   GGML_TYPE_IQ4_XS,
                                GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL, GGML_TYPE_MXFP4};
constexpr int kTokens = 70;  // more than a group of 64
constexpr int64_t kRows = 49;
constexpr uint32_t kPoison = 0x7fc0dead;  // not a number
constexpr size_t kGuards = 16;

// ---- Bits.

// Every fourth token is ordinary; the others round to the largest numbers of one sign or the other, or are
// mostly zeros.
std::vector<float> make_token(int index, int64_t columns, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> token(static_cast<size_t>(columns));
  for (size_t column = 0; column < token.size(); ++column) {
    const float ordinary = normal(random) * static_cast<float>(index + 1);
    token[column] = index % 4 == 0     ? ordinary
                    : index % 4 == 1   ? 3.0f
                    : index % 4 == 2   ? (column % 32 == 0 ? 3.0f : -3.0f)
                    : column % 64 < 32 ? 0.0f
                                       : ordinary;
  }
  return token;
}

using Buffer = std::unique_ptr<char, decltype(&std::free)>;

class Case {
 public:
  Case(const RowKernel& kernel, int64_t columns, const Filling& filling, std::mt19937& random)
      : kernel_(kernel),
        columns_(columns),
        filling_(filling.name),
        weights_(kernel.weight_type, kRows, columns, filling, random),
        rows_(weights_.bytes().size()) {
    std::memcpy(rows_.begin(), weights_.bytes().data(), weights_.bytes().size());
    for (int token = 0; token < kTokens; ++token) {
      const size_t size = kernel.activation_bytes(columns);
      activations_.emplace_back(static_cast<char*>(std::aligned_alloc(64, size)), &std::free);
      kernel.quantise(make_token(token, columns, random).data(), columns, activations_.back().get());
    }
    expected_ = multiply(kernel.multiply_panels, kRows, 0, kTokens);
  }

  // The last rows, which end at an unreadable page, times `token_count` tokens from `first_token` on.
  void check(MultiplyMany* multiply_tiles, int64_t row_count, int first_token, int token_count) const {
    const auto products = multiply(multiply_tiles, row_count, first_token, token_count);
    bool is_same = true;
    for (size_t token = 0; token < products.size(); ++token) {
      const auto& all = expected_[static_cast<size_t>(first_token) + token];
      is_same = is_same && std::memcmp(products[token].data(), all.data() + (kRows - row_count),
                                       products[token].size() * sizeof(float)) == 0;
    }
    if (!is_same)
      std::fprintf(stderr,
                   "%s, %s: %ld columns, %ld rows, %d tokens from %d on are other bits than panels'\n",
                   ggml_type_name(kernel_.weight_type), filling_, static_cast<long>(columns_),
                   static_cast<long>(row_count), token_count, first_token);
    CHECK(is_same);
  }

 private:
  std::vector<std::vector<float>> multiply(MultiplyMany* multiply_many, int64_t row_count, int first_token,
                                           int token_count) const {
    std::vector<std::vector<float>> products;
    std::vector<const void*> activations;
    std::vector<float*> outputs;
    for (int token = 0; token < token_count; ++token) {
      products.emplace_back(static_cast<size_t>(row_count) + kGuards, std::bit_cast<float>(kPoison));
      activations.push_back(activations_[static_cast<size_t>(first_token + token)].get());
    }
    for (auto& values : products) outputs.push_back(values.data());
    multiply_many(rows_.end() - static_cast<size_t>(row_count) * weights_.row_bytes(), row_count,
                  weights_.row_bytes(), columns_, activations.data(), token_count, outputs.data());
    for (auto& values : products) {
      for (size_t row = 0; row < values.size(); ++row)
        CHECK((std::bit_cast<uint32_t>(values[row]) == kPoison) == (row >= static_cast<size_t>(row_count)));
      values.resize(static_cast<size_t>(row_count));
    }
    return products;
  }

  const RowKernel& kernel_;
  int64_t columns_;
  const char* filling_;
  Weights weights_;
  GuardedBytes rows_;
  std::vector<Buffer> activations_;
  std::vector<std::vector<float>> expected_;
};

// The longest rows are more than the kernels copy of a token at once.
std::vector<int64_t> column_counts(const RowKernel& kernel) {
  if (kernel.column_unit == 256) return {256, 768, 2304};
  CHECK(kernel.column_unit == 32);
  return {32, 96, 256, 800, 2336};
}

void test_bits(const RowKernel& kernel, MultiplyMany* multiply_tiles) {
  std::mt19937 random(11);
  const int64_t shortest = kernel.column_unit == 256 ? 256 : 288;
  const Case counts(kernel, shortest, kFillings[0], random);
  for (int token_count = 1; token_count <= kTokens; ++token_count)
    counts.check(multiply_tiles, 17, kTokens - token_count, token_count);
  for (int64_t row_count = 0; row_count <= kRows; ++row_count)
    counts.check(multiply_tiles, row_count, 1, static_cast<int>(1 + row_count % 37));
  for (const int64_t columns : column_counts(kernel)) {
    const Case lengths(kernel, columns, kFillings[0], random);
    for (const int token_count : {1, 16, 31, 69}) lengths.check(multiply_tiles, kRows, 0, token_count);
  }
  for (const Filling& filling : kFillings) {
    const Case fillings(kernel, 2 * shortest, filling, random);
    for (const int token_count : {4, 33}) fillings.check(multiply_tiles, 35, 0, token_count);
  }
}

// Blocks of one scale in 256 columns.
int64_t blocks_of(ggml_type type) {
  return type == GGML_TYPE_Q6_K ? 16 : 8;
}

void test_model_has_the_bits_of_panels() {
  for (const RowKernel& kernel : avx512_row_kernels()) {
    MultiplyMany* const multiply_tiles = test::tile_kernel_on_model(kernel.weight_type);
    CHECK((multiply_tiles != nullptr) == (kernel.multiply_panels != nullptr));
    if (multiply_tiles == nullptr) continue;
    test_bits(kernel, multiply_tiles);
    CHECK(test::is_model_released());
    // All of it is multiplied by tiles: 3 panels, 2 tiles of tokens, 3 steps.
    std::mt19937 random(12);
    const Case whole(kernel, 768, kFillings[0], random);
    const int64_t before = test::model_product_count();
    whole.check(multiply_tiles, 33, 0, 20);
    CHECK(test::model_product_count() - before == 3 * 2 * 3 * blocks_of(kernel.weight_type));
  }
}

// ---- The model is right by examples that were computed by hand.

constexpr TileConfiguration small_tiles() {
  TileConfiguration shape;
  for (const int tile : {0, 1, 2}) {
    shape.rows[tile] = 2;
    shape.row_bytes[tile] = 8;
  }
  return shape;
}
constexpr TileConfiguration kSmallTiles = small_tiles();

template <int kTile, class Element, size_t kRowCount>
void load(const Element (&rows)[kRowCount][8 / sizeof(Element)]) {
  TileModel::load<kTile>(rows, 8);
}

void test_model_multiplies_by_the_book() {
  const int8_t first[2][8] = {{-128, 1, 2, 3, 4, 5, 6, 7}, {0, 0, 0, 1, -1, 0, 0, 0}};
  const uint8_t second[2][8] = {{255, 1, 1, 1, 0, 0, 0, 200}, {1, 1, 1, 1, 2, 0, 0, 0}};
  const int32_t start[2][2] = {{10, -5}, {INT32_MAX, 0}};
  int32_t sums[3][2] = {{1, 1}, {1, 1}, {7, 7}};
  TileModel::configure(kSmallTiles);
  load<0>(start);
  load<1>(first);
  load<2>(second);
  TileModel::multiply<0, 1, 2>();
  TileModel::store<0>(sums, 8);
  CHECK(sums[0][0] == 10 + (-128 * 255 + 1 + 2 + 3) + (4 + 5 + 6 + 7));
  CHECK(sums[0][1] == -5 + 3 * 200 + 4 * 2);
  CHECK(sums[1][0] == INT32_MAX);  // and 1 - 1
  CHECK(sums[1][1] == 200 - 2);
  CHECK(sums[2][0] == 7);  // a row that the tile does not have
  load<0>(start);
  TileModel::multiply_signed<0, 1, 2>();
  TileModel::store<0>(sums, 8);
  CHECK(sums[0][0] == 10 + (128 + 1 + 2 + 3) + (4 + 5 + 6 + 7));
}

void test_model_wraps_and_clears() {
  const int8_t first[2][8] = {{1}, {}};
  const uint8_t second[2][8] = {{1}, {}};
  const int32_t start[2][2] = {{INT32_MAX, 3}, {4, 5}};
  int32_t sums[2][2];
  TileModel::configure(kSmallTiles);
  TileModel::store<0>(sums, 8);
  CHECK(sums[0][0] == 0 && sums[1][1] == 0);  // as configuring left it
  load<0>(start);
  load<1>(first);
  load<2>(second);
  TileModel::multiply<0, 1, 2>();
  TileModel::store<0>(sums, 8);
  CHECK(sums[0][0] == INT32_MIN);
  TileModel::clear<0>();
  TileModel::store<0>(sums, 8);
  CHECK(sums[0][0] == 0 && sums[0][1] == 0 && sums[1][0] == 0 && sums[1][1] == 0);
  CHECK(!TileModel::is_released());
  TileModel::release();
  CHECK(TileModel::is_released());
}

// ---- Whether tiles may be used.

constexpr TileSupport kEverything{true, true, true, true, true};

void test_what_a_cpu_lacks_is_named() {
  CHECK(!objection_to(kEverything));
  const auto without = [](bool TileSupport::* part) {
    TileSupport support = kEverything;
    support.*part = false;
    return objection_to(support).value_or("");
  };
  CHECK(without(&TileSupport::has_tiles).find("AMX-INT8") != std::string::npos);
  CHECK(without(&TileSupport::multiplies_bytes).find("AMX-INT8") != std::string::npos);
  CHECK(without(&TileSupport::has_known_shape).find("16 rows") != std::string::npos);
  CHECK(without(&TileSupport::has_vectors).find("AVX-512") != std::string::npos);
  CHECK(without(&TileSupport::is_state_enabled).find("operating system") != std::string::npos);
}

void test_a_cpu_without_tiles_is_never_given_any() {
  if (tile_support().has_tiles) return;
  const TileObjection refusal = ask_for_tiles();
  CHECK(refusal && refusal->find("the kernel refuses") == 0);
  CHECK(prepare_tiles() == objection_to(tile_support()));
}

// Two slices and an odd number of workers, more than there may be CPUs.
std::unique_ptr<Pool> make_pool() {
  WorkerLayout layout;
  layout.slices.resize(2);
  for (int worker = 0; worker < 5; ++worker) layout.workers.push_back({std::nullopt, worker == 3 ? 1 : 0});
  return std::make_unique<Pool>(std::move(layout), 50'000);
}

std::atomic<int> checked_count{0};
thread_local bool is_checked = false;
bool check_first_time() noexcept {
  checked_count.fetch_add(1);
  return !std::exchange(is_checked, true);
}
bool fail_always() noexcept {
  return false;
}

void test_every_worker_is_checked_once() {
  const auto pool = make_pool();
  CHECK(count_failing_workers(*pool, check_first_time) == 0);
  CHECK(checked_count.load() == pool->worker_count());
  CHECK(count_failing_workers(*pool, check_first_time) == pool->worker_count());  // the same threads again
  CHECK(count_failing_workers(*pool, fail_always) == pool->worker_count());
  CHECK(prepare_tiles(*pool) == prepare_tiles());
}

void test_wrong_products_are_noticed() {
  CHECK(test::is_right_model_accepted());
  CHECK(!test::is_wrong_model_accepted());
}

int test_model() {
  test_model_multiplies_by_the_book();
  test_model_wraps_and_clears();
  test_what_a_cpu_lacks_is_named();
  test_a_cpu_without_tiles_is_never_given_any();
  test_every_worker_is_checked_once();
  if (!cpu_has(InstructionSet::kAvx512Vnni)) {
    std::printf("tiles: left out, this CPU has no AVX-512 to compare with\n");
    return test::failures == 0 ? 0 : 1;
  }
  test_wrong_products_are_noticed();
  test_model_has_the_bits_of_panels();
  std::printf("tiles: %d failures\n", test::failures);
  return test::failures == 0 ? 0 : 1;
}

int test_cpu() {
  const auto pool = make_pool();
  if (const TileObjection objection = prepare_tiles(*pool)) {
    std::printf("tiles: left out, %s\n", objection->c_str());
    return 0;
  }
  for (const ggml_type type : kTypes) {
    const RowKernel* const kernel = find_row_kernel(type, InstructionSet::kAvx512Vnni);
    test_bits(*kernel, kernel->multiply_tiles);
  }
  std::printf("tiles: %d failures\n", test::failures);
  return test::failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argument_count, char** arguments) {
  ggml_cpu_init();
  return argument_count == 2 && std::strcmp(arguments[1], "cpu") == 0 ? test_cpu() : test_model();
}
