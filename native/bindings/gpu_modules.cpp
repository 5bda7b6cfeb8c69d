#include "bindings/gpu_modules.hpp"

#include <pybind11/stl.h>

#include "gpu/copy_rate.hpp"
#include "gpu/host_registration.hpp"
#include "gpu/modules.hpp"

namespace py = pybind11;

namespace stratad {
namespace {

using ReleaseGil = py::call_guard<py::gil_scoped_release>;

void bind_modules(py::module_& module) {
  py::class_<GpuModule>(module, "GpuModule")
      .def_readonly("path", &GpuModule::path)
      .def_readonly("backend", &GpuModule::backend)
      .def_readonly("error", &GpuModule::error)
      .def_readonly("device_count", &GpuModule::device_count);
  module.def("load_gpu_module", &load_gpu_module, py::arg("path"), ReleaseGil());
}

void bind_registration(py::module_& module) {
  py::enum_<RegistrationState>(module, "RegistrationState")
      .value("PINNED", RegistrationState::kPinned)
      .value("UNSUPPORTED", RegistrationState::kUnsupported)
      .value("REFUSED", RegistrationState::kRefused);
  py::class_<HostRegistration>(module, "HostRegistration")
      .def(py::init([](std::shared_ptr<Arena> arena, const std::string& backend, size_t chunk_bytes) {
             return std::make_unique<HostRegistration>(std::move(arena), backend, chunk_bytes);
           }),
           py::arg("arena"), py::arg("backend"), py::arg("chunk_bytes") = kRegistrationChunkBytes,
           ReleaseGil())
      .def_property_readonly("state", &HostRegistration::state)
      .def_property_readonly("pinned_bytes", &HostRegistration::pinned_bytes)
      .def_property_readonly("chunk_count", &HostRegistration::chunk_count)
      .def_property_readonly("bytes_before_refusal", &HostRegistration::bytes_before_refusal)
      .def_property_readonly("refused_chunk_bytes", &HostRegistration::refused_chunk_bytes)
      .def("release", &HostRegistration::release, ReleaseGil());
  module.def(
      "can_register_host",
      [](const std::string& backend) {
        ggml_backend_reg_t registry = ggml_backend_reg_by_name(backend.c_str());
        return registry != nullptr && can_register_host(registry);
      },
      py::arg("backend"));
}

}  // namespace

void bind_gpu_modules(py::module_& module) {
  bind_modules(module);
  bind_registration(module);
  module.def("measure_copy_rate", &measure_copy_rate, py::arg("arena"), py::arg("slice"), py::arg("device"),
             py::arg("limit_bytes") = size_t{1} << 30, ReleaseGil());
}

}  // namespace stratad
