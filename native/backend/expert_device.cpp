#include "backend/expert_device.hpp"

#include <atomic>
#include <mutex>

#include "backend/arena_buffer.hpp"
#include "backend/expert_chain.hpp"
#include "backend/expert_jobs.hpp"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"

namespace stratad {
namespace {

// Runs one small operation of a chain that was not fused: ggml's own kernel, on the calling thread.
class SingleOperation {
 public:
  SingleOperation() {
    auto parameters = ggml_threadpool_params_default(1);
    parameters.poll = 0;
    backend_ = ggml_backend_cpu_init();
    threadpool_ = ggml_threadpool_new(&parameters);
    ggml_backend_cpu_set_n_threads(backend_, 1);
    ggml_backend_cpu_set_threadpool(backend_, threadpool_);
    context_ = ggml_init({ggml_graph_overhead_custom(kGraphNodes, false) + 1024, nullptr, true});
    graph_ = ggml_new_graph_custom(context_, kGraphNodes, false);
  }
  ~SingleOperation() {
    ggml_backend_free(backend_);
    ggml_threadpool_free(threadpool_);
    ggml_free(context_);
  }
  SingleOperation(const SingleOperation&) = delete;
  SingleOperation& operator=(const SingleOperation&) = delete;

  ggml_status run(ggml_tensor* node) {
    ggml_graph_clear(graph_);
    ggml_graph_add_node(graph_, node);
    return ggml_backend_graph_compute(backend_, graph_);
  }

 private:
  static constexpr int kGraphNodes = 8;
  ggml_backend_t backend_;
  ggml_threadpool_t threadpool_;
  ggml_context* context_;
  ggml_cgraph* graph_;
};

// Everything the device keeps between calls. One computation at a time: contexts share the pool.
struct DeviceState {
  std::mutex mutex;
  std::shared_ptr<Pool> pool;
  std::atomic<bool> has_pool{false};
  std::atomic<int> max_pool_tokens{DeviceOptions{}.max_pool_tokens};
  std::atomic<bool> fuse_chains{DeviceOptions{}.fuse_chains};
  std::optional<InstructionSet> kernels;  // under mutex
  std::atomic<uint64_t> fused_chains{0};
  std::atomic<uint64_t> fallback_operations{0};
  std::vector<uint64_t> expert_bytes;  // under mutex
  ChainJob chain_job;
  ProductJob product_job;
  std::unique_ptr<SingleOperation> single_operation;
};

DeviceState& state() {
  static DeviceState device_state;
  return device_state;
}

bool is_pool_product(const ggml_tensor* node) {
  return node != nullptr && node->op == GGML_OP_MUL_MAT_ID && is_in_arena(node->src[0]) &&
         node->src[1]->type == GGML_TYPE_F32 && node->src[1]->nb[0] == sizeof(float) &&
         has_row_product(node->src[0]) && state().has_pool.load(std::memory_order_relaxed) &&
         node->src[2]->ne[1] <= state().max_pool_tokens.load(std::memory_order_relaxed);
}

template <class ExpertJob>
void run_on_pool(DeviceState& device, ExpertJob& job) {
  device.expert_bytes.resize(static_cast<size_t>(device.pool->slice_count()));
  for (int slice = 0; slice < device.pool->slice_count(); ++slice)
    device.expert_bytes[slice] += job.weight_bytes(slice);
  device.pool->run(job);
}

ggml_status compute_node(DeviceState& device, ggml_tensor* node) {
  device.fallback_operations.fetch_add(1, std::memory_order_relaxed);
  if (is_pool_product(node)) {
    device.product_job.prepare(node, *device.pool, device.kernels);
    run_on_pool(device, device.product_job);
    return GGML_STATUS_SUCCESS;
  }
  if (!device.single_operation) device.single_operation = std::make_unique<SingleOperation>();
  return device.single_operation->run(node);
}

ggml_status compute_graph(ggml_backend_t, ggml_cgraph* graph) {
  DeviceState& device = state();
  const std::lock_guard guard(device.mutex);
  const int count = ggml_graph_n_nodes(graph);
  for (int index = 0; index < count; ++index) {
    ggml_tensor* node = ggml_graph_node(graph, index);
    if (is_empty_operation(node)) continue;
    if (is_pool_product(node) && device.fuse_chains.load(std::memory_order_relaxed)) {
      if (const auto chain = match_chain(graph, index, device.kernels)) {
        device.chain_job.prepare(*chain, *device.pool);
        run_on_pool(device, device.chain_job);
        device.fused_chains.fetch_add(1, std::memory_order_relaxed);
        index += chain->node_count - 1;
        continue;
      }
    }
    if (const ggml_status status = compute_node(device, node); status != GGML_STATUS_SUCCESS) return status;
  }
  return GGML_STATUS_SUCCESS;
}

// ---------------------------------------------------------------- ggml's interface

const char* backend_name(ggml_backend_t) {
  return "STRATAD";
}
void backend_free(ggml_backend_t backend) {
  delete backend;
}

ggml_guid_t backend_guid() {
  static ggml_guid guid = {0x73, 0x74, 0x72, 0x61, 0x74, 0x61, 0x64, 0x2d,
                           0x65, 0x78, 0x70, 0x65, 0x72, 0x74, 0x73, 0x31};
  return &guid;
}

ggml_backend_t device_init(ggml_backend_dev_t device, const char*) {
  auto* backend = new ggml_backend{};
  backend->guid = backend_guid();
  backend->iface.get_name = backend_name;
  backend->iface.free = backend_free;
  backend->iface.graph_compute = compute_graph;
  backend->device = device;
  return backend;
}

const char* device_name(ggml_backend_dev_t) {
  return "STRATAD";
}
const char* device_description(ggml_backend_dev_t) {
  return "stratad expert pool";
}
void device_memory(ggml_backend_dev_t, size_t* free, size_t* total) {
  *free = *total = 0;
}
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) {
  return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}
void device_properties(ggml_backend_dev_t device, ggml_backend_dev_props* properties) {
  *properties = {};
  properties->name = device_name(device);
  properties->description = device_description(device);
  properties->type = device_type(device);
}
// Activations stay in the CPU's own buffers, so nothing is copied between us and ggml's CPU backend. The
// arena is reached through tensor overrides only: were it the default, ggml would put scratch memory into it.
ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t) {
  return ggml_backend_cpu_buffer_type();
}
bool device_supports_buffer(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
  return type == arena_buffer_type() || ggml_backend_buft_is_host(type);
}
bool device_supports_operation(ggml_backend_dev_t, const ggml_tensor* operation) {
  switch (operation->op) {
    case GGML_OP_NONE:
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
      return true;
    default:
      return belongs_to_chain(operation, is_pool_product);
  }
}

const char* registry_name(ggml_backend_reg_t) {
  return "STRATAD";
}
size_t registry_device_count(ggml_backend_reg_t) {
  return 1;
}
ggml_backend_dev_t registry_device(ggml_backend_reg_t registry, size_t) {
  static ggml_backend_device device = [registry] {
    ggml_backend_device made{};
    made.iface.get_name = device_name;
    made.iface.get_description = device_description;
    made.iface.get_memory = device_memory;
    made.iface.get_type = device_type;
    made.iface.get_props = device_properties;
    made.iface.init_backend = device_init;
    made.iface.get_buffer_type = device_buffer_type;
    made.iface.supports_op = device_supports_operation;
    made.iface.supports_buft = device_supports_buffer;
    made.reg = registry;
    return made;
  }();
  return &device;
}
void* registry_proc_address(ggml_backend_reg_t, const char*) {
  return nullptr;
}

ggml_backend_reg_t registry() {
  static ggml_backend_reg made = {
      GGML_BACKEND_API_VERSION,
      {registry_name, registry_device_count, registry_device, registry_proc_address},
      nullptr};
  return &made;
}

}  // namespace

ggml_backend_dev_t expert_device() {
  return registry_device(registry(), 0);
}

void register_expert_device() {
  static std::once_flag once;
  std::call_once(once, [] { ggml_backend_register(registry()); });
}

void attach_pool(std::shared_ptr<Pool> pool) {
  DeviceState& device = state();
  const std::lock_guard guard(device.mutex);
  device.has_pool.store(pool != nullptr, std::memory_order_relaxed);
  device.pool = std::move(pool);
}

void set_device_options(const DeviceOptions& options) {
  DeviceState& device = state();
  device.max_pool_tokens.store(options.max_pool_tokens, std::memory_order_relaxed);
  device.fuse_chains.store(options.fuse_chains, std::memory_order_relaxed);
  const std::lock_guard guard(device.mutex);
  device.kernels = options.kernels;
}

DeviceCounters device_counters() {
  DeviceState& device = state();
  const std::lock_guard guard(device.mutex);
  return {device.fused_chains.load(std::memory_order_relaxed),
          device.fallback_operations.load(std::memory_order_relaxed), device.expert_bytes};
}

}  // namespace stratad
