// A loadable ggml backend that stands in for a GPU's where no computing is needed: its memory is the host's,
// and it counts what is registered with it, refuses when told to, and notices what no GPU runtime forgives.
//
// Tests steer it through the functions at the end, by opening the same file again.
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "ggml-backend-impl.h"

namespace {

struct Registry {
  std::mutex mutex;
  std::map<char*, size_t> registered;
  size_t refuse_beyond_bytes = SIZE_MAX;  // in all
  size_t register_calls = 0;
  size_t mistakes = 0;  // unregistered twice, or registered without the environment variable, or overlapping
  size_t largest_chunk_bytes = 0;
  size_t copied_bytes = 0;
  bool is_host_registration_known = true;

  size_t registered_bytes() const {
    size_t bytes = 0;
    for (const auto& [begin, size] : registered) bytes += size;
    return bytes;
  }
};

Registry& state() {
  static Registry instance;
  return instance;
}

bool register_host(void* begin, size_t size) {
  const std::lock_guard guard(state().mutex);
  ++state().register_calls;
  if (std::getenv("GGML_CUDA_REGISTER_HOST") == nullptr) {
    ++state().mistakes;
    return false;
  }
  char* first = static_cast<char*>(begin);
  for (const auto& [other, other_size] : state().registered)
    if (first < other + other_size && other < first + size) ++state().mistakes;
  if (state().registered_bytes() + size > state().refuse_beyond_bytes) return false;
  // A device may read all of it: this faults where the memory is not mapped.
  for (size_t offset = 0; offset < size; offset += 4096)
    static_cast<void>(*static_cast<volatile char*>(first + offset));
  state().registered[first] = size;
  if (size > state().largest_chunk_bytes) state().largest_chunk_bytes = size;
  return true;
}

void unregister_host(void* begin) {
  const std::lock_guard guard(state().mutex);
  const auto found = state().registered.find(static_cast<char*>(begin));
  if (found == state().registered.end()) {
    ++state().mistakes;
    return;
  }
  // The pages must still be there: a runtime writes to their page tables.
  static_cast<void>(*static_cast<volatile char*>(found->first));
  state().registered.erase(found);
}

struct Card {
  const char* name;
  const char* device_id;
};
Card cards[] = {{"Fake0", "0000:41:00.0-v0"}, {"Fake1", nullptr}};
constexpr size_t kMemoryBytes = size_t{1} << 30;

const Card& card(ggml_backend_dev_t device) {
  return *static_cast<Card*>(device->context);
}

ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t device);

ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, size_t size) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 128, size + 1) != 0) return nullptr;
  ggml_backend_buffer_i calls{};
  calls.free_buffer = [](ggml_backend_buffer_t buffer) { std::free(buffer->context); };
  calls.get_base = [](ggml_backend_buffer_t buffer) { return buffer->context; };
  calls.set_tensor = [](ggml_backend_buffer_t, ggml_tensor* tensor, const void* bytes, size_t offset,
                        size_t count) {
    std::memcpy(static_cast<char*>(tensor->data) + offset, bytes, count);
    const std::lock_guard guard(state().mutex);
    state().copied_bytes += count;
  };
  calls.get_tensor = [](ggml_backend_buffer_t, const ggml_tensor* tensor, void* bytes, size_t offset,
                        size_t count) {
    std::memcpy(bytes, static_cast<const char*>(tensor->data) + offset, count);
  };
  calls.clear = [](ggml_backend_buffer_t buffer, uint8_t value) {
    std::memset(buffer->context, value, buffer->size);
  };
  return ggml_backend_buffer_init(type, calls, memory, size);
}

ggml_guid identity = {0x73, 0x74, 0x72, 0x61, 0x74, 0x61, 0x64, 0x66,
                      0x61, 0x6b, 0x65, 0x67, 0x70, 0x75, 0x30, 0x31};

ggml_backend_t open_backend(ggml_backend_dev_t device, const char*) {
  auto* backend = new ggml_backend{};
  backend->guid = &identity;
  backend->device = device;
  backend->iface.get_name = [](ggml_backend_t self) { return card(self->device).name; };
  backend->iface.free = [](ggml_backend_t self) { delete self; };
  backend->iface.graph_compute = [](ggml_backend_t, ggml_cgraph*) { return GGML_STATUS_FAILED; };
  return backend;
}

ggml_backend_device_i device_calls() {
  ggml_backend_device_i calls{};
  calls.get_name = [](ggml_backend_dev_t device) { return card(device).name; };
  calls.get_description = [](ggml_backend_dev_t) { return "stand-in that computes nothing"; };
  calls.get_memory = [](ggml_backend_dev_t, size_t* free_bytes, size_t* total_bytes) {
    *free_bytes = *total_bytes = kMemoryBytes;
  };
  calls.get_type = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; };
  calls.get_props = [](ggml_backend_dev_t device, ggml_backend_dev_props* properties) {
    *properties = {};
    properties->name = card(device).name;
    properties->description = "stand-in that computes nothing";
    properties->memory_free = properties->memory_total = kMemoryBytes;
    properties->type = GGML_BACKEND_DEVICE_TYPE_GPU;
    properties->device_id = card(device).device_id;
  };
  calls.init_backend = open_backend;
  calls.get_buffer_type = buffer_type;
  calls.supports_op = [](ggml_backend_dev_t, const ggml_tensor*) { return false; };
  calls.supports_buft = [](ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
    return type->device == device;
  };
  return calls;
}

ggml_backend_reg_t registry();

ggml_backend_dev_t device_at(ggml_backend_reg_t, size_t index) {
  static ggml_backend_device devices[] = {{device_calls(), registry(), &cards[0]},
                                          {device_calls(), registry(), &cards[1]}};
  return &devices[index];
}

ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t device) {
  static ggml_backend_buffer_type types[2];
  auto& type = types[&card(device) - cards];
  type.iface.get_name = [](ggml_backend_buffer_type_t self) { return card(self->device).name; };
  type.iface.alloc_buffer = allocate;
  type.iface.get_alignment = [](ggml_backend_buffer_type_t) { return size_t{128}; };
  type.device = device;
  return &type;
}

ggml_backend_reg_t registry() {
  static ggml_backend_reg instance = [] {
    ggml_backend_reg made{};
    made.api_version = GGML_BACKEND_API_VERSION;
    made.iface.get_name = [](ggml_backend_reg_t) { return "FakeGPU"; };
    made.iface.get_device_count = [](ggml_backend_reg_t) { return std::size(cards); };
    made.iface.get_device = device_at;
    made.iface.get_proc_address = [](ggml_backend_reg_t, const char* name) -> void* {
      if (!state().is_host_registration_known) return nullptr;
      if (std::strcmp(name, "ggml_backend_register_host_buffer") == 0)
        return reinterpret_cast<void*>(register_host);
      if (std::strcmp(name, "ggml_backend_unregister_host_buffer") == 0)
        return reinterpret_cast<void*>(unregister_host);
      return nullptr;
    };
    return made;
  }();
  return &instance;
}

}  // namespace

extern "C" {
GGML_BACKEND_API ggml_backend_reg_t ggml_backend_init(void);
ggml_backend_reg_t ggml_backend_init(void) {
  return registry();
}

GGML_BACKEND_API void fake_gpu_refuse_beyond(size_t bytes) {
  state().refuse_beyond_bytes = bytes;
}
GGML_BACKEND_API void fake_gpu_know_registration(bool is_known) {
  state().is_host_registration_known = is_known;
}
GGML_BACKEND_API size_t fake_gpu_registered_bytes(void) {
  return state().registered_bytes();
}
GGML_BACKEND_API size_t fake_gpu_registered_chunks(void) {
  return state().registered.size();
}
GGML_BACKEND_API size_t fake_gpu_register_calls(void) {
  return state().register_calls;
}
GGML_BACKEND_API size_t fake_gpu_largest_chunk_bytes(void) {
  return state().largest_chunk_bytes;
}
GGML_BACKEND_API size_t fake_gpu_mistakes(void) {
  return state().mistakes;
}
GGML_BACKEND_API size_t fake_gpu_copied_bytes(void) {
  return state().copied_bytes;
}
}
