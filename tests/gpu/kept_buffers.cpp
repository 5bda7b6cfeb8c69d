// Loaded before libvulkan in tests on Mesa's software device: no buffer object is ever destroyed.
//
// A descriptor set may go on naming a buffer that is gone, as long as no shader uses that binding (Vulkan's
// rules for valid descriptors), and ggml's sets do: each has more bindings than most shaders, and keeps what
// an earlier shader left in the others. Mesa 22.3's driver takes references to every binding of a set, so it
// writes to memory that was freed with the buffer, and the process dies some time later. Device memory is
// freed as ever; what stays is a small object for each buffer.
#include <dlfcn.h>

#include <cstring>

namespace {

using Function = void (*)();
using GetAddress = Function (*)(void* parent, const char* name);

GetAddress next(const char* name) {
  static void* library = dlopen("libvulkan.so.1", RTLD_NOW);
  return library == nullptr ? nullptr : reinterpret_cast<GetAddress>(dlsym(library, name));
}

void keep(void* /*device*/, void* /*buffer*/, const void* /*allocator*/) {}

bool is_destruction(const char* name) {
  return std::strcmp(name, "vkDestroyBuffer") == 0;
}

Function get_device_address(void* device, const char* name) {
  static const GetAddress found = next("vkGetDeviceProcAddr");
  if (is_destruction(name)) return reinterpret_cast<Function>(keep);
  return found == nullptr ? nullptr : found(device, name);
}

}  // namespace

extern "C" Function vkGetDeviceProcAddr(void* device, const char* name) {
  return get_device_address(device, name);
}

extern "C" Function vkGetInstanceProcAddr(void* instance, const char* name) {
  static const GetAddress found = next("vkGetInstanceProcAddr");
  if (is_destruction(name)) return reinterpret_cast<Function>(keep);
  if (std::strcmp(name, "vkGetDeviceProcAddr") == 0) return reinterpret_cast<Function>(get_device_address);
  return found == nullptr ? nullptr : found(instance, name);
}
