// The proxy device under a sanitizer, around the stand-in GPU of tests/gpu: pool, large batches, cache,
// failures.
//   gpu_test MODEL.gguf libstandin_gpu.so
#include <dlfcn.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "backend/device.hpp"
#include "check.hpp"
#include "engine/context.hpp"
#include "engine/model.hpp"
#include "gpu/modules.hpp"
#include "gpu/slot_table.hpp"

namespace {

using namespace stratad;

constexpr int kPrompt = 12, kSteps = 8;
void (*standin_set)(const char*, long) = nullptr;

std::shared_ptr<Pool> pool_of(int workers, int slices) {
  WorkerLayout layout;
  layout.slices.resize(static_cast<size_t>(slices));
  for (int worker = 0; worker < workers; ++worker) layout.workers.push_back({std::nullopt, worker % slices});
  return std::make_shared<Pool>(layout, 2000);
}

void append(std::vector<float>& all, const Context& context) {
  const auto logits = context.logits(-1);
  all.insert(all.end(), logits.begin(), logits.end());
}

std::vector<float> logits_of(const std::shared_ptr<Model>& model) {
  Context context(model, {.context_tokens = 64, .batch_tokens = 16});
  Batch batch;
  std::vector<float> all;
  for (int position = 0; position < kPrompt; ++position)
    batch.add(position * 31 % 320, position, 0, position == kPrompt - 1);
  context.decode(batch);
  append(all, context);
  for (int step = 0; step < kSteps; ++step) {
    batch.clear();
    batch.add((step * 53 + 1) % 320, kPrompt + step, 0, true);
    context.decode(batch);
    append(all, context);
  }
  return all;
}

bool equal(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool are_numbers(const std::vector<float>& values) {
  for (float value : values)
    if (!std::isfinite(value)) return false;
  return true;
}

void test_bits(const char* path, const std::vector<float>& reference) {
  for (int slices : {1, 2}) {
    const auto gpu = std::make_shared<GpuOffload>(std::vector<std::string>{"STANDIN0"});
    const auto model = Model::load({.paths = {path}, .gpu = gpu}, pool_of(3, slices), {});
    CHECK(equal(logits_of(model), reference));
    set_device_options({.fuse_chains = false});
    CHECK(equal(logits_of(model), reference));
    set_device_options({});
    gpu->set_pool_tokens(1);
    gpu->open_memory({.reserve_bytes = 0, .cache_bytes = 0}, {}, {});
    CHECK(equal(logits_of(model), reference));
    gpu->open_memory({.reserve_bytes = 0}, {}, {});
    CHECK(equal(logits_of(model), reference));
    CHECK(gpu->counters()[0].second.cache.misses == 0);
  }
}

void test_swaps(const char* path) {
  const auto gpu = std::make_shared<GpuOffload>(std::vector<std::string>{"STANDIN0"});
  const auto model = Model::load({.paths = {path}, .gpu = gpu}, pool_of(2, 2), {});
  gpu->open_memory({.reserve_bytes = 0, .cache_bytes = 700'000}, {}, {});
  for (int round = 0; round < 3; ++round) CHECK(are_numbers(logits_of(model)));
  const CacheCounters cache = gpu->counters()[0].second.cache;
  CHECK(cache.hits > 0);
  CHECK(cache.misses > 0);
  CHECK(cache.swaps > 0);
}

void test_failure(const char* path, long how) {
  const auto gpu = std::make_shared<GpuOffload>(std::vector<std::string>{"STANDIN0"});
  const auto model = Model::load({.paths = {path}, .gpu = gpu}, pool_of(2, 1), {});
  gpu->set_pool_tokens(1);
  gpu->open_memory({.reserve_bytes = 0, .cache_bytes = 700'000}, {}, {});
  standin_set("fail_how", how);
  standin_set("fail_graph", 9);
  CHECK(test::throws<DecodeError>([&] { logits_of(model); }));
  CHECK(gpu->failure().has_value());
  CHECK(test::throws<DecodeError>([&] { logits_of(model); }));
}

void test_slot_table() {
  SlotTable table(4, 2);
  CHECK(!table.best_swap());
  table.note_use(3);
  const auto first = table.best_swap();
  CHECK(first && first->expert == 3 && first->slot == 0);
  table.begin(*first);
  CHECK(table.slot_of(3) == SlotTable::kNone);
  CHECK(!table.best_swap());  // it is on its way, and no other was used
  table.finish(*first);
  CHECK(table.slot_of(3) == 0);
  CHECK(table.resident_count() == 1);
  table.note_use(1);
  table.begin({1, 1});
  table.abandon({1, 1});
  CHECK(table.slot_of(1) == SlotTable::kNone);
  table.begin({1, 1});
  table.finish({1, 1});
  table.note_use(2);
  CHECK(!table.best_swap());  // as often as the others: no reason to change
  table.note_use(3);
  table.note_use(2);
  const auto second = table.best_swap();
  CHECK(second && second->expert == 2 && second->slot == 1);
  table.begin(*second);
  CHECK(table.slot_of(1) == SlotTable::kNone);
  CHECK(table.resident_count() == 1);
  table.finish(*second);
  // Scores fall by half in kHalfLifeSteps steps, and weights that grow large change nothing else.
  const double before = table.profile()[2];
  for (int step = 0; step < static_cast<int>(SlotTable::kHalfLifeSteps); ++step) table.next_step();
  CHECK(std::abs(table.profile()[2] / before - 0.5) < 1e-6);
  for (int step = 0; step < 400 * static_cast<int>(SlotTable::kHalfLifeSteps); ++step) table.next_step();
  table.note_use(0);
  CHECK(std::abs(table.profile()[0] - 1) < 1e-6);
  SlotTable restored(4, 2);
  restored.set_profile({0, 0, 2, 5});
  CHECK(restored.profile() == std::vector<float>({0, 0, 2, 5}));
}

// Three layers with four experts of 3072 bytes, in host memory; one expert of each was used.
struct UsedLayers {
  UsedLayers() : context(ggml_init({size_t{1} << 17, nullptr, false})) {
    for (int layer = 0; layer < kLayers; ++layer) {
      ExpertMatrices matrices{.layer = layer};
      for (int matrix = 0; matrix < 3; ++matrix) {
        ggml_tensor* weight = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, 32, 8, 4);
        std::memset(weight->data, 0, ggml_nbytes(weight));
        matrices.weights.push_back(weight);
      }
      layers.push_back(matrices);
    }
  }
  void use(ExpertCache& cache) const {
    for (const ExpertMatrices& layer : layers)
      cache.note_use(*cache.find(layer.weights.back()), kUsedExpert, false);
  }

  static constexpr int kLayers = 3;
  static constexpr int32_t kUsedExpert = 3;
  TensorContext context;
  std::vector<ExpertMatrices> layers;
};

// Swaps complete after one step, two steps and so on, of a cache that may copy so many bytes in each.
std::vector<uint64_t> swaps_by_step(uint64_t bytes_per_step) {
  const UsedLayers used;
  Uploader uploader;
  const auto cache =
      ExpertCache::create(inner_devices().front().device, used.layers,
                          {.budget_bytes = 2 * 3 * 3072, .swap_bytes_per_step = bytes_per_step}, uploader);
  CHECK(cache != nullptr);
  used.use(*cache);
  std::vector<uint64_t> swaps;
  for (int step = 0; step < UsedLayers::kLayers; ++step) {
    cache->plan_swaps();
    uploader.drain();
    cache->begin_step();
    // The device may still read the slots: nothing is copied before somebody has waited for it.
    CHECK(cache->counters().swaps == (swaps.empty() ? 0 : swaps.back()));
    cache->release_swaps();
    uploader.drain();
    cache->begin_step();
    swaps.push_back(cache->counters().swaps);
  }
  CHECK(cache->counters().swap_bytes == swaps.back() * 3072);
  return swaps;
}

void test_swaps_are_bounded_in_each_step() {
  CHECK(swaps_by_step(1) == std::vector<uint64_t>({1, 2, 3}));  // one at least
  CHECK(swaps_by_step(2 * 3072 - 1) == std::vector<uint64_t>({1, 2, 3}));
  CHECK(swaps_by_step(2 * 3072) == std::vector<uint64_t>({2, 3, 3}));
  CHECK(swaps_by_step(uint64_t{32} << 20) == std::vector<uint64_t>({3, 3, 3}));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  test_slot_table();
  CHECK(load_gpu_module(argv[2]).device_count > 0);
  void* module = dlopen(argv[2], RTLD_NOW);
  standin_set = reinterpret_cast<void (*)(const char*, long)>(dlsym(module, "standin_set"));
  const auto plain = Model::load({.paths = {argv[1]}, .use_arena = false}, nullptr, {});
  const std::vector<float> reference = logits_of(plain);
  test_bits(argv[1], reference);
  test_swaps(argv[1]);
  test_swaps_are_bounded_in_each_step();
  for (long how : {1, 2}) test_failure(argv[1], how);
  attach_pool(nullptr);
  std::printf("gpu: %d failures\n", stratad::test::failures);
  return stratad::test::failures == 0 ? 0 : 1;
}
