#include "bindings/device.hpp"

#include <pybind11/stl.h>

#include <stdexcept>
#include <vector>

#include "backend/device.hpp"

namespace py = pybind11;

namespace stratad {
namespace {

using ReleaseGil = py::call_guard<py::gil_scoped_release>;

struct NamedSet {
  const char* name;
  std::optional<InstructionSet> set;
};
constexpr NamedSet kKernelNames[] = {
    {"avx512", InstructionSet::kAvx512Vnni}, {"avx2", InstructionSet::kAvx2}, {"ggml", std::nullopt}};

// What this CPU can run, best first.
std::vector<std::string> supported_kernels() {
  std::vector<std::string> names;
  for (const auto& [name, set] : kKernelNames)
    if (!set || cpu_has(*set)) names.emplace_back(name);
  return names;
}

// Whether these kernels multiply many tokens at once, for some weight types at least.
bool kernels_have_panels(const std::string& kernels) {
  const auto set = kernels_named(kernels);
  return set && has_panels(*set);
}

}  // namespace

std::optional<InstructionSet> kernels_named(const std::string& wanted) {
  for (const auto& [name, set] : kKernelNames)
    if (wanted == name && (!set || cpu_has(*set))) return set;
  throw std::invalid_argument("no kernels for this CPU are called '" + wanted + "'");
}

void bind_device(py::module_& module) {
  py::class_<DeviceCounters>(module, "DeviceCounters")
      .def_readonly("fused_chains", &DeviceCounters::fused_chains)
      .def_readonly("fallback_operations", &DeviceCounters::fallback_operations)
      .def_readonly("expert_bytes", &DeviceCounters::expert_bytes)
      .def_readonly("graphs", &DeviceCounters::graphs)
      .def_readonly("dense_jobs", &DeviceCounters::dense_jobs)
      .def_readonly("lane_products", &DeviceCounters::lane_products)
      .def_readonly("attentions", &DeviceCounters::attentions)
      .def_readonly("stretches", &DeviceCounters::stretches)
      .def_readonly("whole_graphs", &DeviceCounters::whole_graphs)
      .def_readonly("dense_bytes", &DeviceCounters::dense_bytes);
  module.def("attach_pool", &attach_pool, py::arg("pool"), ReleaseGil());
  module.def(
      "set_device_options",
      [](std::optional<int> max_pool_tokens, bool fuse_chains, const std::string& kernels) {
        set_device_options({max_pool_tokens, fuse_chains, kernels_named(kernels)});
      },
      py::arg("max_pool_tokens") = std::nullopt, py::arg("fuse_chains") = true, py::arg("kernels") = "ggml");
  module.def("supported_kernels", &supported_kernels);
  module.def("has_panels", &kernels_have_panels, py::arg("kernels"));
  module.attr("ROW_BY_ROW_TOKENS") = kRowByRowTokens;
  module.def("device_counters", &device_counters, ReleaseGil());
}

}  // namespace stratad
