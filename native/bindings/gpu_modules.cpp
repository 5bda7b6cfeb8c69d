#include "bindings/gpu_modules.hpp"

#include <pybind11/stl.h>

#include "gpu/copy_rate.hpp"
#include "gpu/host_registration.hpp"
#include "gpu/modules.hpp"

namespace py = pybind11;

namespace stratad {
namespace {

using ReleaseGil = py::call_guard<py::gil_scoped_release>;

void bind_devices(py::module_& module) {
  py::class_<GpuModule>(module, "GpuModule")
      .def_readonly("path", &GpuModule::path)
      .def_readonly("backend", &GpuModule::backend)
      .def_readonly("error", &GpuModule::error)
      .def_readonly("device_count", &GpuModule::device_count);
  py::class_<GpuDevice>(module, "GpuDevice")
      .def_readonly("name", &GpuDevice::name)
      .def_readonly("description", &GpuDevice::description)
      .def_readonly("backend", &GpuDevice::backend)
      .def_readonly("device_id", &GpuDevice::device_id)
      .def_readonly("memory_free_bytes", &GpuDevice::memory_free_bytes)
      .def_readonly("memory_total_bytes", &GpuDevice::memory_total_bytes)
      .def_readonly("is_integrated", &GpuDevice::is_integrated)
      .def_readonly("can_register_host", &GpuDevice::can_register_host);
  module.def("load_gpu_module", &load_gpu_module, py::arg("path"), ReleaseGil());
  module.def("gpu_devices", &gpu_devices, ReleaseGil());
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
}

}  // namespace

void bind_gpu_modules(py::module_& module) {
  bind_devices(module);
  bind_registration(module);
  module.def("measure_copy_rate", &measure_copy_rate, py::arg("arena"), py::arg("slice"), py::arg("device"),
             py::arg("limit_bytes") = size_t{1} << 30, ReleaseGil());
}

}  // namespace stratad
