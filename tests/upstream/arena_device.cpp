// Our device in own mode, as a library that ggml loads when GGML_BACKEND_PATH names it, so that upstream's
// test-backend-ops runs against it. All tensors lie in arena memory, and every product is the pool's whatever
// its size. The environment says how the pool looks:
//   STRATAD_TEST_WORKERS, STRATAD_TEST_SLICES   (1 each)
//   STRATAD_TEST_POOL_TOKENS                    largest batch that the pool takes (all)
//   STRATAD_TEST_KERNELS                        ggml, avx2 or avx512 (ggml)
// At the end it says on stderr what the pool has computed.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "backend/arena_buffer.hpp"
#include "backend/device.hpp"
#include "backend/own_backend.hpp"
#include "ggml-backend-impl.h"

namespace {

using namespace stratad;

int setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

std::optional<InstructionSet> kernels() {
  const char* text = std::getenv("STRATAD_TEST_KERNELS");
  const std::string name = text == nullptr ? "ggml" : text;
  if (name == "avx512") return InstructionSet::kAvx512Vnni;
  if (name == "avx2") return InstructionSet::kAvx2;
  return std::nullopt;
}

struct Setup {
  Setup() {
    const int workers = std::max(1, setting("STRATAD_TEST_WORKERS", 1));
    WorkerLayout layout;
    layout.slices.resize(static_cast<size_t>(std::max(1, setting("STRATAD_TEST_SLICES", 1))));
    for (int worker = 0; worker < workers; ++worker)
      layout.workers.push_back({std::nullopt, worker % static_cast<int>(layout.slices.size())});
    attach_pool(std::make_shared<Pool>(layout, 20000));
    set_device_options({.max_pool_tokens = setting("STRATAD_TEST_POOL_TOKENS", 1 << 20),
                        .products = kernels(),
                        .smallest_product_bytes = 0});
  }
  ~Setup() {
    const DeviceCounters counters = device_counters();
    const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
    std::fprintf(stderr, "pool: dense=%llu lanes=%llu experts=%llu attentions=%llu whole=%llu\n",
                 number(counters.dense_jobs), number(counters.lane_products),
                 number(counters.fallback_operations + counters.fused_chains), number(counters.attentions),
                 number(counters.whole_graphs));
    attach_pool(nullptr);
  }
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;
};

ggml_backend_dev_t cpu() {
  return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

const char* name(ggml_backend_dev_t) {
  return "STRATAD";
}
const char* registry_name(ggml_backend_reg_t) {
  return "STRATAD";
}
void memory(ggml_backend_dev_t, size_t* free, size_t* total) {
  *free = *total = 0;
}
enum ggml_backend_dev_type type(ggml_backend_dev_t) {
  return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}
void properties(ggml_backend_dev_t device, ggml_backend_dev_props* values) {
  *values = {};
  values->name = values->description = name(device);
  values->type = type(device);
}
ggml_backend_t init(ggml_backend_dev_t device, const char*) {
  static const Setup setup;
  ggml_backend_t backend = make_own_backend({.mode = DeviceMode::kOwn}, device);
  ggml_backend_cpu_set_n_threads(backend, setting("STRATAD_TEST_WORKERS", 1));
  return backend;
}
ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t) {
  return arena_buffer_type();
}
bool supports_operation(ggml_backend_dev_t, const ggml_tensor* operation) {
  return ggml_backend_dev_supports_op(cpu(), operation);
}
bool supports_buffer(ggml_backend_dev_t, ggml_backend_buffer_type_t buffers) {
  return ggml_backend_buft_is_host(buffers);
}

size_t device_count(ggml_backend_reg_t) {
  return 1;
}
ggml_backend_dev_t device(ggml_backend_reg_t registry, size_t) {
  static ggml_backend_device made = [registry] {
    ggml_backend_device value{};
    value.iface.get_name = name;
    value.iface.get_description = name;
    value.iface.get_memory = memory;
    value.iface.get_type = type;
    value.iface.get_props = properties;
    value.iface.init_backend = init;
    value.iface.get_buffer_type = buffer_type;
    value.iface.supports_op = supports_operation;
    value.iface.supports_buft = supports_buffer;
    value.reg = registry;
    return value;
  }();
  return &made;
}
void* proc_address(ggml_backend_reg_t, const char*) {
  return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
  static ggml_backend_reg made = {
      GGML_BACKEND_API_VERSION, {registry_name, device_count, device, proc_address}, nullptr};
  return &made;
}
