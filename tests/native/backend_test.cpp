// The whole path under a sanitizer: load into the arena, decode fused and op by op, compare with plain CPU.
//   backend_test MODEL.gguf      (tests/native/test_native.py writes the model)
#include <chrono>
#include <cstring>
#include <future>
#include <thread>
#include <vector>

#include "backend/device.hpp"
#include "backend/device_state.hpp"
#include "check.hpp"
#include "engine/context.hpp"
#include "engine/model.hpp"
#include "engine/sampler.hpp"

namespace {

using namespace stratad;

std::shared_ptr<Pool> pool_of(int workers, int slices) {
  WorkerLayout layout;
  layout.slices.resize(static_cast<size_t>(slices));
  for (int worker = 0; worker < workers; ++worker) layout.workers.push_back({std::nullopt, worker % slices});
  return std::make_shared<Pool>(layout, 2000);
}

std::vector<float> logits_of(const std::shared_ptr<Model>& model) {
  Context context(model, {.context_tokens = 64, .batch_tokens = 16, .thread_count = 2});
  Sampler sampler(model, {.temperature = 0});
  Batch batch;
  for (int position = 0; position < 6; ++position) batch.add(position * 31 % 320, position, 0, position == 5);
  std::vector<float> all;
  for (int step = 0; step < 4; ++step) {
    context.decode(batch);
    const auto logits = context.logits(-1);
    all.insert(all.end(), logits.begin(), logits.end());
    const llama_token token = sampler.sample(context, -1);
    batch.clear();
    batch.add(token, 6 + step, 0, true);
  }
  return all;
}

bool equal(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// A graph holds the device's mutex from its beginning to its end.
void counters_are_read_while_a_graph_is_computed() {
  std::unique_lock computing(DeviceState::instance().mutex);
  auto reader = std::async(std::launch::async, device_counters);
  CHECK(reader.wait_for(std::chrono::seconds(30)) == std::future_status::ready);
  computing.unlock();
}

// Kernels that only say which of them was chosen.
void no_rows(const RowStreams&, const void* const*, int, float* const*, float* const*) noexcept {}
void no_panels(const char*, int64_t, size_t, int64_t, const void* const*, int, float* const*) noexcept {}
void no_tiles(const char*, int64_t, size_t, int64_t, const void* const*, int, float* const*) noexcept {}

void the_number_of_tokens_says_how_they_are_multiplied() {
  RowKernel kernel{};
  kernel.multiply = no_rows;
  kernel.multiply_panels = no_panels;
  kernel.multiply_tiles = no_tiles;
  WeightProduct product;
  CHECK(product.batch_multiply(1000) == nullptr);  // ggml's dot products
  product.kernel = &kernel;
  CHECK(product.batch_multiply(7) == nullptr);
  CHECK(product.batch_multiply(8) == no_panels);
  CHECK(product.batch_multiply(1 << 20) == no_panels);
  product.limits.panel_tokens = 5;
  product.limits.tile_tokens = 16;
  CHECK(product.batch_multiply(4) == nullptr);
  CHECK(product.batch_multiply(5) == no_panels);
  CHECK(product.batch_multiply(15) == no_panels);
  CHECK(product.batch_multiply(16) == no_tiles);
  kernel.multiply_tiles = nullptr;
  CHECK(product.batch_multiply(16) == no_panels);
  kernel.multiply_panels = nullptr;
  CHECK(product.batch_multiply(16) == nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  counters_are_read_while_a_graph_is_computed();
  the_number_of_tokens_says_how_they_are_multiplied();
  // What a scrape does all the time: the thread sanitizer sees whether it may.
  std::jthread scraper([](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      CHECK(device_counters().expert_bytes.size() <= 3);
      std::this_thread::yield();
    }
  });
  const auto plain = Model::load({.paths = {argv[1]}, .use_arena = false}, nullptr, {});
  const std::vector<float> reference = logits_of(plain);
  for (ArenaScope scope : {ArenaScope::kExperts, ArenaScope::kWeights})
    for (int slices : {1, 2, 3})
      for (int workers : {1, 3}) {
        int calls = 0;
        const auto placed = Model::load({.paths = {argv[1]}, .scope = scope}, pool_of(workers, slices),
                                        [&](const char*, double) { return ++calls > 0; });
        CHECK(calls > 1);
        CHECK(placed->arenas().size() == 1);
        for (bool fuse_chains : {true, false}) {
          set_device_options({.fuse_chains = fuse_chains});
          CHECK(equal(logits_of(placed), reference));
        }
      }
  const bool is_cancelled = test::throws<LoadCancelled>(
      [&] { Model::load({.paths = {argv[1]}}, pool_of(2, 2), [](const char*, double) { return false; }); });
  CHECK(is_cancelled);
  attach_pool(nullptr);
  std::printf("backend: %d failures\n", stratad::test::failures);
  return stratad::test::failures == 0 ? 0 : 1;
}
