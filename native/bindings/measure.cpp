#include "bindings/measure.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/device.hpp"
#include "measure/batch_probe.hpp"
#include "measure/layer_probe.hpp"
#include "measure/probe_memory.hpp"
#include "measure/read_probe.hpp"

namespace py = pybind11;

namespace stratad {
namespace {

// Runs a call without the GIL and lets Python's signal handlers speak now and then: Ctrl-C ends the call with
// what the handler raised.
template <class Call>
auto interruptible(Call call) {
  bool is_interrupted = false;
  const GoOn go_on = [&is_interrupted] {
    const py::gil_scoped_acquire gil;
    is_interrupted = is_interrupted || PyErr_CheckSignals() != 0;
    return !is_interrupted;
  };
  try {
    auto result = [&] {
      const py::gil_scoped_release release;
      return call(go_on);
    }();
    if (is_interrupted) throw py::error_already_set();
    return result;
  } catch (const LoadCancelled&) {
    throw py::error_already_set();
  }
}

void bind_batches(py::module_& module) {
  module.def(
      "can_place_weights",
      [](const std::string& weight_type, int64_t columns) {
        return can_place_weights(weight_type_named(weight_type), columns);
      },
      py::arg("weight_type"), py::arg("columns"));
  py::enum_<BatchPath>(module, "BatchPath")
      .value("ROWS", BatchPath::kRows)
      .value("PANELS", BatchPath::kPanels)
      .value("TILES", BatchPath::kTiles)
      .value("GGML", BatchPath::kGgml);
  py::enum_<BatchForm>(module, "BatchForm")
      .value("EXPERTS", BatchForm::kExperts)
      .value("DENSE", BatchForm::kDense);
  py::class_<BatchProbe>(module, "BatchProbe")
      .def(py::init([](std::shared_ptr<Pool> pool, const std::string& weight_type, const std::string& kernels,
                       int64_t rows, int64_t columns, int64_t matrix_count, int64_t used_count) {
             const BatchShape shape{weight_type_named(weight_type), rows, columns, matrix_count, used_count};
             return interruptible([&](const GoOn& go_on) {
               return std::make_unique<BatchProbe>(shape, std::move(pool), kernels_named(kernels),
                                                   [&go_on](const char*, double) { return go_on(); });
             });
           }),
           py::arg("pool"), py::kw_only(), py::arg("weight_type"), py::arg("kernels"),
           py::arg("rows") = kProbeRows, py::arg("columns") = kProbeColumns, py::arg("matrix_count") = 64,
           py::arg("used_count") = 8)
      .def("offers", &BatchProbe::offers, py::arg("path"))
      .def("sample", &BatchProbe::sample, py::arg("path"), py::arg("form"), py::arg("tokens_per_matrix"),
           py::call_guard<py::gil_scoped_release>());
}

}  // namespace

void bind_measure(py::module_& module) {
  bind_batches(module);
  py::enum_<ReadPattern>(module, "ReadPattern")
      .value("STREAM", ReadPattern::kStream)
      .value("EXPERTS", ReadPattern::kExperts)
      .value("PRODUCTS", ReadPattern::kProducts);
  py::class_<ReadProbe>(module, "ReadProbe")
      .def(py::init<std::vector<std::shared_ptr<Arena>>, std::shared_ptr<Pool>, ReadPattern>(),
           py::arg("parts"), py::arg("pool"), py::arg("pattern"))
      .def(
          "sample",
          [](ReadProbe& probe, double seconds) {
            const ReadSample sample =
                interruptible([&](const GoOn& go_on) { return probe.sample(seconds, go_on); });
            return std::pair(sample.bytes, sample.seconds);
          },
          py::arg("seconds"));
  module.def(
      "place_probe_memory",
      [](size_t size_bytes, std::shared_ptr<Pool> pool) {
        return interruptible([&](const GoOn& go_on) {
          return place_probe_memory(size_bytes, std::move(pool),
                                    [&go_on](const char*, double) { return go_on(); });
        });
      },
      py::arg("size_bytes"), py::arg("pool"));
  module.def(
      "measure_layers",
      [](Pool& pool, int layer_count, double limit_seconds, int phase_count, int tasks_per_worker,
         double task_seconds, double gap_seconds, bool meets) {
        const LayerShape shape{phase_count, tasks_per_worker, task_seconds, gap_seconds, meets};
        const std::vector<double> seconds = interruptible([&](const GoOn& go_on) {
          return measure_layers(pool, shape, layer_count, limit_seconds, go_on);
        });
        return py::array_t<double>(static_cast<py::ssize_t>(seconds.size()), seconds.data());
      },
      py::arg("pool"), py::kw_only(), py::arg("layer_count"), py::arg("limit_seconds"),
      py::arg("phase_count") = 2, py::arg("tasks_per_worker") = 3, py::arg("task_seconds") = 0.0,
      py::arg("gap_seconds") = 0.0, py::arg("meets") = false);
}

}  // namespace stratad
