// A GPU that is none: two devices, STANDIN0 and STANDIN1, whose kernels are ggml's CPU backend on one thread.
// It is stricter than a real one, so that what works here is not luck:
//
// - Its memory cannot be reached from outside: addresses are of pages without any access, and the data lie in
// a
//   second mapping that only this file knows. Whoever reads a device tensor directly gets a segmentation
//   fault.
// - Nothing handed over is done before somebody waits: graphs and asynchronous copies stand in a queue, and a
//   copy to the device reads its source only then. Results that are used too early, and sources that are
//   overwritten too early, show as wrong numbers.
// - A graph is read when it is handed over, and not afterwards.
//
// Faults and sizes are set through standin_set(name, value), or by the environment variable STANDIN_<NAME>:
//   memory_bytes   of each device (1 GiB)
//   fail_graph     the how manieth graph from now on fails; 0 none
//   fail_how       1: graph_compute says so; 2: waiting for it throws, as a lost device does; 3:
//   graph_compute says
//                  that there is no memory; 4: the process ends there, as CUDA's backend has it
//   refuse_above   buffers of more bytes are refused, whatever is free; 0 none
//   register_most  host memory of so many bytes can be registered; 0: not at all, as with Vulkan
// and standin_get(name) tells: graphs, nodes, bare_graphs (handed over without use counts), allocated_bytes,
// registered_bytes.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"

namespace {

constexpr int kDevices = 2;
constexpr size_t kAlignment = 128;

// ---------------------------------------------------------------- settings and counts

struct Settings {
  std::map<std::string, std::atomic<long>> values;
  Settings() {
    for (const auto& [name, value] : std::map<std::string, long>{{"memory_bytes", 1L << 30},
                                                                 {"fail_graph", 0},
                                                                 {"refuse_above", 0},
                                                                 {"fail_how", 1},
                                                                 {"register_most", 0},
                                                                 {"registered_bytes", 0},
                                                                 {"graphs", 0},
                                                                 {"nodes", 0},
                                                                 {"bare_graphs", 0},
                                                                 {"allocated_bytes", 0}}) {
      std::string variable = "STANDIN_" + name;
      std::transform(variable.begin(), variable.end(), variable.begin(), ::toupper);
      const char* text = std::getenv(variable.c_str());
      values[name] = text == nullptr ? value : std::atol(text);
    }
  }
};

std::atomic<long>& setting(const char* name) {
  static Settings settings;
  return settings.values.at(name);
}

// ---------------------------------------------------------------- memory

struct Memory {
  char* hidden = nullptr;   // where the data are
  char* address = nullptr;  // what the world is told
  size_t size = 0;
  int device = 0;
};

std::mutex memory_mutex;
std::map<char*, Memory*> memories;  // by address
std::atomic<long> allocated[kDevices];

char* hidden_address(const void* pointer) {
  const std::lock_guard guard(memory_mutex);
  auto* address = static_cast<char*>(const_cast<void*>(pointer));
  auto found = memories.upper_bound(address);
  if (found == memories.begin()) return nullptr;
  const Memory& memory = *std::prev(found)->second;
  if (address >= memory.address + memory.size) return nullptr;
  return memory.hidden + (address - memory.address);
}

Memory* allocate(int device, size_t size) {
  const long refused = setting("refuse_above");
  if (refused > 0 && static_cast<long>(size) > refused) return nullptr;
  if (allocated[device] + static_cast<long>(size) > setting("memory_bytes")) return nullptr;
  const size_t bytes = (size + 4096) / 4096 * 4096;
  auto* memory = new Memory{.size = bytes, .device = device};
  memory->hidden =
      static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  memory->address =
      static_cast<char*>(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  // What a device gives is not cleared: not-a-numbers show whoever reads before anything was written.
  std::memset(memory->hidden, 0xff, bytes);
  const std::lock_guard guard(memory_mutex);
  memories[memory->address] = memory;
  allocated[device] += static_cast<long>(size);
  setting("allocated_bytes") += static_cast<long>(size);
  return memory;
}

Memory* memory_of(ggml_backend_buffer_t buffer) {
  return static_cast<Memory*>(buffer->context);
}

void buffer_free(ggml_backend_buffer_t buffer) {
  Memory* memory = memory_of(buffer);
  {
    const std::lock_guard guard(memory_mutex);
    memories.erase(memory->address);
    allocated[memory->device] -= static_cast<long>(buffer->size);
    setting("allocated_bytes") -= static_cast<long>(buffer->size);
  }
  munmap(memory->hidden, memory->size);
  munmap(memory->address, memory->size);
  delete memory;
}
void* buffer_base(ggml_backend_buffer_t buffer) {
  return memory_of(buffer)->address;
}
void buffer_memset(ggml_backend_buffer_t, ggml_tensor* tensor, uint8_t value, size_t offset, size_t size) {
  std::memset(hidden_address(tensor->data) + offset, value, size);
}
void buffer_set(ggml_backend_buffer_t, ggml_tensor* tensor, const void* data, size_t offset, size_t size) {
  std::memcpy(hidden_address(tensor->data) + offset, data, size);
}
void buffer_get(ggml_backend_buffer_t, const ggml_tensor* tensor, void* data, size_t offset, size_t size) {
  std::memcpy(data, hidden_address(tensor->data) + offset, size);
}
void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) {
  std::memset(memory_of(buffer)->hidden, value, buffer->size);
}

// llama.cpp tells buffer types apart by their names.
const char* type_name(ggml_backend_buffer_type_t type) {
  return type->context == nullptr ? "STANDIN0" : "STANDIN1";
}
size_t type_alignment(ggml_backend_buffer_type_t) {
  return kAlignment;
}
ggml_backend_buffer_t type_allocate(ggml_backend_buffer_type_t type, size_t size) {
  const auto device = static_cast<int>(reinterpret_cast<intptr_t>(type->context));
  Memory* memory = allocate(device, size);
  if (memory == nullptr) return nullptr;
  ggml_backend_buffer_i interface{};
  interface.free_buffer = buffer_free;
  interface.get_base = buffer_base;
  interface.memset_tensor = buffer_memset;
  interface.set_tensor = buffer_set;
  interface.get_tensor = buffer_get;
  interface.clear = buffer_clear;
  return ggml_backend_buffer_init(type, interface, memory, size);
}

ggml_backend_dev_t device_at(int index);

ggml_backend_buffer_type_t buffer_type(int device) {
  static ggml_backend_buffer_type types[kDevices];
  types[device] = {{type_name, type_allocate, type_alignment, nullptr, nullptr, nullptr},
                   device_at(device),
                   reinterpret_cast<void*>(static_cast<intptr_t>(device))};
  return &types[device];
}

// ---------------------------------------------------------------- a graph as it was handed over

struct FreeContext {
  void operator()(ggml_context* context) const noexcept { ggml_free(context); }
};

// Headers of the nodes and all they read, with the data's hidden addresses, and the use counts.
class Recorded {
 public:
  explicit Recorded(ggml_cgraph* graph) {
    const int count = ggml_graph_n_nodes(graph);
    const auto nodes = static_cast<size_t>(count) + 1;
    context_.reset(ggml_init(
        {nodes * (GGML_MAX_SRC + 2) * ggml_tensor_overhead() + ggml_graph_overhead_custom(nodes, false),
         nullptr, true}));
    graph_ = ggml_new_graph_custom(context_.get(), nodes, false);
    if (graph->use_counts == nullptr) ++setting("bare_graphs");
    for (int index = 0; index < count; ++index) {
      ggml_tensor* node = ggml_graph_node(graph, index);
      ggml_tensor* copy = copy_of(node);
      for (int source = 0; source < GGML_MAX_SRC; ++source)
        if (node->src[source] != nullptr) copy->src[source] = copy_of(node->src[source]);
      ggml_graph_add_node(graph_, copy);
      if (graph->use_counts == nullptr) continue;
      const size_t position = ggml_hash_insert(&graph_->visited_hash_set, copy);
      if (position < graph_->visited_hash_set.size)
        graph_->use_counts[position] = ggml_node_get_use_count(graph, index);
    }
    setting("nodes") += count;
  }
  ggml_cgraph* graph() { return graph_; }

 private:
  ggml_tensor* copy_of(const ggml_tensor* tensor) {
    ggml_tensor*& copy = copies_[tensor];
    if (copy != nullptr) return copy;
    copy = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, 1);
    ggml_tensor* made = copy;
    *made = *tensor;
    made->buffer = nullptr;
    made->data = tensor->data == nullptr ? nullptr : hidden_address(tensor->data);
    if (tensor->data != nullptr && made->data == nullptr && ggml_nelements(tensor) > 0)
      GGML_ABORT("standin: %s is not in this device's memory", tensor->name);
    if (tensor->view_src != nullptr) made->view_src = copy_of(tensor->view_src);
    for (ggml_tensor*& source : made->src) source = nullptr;
    return made;
  }

  std::unique_ptr<ggml_context, FreeContext> context_;
  ggml_cgraph* graph_;
  std::unordered_map<const ggml_tensor*, ggml_tensor*> copies_;
};

// ---------------------------------------------------------------- backend

class Stream {
 public:
  Stream() : cpu_(ggml_backend_cpu_init()) {
    auto parameters = ggml_threadpool_params_default(1);
    parameters.poll = 0;
    threadpool_ = ggml_threadpool_new(&parameters);
    ggml_backend_cpu_set_n_threads(cpu_, 1);
    ggml_backend_cpu_set_threadpool(cpu_, threadpool_);
  }
  ~Stream() {
    ggml_backend_free(cpu_);
    ggml_threadpool_free(threadpool_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void add(std::function<void()> work) {
    const std::lock_guard guard(mutex_);
    queue_.push_back(std::move(work));
  }
  // Does everything that stands in the queue; what fails drops the rest.
  void drain() {
    const std::lock_guard running(run_mutex_);
    while (true) {
      std::function<void()> work;
      {
        const std::lock_guard guard(mutex_);
        if (queue_.empty()) return;
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      try {
        work();
      } catch (...) {
        const std::lock_guard guard(mutex_);
        queue_.clear();
        throw;
      }
    }
  }
  ggml_status compute(ggml_cgraph* graph) {
    ++setting("graphs");
    const bool fails = setting("fail_graph") > 0 && --setting("fail_graph") == 0;
    if (fails && setting("fail_how") == 1) return GGML_STATUS_FAILED;
    if (fails && setting("fail_how") == 4) GGML_ABORT("standin error: an illegal memory access");
    if (fails && setting("fail_how") == 3) return GGML_STATUS_ALLOC_FAILED;
    auto recorded = std::make_shared<Recorded>(graph);
    add([this, recorded, fails] {
      if (fails) throw std::runtime_error("standin: the device was lost");
      if (ggml_backend_graph_compute(cpu_, recorded->graph()) != GGML_STATUS_SUCCESS)
        throw std::runtime_error("standin: computing failed");
    });
    return GGML_STATUS_SUCCESS;
  }

 private:
  ggml_backend_t cpu_;
  ggml_threadpool_t threadpool_;
  std::mutex mutex_, run_mutex_;
  std::deque<std::function<void()>> queue_;
};

Stream& stream(ggml_backend_t backend) {
  return *static_cast<Stream*>(backend->context);
}

const char* backend_name(ggml_backend_t) {
  return "STANDIN";
}
void backend_free(ggml_backend_t backend) {
  delete &stream(backend);
  delete backend;
}
void backend_set(ggml_backend_t backend, ggml_tensor* tensor, const void* data, size_t offset, size_t size) {
  char* target = hidden_address(tensor->data) + offset;
  stream(backend).add([=] { std::memcpy(target, data, size); });
}
void backend_get(ggml_backend_t backend, const ggml_tensor* tensor, void* data, size_t offset, size_t size) {
  const char* source = hidden_address(tensor->data) + offset;
  stream(backend).add([=] { std::memcpy(data, source, size); });
}
void backend_synchronize(ggml_backend_t backend) {
  stream(backend).drain();
}
ggml_status backend_compute(ggml_backend_t backend, ggml_cgraph* graph) {
  return stream(backend).compute(graph);
}

ggml_guid_t backend_guid() {
  static ggml_guid guid = {0x73, 0x74, 0x61, 0x6e, 0x64, 0x69, 0x6e, 1};
  return &guid;
}

// ---------------------------------------------------------------- devices

int index_of(ggml_backend_dev_t device) {
  return static_cast<int>(reinterpret_cast<intptr_t>(device->context));
}

const char* device_name(ggml_backend_dev_t device) {
  return index_of(device) == 0 ? "STANDIN0" : "STANDIN1";
}
const char* device_description(ggml_backend_dev_t) {
  return "a GPU for tests that is none";
}
void device_memory(ggml_backend_dev_t device, size_t* free, size_t* total) {
  const long size = setting("memory_bytes");
  *total = static_cast<size_t>(size);
  *free = static_cast<size_t>(std::max(0L, size - allocated[index_of(device)]));
}
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) {
  return GGML_BACKEND_DEVICE_TYPE_GPU;
}
void device_properties(ggml_backend_dev_t device, ggml_backend_dev_props* properties) {
  *properties = {};
  properties->name = device_name(device);
  properties->description = device_description(device);
  properties->type = device_type(device);
  device_memory(device, &properties->memory_free, &properties->memory_total);
  properties->caps.async = true;
}
ggml_backend_t device_init(ggml_backend_dev_t device, const char*) {
  auto* backend = new ggml_backend{};
  backend->guid = backend_guid();
  backend->iface.get_name = backend_name;
  backend->iface.free = backend_free;
  backend->iface.set_tensor_async = backend_set;
  backend->iface.get_tensor_async = backend_get;
  backend->iface.synchronize = backend_synchronize;
  backend->iface.graph_compute = backend_compute;
  backend->device = device;
  backend->context = new Stream;
  return backend;
}
ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t device) {
  return buffer_type(index_of(device));
}
bool device_supports_buffer(ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
  return type == buffer_type(index_of(device));
}
bool device_supports_operation(ggml_backend_dev_t device, const ggml_tensor* operation) {
  for (const ggml_tensor* source : operation->src)
    if (source != nullptr && source->buffer != nullptr &&
        !device_supports_buffer(device, source->buffer->buft))
      return false;
  return ggml_backend_dev_supports_op(ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0), operation);
}

const char* registry_name(ggml_backend_reg_t) {
  return "STANDIN";
}
size_t registry_count(ggml_backend_reg_t) {
  return kDevices;
}
ggml_backend_dev_t registry_device(ggml_backend_reg_t, size_t index) {
  return device_at(static_cast<int>(index));
}
std::map<void*, size_t>& registered() {
  static std::map<void*, size_t> ranges;
  return ranges;
}

std::mutex& registered_mutex() {
  static std::mutex mutex;
  return mutex;
}

bool register_host(void* begin, size_t size) {
  if (std::getenv("GGML_CUDA_REGISTER_HOST") == nullptr) return false;  // as CUDA's backend
  const std::lock_guard guard(registered_mutex());
  if (setting("registered_bytes") + static_cast<long>(size) > setting("register_most")) return false;
  registered()[begin] = size;
  setting("registered_bytes") += static_cast<long>(size);
  return true;
}

void unregister_host(void* begin) {
  const std::lock_guard guard(registered_mutex());
  const auto found = registered().find(begin);
  if (found == registered().end()) std::abort();
  static_cast<void>(*static_cast<volatile char*>(begin));  // the page must still be there
  setting("registered_bytes") -= static_cast<long>(found->second);
  registered().erase(found);
}

void* registry_address(ggml_backend_reg_t, const char* name) {
  if (setting("register_most") == 0) return nullptr;
  if (std::strcmp(name, "ggml_backend_register_host_buffer") == 0)
    return reinterpret_cast<void*>(register_host);
  if (std::strcmp(name, "ggml_backend_unregister_host_buffer") == 0)
    return reinterpret_cast<void*>(unregister_host);
  return nullptr;
}
ggml_backend_reg_t registry() {
  static ggml_backend_reg made = {
      GGML_BACKEND_API_VERSION, {registry_name, registry_count, registry_device, registry_address}, nullptr};
  return &made;
}

ggml_backend_dev_t device_at(int index) {
  static ggml_backend_device devices[kDevices];
  static std::once_flag once;
  std::call_once(once, [] {
    for (int each = 0; each < kDevices; ++each) {
      ggml_backend_device& made = devices[each];
      made.iface.get_name = device_name;
      made.iface.get_description = device_description;
      made.iface.get_memory = device_memory;
      made.iface.get_type = device_type;
      made.iface.get_props = device_properties;
      made.iface.init_backend = device_init;
      made.iface.get_buffer_type = device_buffer_type;
      made.iface.supports_op = device_supports_operation;
      made.iface.supports_buft = device_supports_buffer;
      made.reg = registry();
      made.context = reinterpret_cast<void*>(static_cast<intptr_t>(each));
    }
  });
  return &devices[index];
}

}  // namespace

#define STANDIN_API extern "C" __attribute__((visibility("default")))

STANDIN_API ggml_backend_reg_t ggml_backend_init() {
  return registry();
}
STANDIN_API void standin_set(const char* name, long value) {
  setting(name) = value;
}
STANDIN_API long standin_get(const char* name) {
  return setting(name);
}
