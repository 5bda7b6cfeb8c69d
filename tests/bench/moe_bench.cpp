// One layer's experts over many tokens: what a prompt costs in the feed-forward part. Random routing, random
// weights of Qwen3-30B-A3B's shape.
//
// Reads a number of repetitions per line from standard input and answers each with the GFLOPS reached (two
// operations for each weight and token), so that a driver can take turns with another program.
//
// usage: moe_bench TYPE TOKENS WORKERS
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/expert_jobs.hpp"
#include "ggml.h"
#include "pool/pool.hpp"

namespace stratad {
namespace {

constexpr int64_t kEmbedding = 2048, kHidden = 768, kExperts = 128, kUsed = 8, kSeeds = 4;

ggml_type type_named(const char* name) {
  for (int type = 0; type < GGML_TYPE_COUNT; ++type)
    if (const char* known = ggml_type_name(static_cast<ggml_type>(type));
        known != nullptr && std::string(known) == name)
      return static_cast<ggml_type>(type);
  std::fprintf(stderr, "no type is called %s\n", name);
  std::exit(2);
}

class Layer {
 public:
  Layer(ggml_type type, int64_t tokens) : tokens_(tokens) {
    const size_t weight_bytes = ggml_row_size(type, kEmbedding) * kHidden * kExperts * 3 + (size_t{1} << 20);
    const size_t rest_bytes = static_cast<size_t>(tokens * (2 * kEmbedding + 2 * kUsed)) * sizeof(float);
    context_ = ggml_init({weight_bytes + rest_bytes + (size_t{1} << 24), nullptr, false});
    gate_ = weights(type, kEmbedding, kHidden);
    up_ = weights(type, kEmbedding, kHidden);
    down_ = weights(type, kHidden, kEmbedding);
    input_ = ggml_new_tensor_3d(context_, GGML_TYPE_F32, kEmbedding, 1, tokens);
    fill(static_cast<float*>(input_->data), ggml_nelements(input_));
    ids_ = ggml_new_tensor_2d(context_, GGML_TYPE_I32, kUsed, tokens);
    router_ = ggml_new_tensor_3d(context_, GGML_TYPE_F32, 1, kUsed, tokens);
    output_ = ggml_new_tensor_2d(context_, GGML_TYPE_F32, kEmbedding, tokens);
    choose_experts();
  }
  ~Layer() { ggml_free(context_); }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  ExpertChain chain(std::optional<InstructionSet> set) const {
    ExpertChain chain;
    chain.gate = WeightProduct(gate_, 0, kHidden, set);
    chain.up = WeightProduct(up_, 0, kHidden, set);
    chain.down = WeightProduct(down_, 0, kEmbedding, set);
    chain.input = input_;
    chain.ids = ids_;
    chain.weights = router_;
    chain.output = output_;
    return chain;
  }
  double operations() const { return 2.0 * 3 * kEmbedding * kHidden * kUsed * static_cast<double>(tokens_); }

 private:
  ggml_tensor* weights(ggml_type type, int64_t columns, int64_t rows) {
    ggml_tensor* tensor = ggml_new_tensor_3d(context_, type, columns, rows, kExperts);
    std::vector<float> values(static_cast<size_t>(columns * rows));
    for (int64_t expert = 0; expert < kExperts; ++expert) {
      char* matrix = static_cast<char*>(tensor->data) + static_cast<size_t>(expert) * tensor->nb[2];
      if (expert >= kSeeds) {
        std::memcpy(matrix, static_cast<char*>(tensor->data) + (expert % kSeeds) * tensor->nb[2],
                    tensor->nb[2]);
        continue;
      }
      fill(values.data(), columns * rows);
      ggml_quantize_chunk(type, values.data(), matrix, 0, rows, columns, nullptr);
    }
    return tensor;
  }

  void fill(float* values, int64_t count) {
    std::normal_distribution<float> normal(0.f, 0.03f);
    std::generate_n(values, count, [&] { return normal(random_); });
  }

  void choose_experts() {
    std::vector<int32_t> order(kExperts);
    for (int32_t expert = 0; expert < kExperts; ++expert) order[static_cast<size_t>(expert)] = expert;
    for (int64_t token = 0; token < tokens_; ++token) {
      std::shuffle(order.begin(), order.end(), random_);
      std::copy_n(order.begin(), kUsed, static_cast<int32_t*>(ids_->data) + token * kUsed);
      std::fill_n(static_cast<float*>(router_->data) + token * kUsed, kUsed, 1.f / kUsed);
    }
  }

  std::mt19937 random_{1};
  int64_t tokens_;
  ggml_context* context_ = nullptr;
  ggml_tensor *gate_, *up_, *down_, *input_, *ids_, *router_, *output_;
};

int run(const char* type, int64_t tokens, int workers) {
  WorkerLayout layout;
  layout.slices.resize(1);
  for (int worker = 0; worker < workers; ++worker) layout.workers.push_back({worker, 0});
  Pool pool(layout, 50'000);
  pool.adopt_calling_thread();
  std::optional<InstructionSet> set;
  for (InstructionSet candidate : {InstructionSet::kAvx2, InstructionSet::kAvx512Vnni})
    if (cpu_has(candidate)) set = candidate;
  const Layer layer(type_named(type), tokens);
  ChainJob job;
  for (int repetitions; std::scanf("%d", &repetitions) == 1;) {
    const auto begin = std::chrono::steady_clock::now();
    for (int repetition = 0; repetition < repetitions; ++repetition) {
      job.prepare(layer.chain(set), pool);
      pool.run(job);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("%.2f\n", layer.operations() * repetitions / seconds.count() / 1e9);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace stratad

int main(int count, char** arguments) {
  if (count != 4) {
    std::fprintf(stderr, "usage: moe_bench TYPE TOKENS WORKERS\n");
    return 2;
  }
  return stratad::run(arguments[1], std::atoll(arguments[2]), std::atoi(arguments[3]));
}
