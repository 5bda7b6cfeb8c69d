#include "bindings/device.hpp"

#include <pybind11/stl.h>
#include <strings.h>

#include <map>
#include <stdexcept>
#include <vector>

#include "backend/device.hpp"
#include "kernels/tiles.hpp"

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

// The weight types that these kernels are for.
std::vector<std::string> kernel_types(const std::string& kernels) {
  std::vector<std::string> names;
  if (const auto set = kernels_named(kernels))
    for (int type = 0; type < GGML_TYPE_COUNT; ++type)
      if (find_row_kernel(static_cast<ggml_type>(type), *set) != nullptr)
        names.emplace_back(ggml_type_name(static_cast<ggml_type>(type)));
  return names;
}

// Throws std::invalid_argument for limits that cannot be, and for tiles that this thread may not use.
ProductSettings products_of(const std::string& kernels, const std::map<std::string, BatchLimits>& limits) {
  ProductSettings products(kernels_named(kernels));
  for (const auto& [name, of_type] : limits) {
    if (of_type.panel_tokens < 1 || of_type.tile_tokens < 1 || of_type.expert_pool_tokens.value_or(1) < 1 ||
        of_type.dense_pool_tokens.value_or(1) < 1)
      throw std::invalid_argument("a limit of " + name + " is below one token");
    if (of_type.tile_tokens != kNoTokens)
      if (const TileObjection refused = prepare_tiles())
        throw std::invalid_argument("tiles cannot be used: " + *refused);
    products.limits[static_cast<size_t>(weight_type_named(name))] = of_type;
  }
  return products;
}

}  // namespace

ggml_type weight_type_named(const std::string& wanted) {
  for (int type = 0; type < GGML_TYPE_COUNT; ++type)
    if (const char* name = ggml_type_name(static_cast<ggml_type>(type));
        name != nullptr && strcasecmp(name, wanted.c_str()) == 0)
      return static_cast<ggml_type>(type);
  throw std::invalid_argument("no weight type is called '" + wanted + "'");
}

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
  py::class_<BatchLimits>(module, "BatchLimits")
      .def(py::init([](int panel_tokens, int tile_tokens, std::optional<int> expert_pool_tokens,
                       std::optional<int> dense_pool_tokens) {
             return BatchLimits{panel_tokens, tile_tokens, expert_pool_tokens, dense_pool_tokens};
           }),
           py::kw_only(), py::arg("panel_tokens") = BatchLimits{}.panel_tokens,
           py::arg("tile_tokens") = BatchLimits{}.tile_tokens, py::arg("expert_pool_tokens") = std::nullopt,
           py::arg("dense_pool_tokens") = std::nullopt);
  module.attr("NO_TOKENS") = kNoTokens;
  module.attr("PANEL_TOKENS") = BatchLimits{}.panel_tokens;
  module.def(
      "set_device_options",
      [](std::optional<int> max_pool_tokens, bool fuse_chains, const std::string& kernels,
         const std::map<std::string, BatchLimits>& limits) {
        set_device_options({max_pool_tokens, fuse_chains, products_of(kernels, limits)});
      },
      py::arg("max_pool_tokens") = std::nullopt, py::arg("fuse_chains") = true, py::arg("kernels") = "ggml",
      py::arg("limits") = std::map<std::string, BatchLimits>{});
  module.def("supported_kernels", &supported_kernels);
  module.def("has_panels", &kernels_have_panels, py::arg("kernels"));
  module.def("kernel_types", &kernel_types, py::arg("kernels"));
  module.def("prepare_tiles", [](Pool& pool) { return prepare_tiles(pool); }, py::arg("pool"), ReleaseGil());
  module.attr("ROW_BY_ROW_TOKENS") = kRowByRowTokens;
  module.def("device_counters", &device_counters, ReleaseGil());
}

}  // namespace stratad
