// The part of the Python face that `stratactl bench` uses.
#pragma once

#include <pybind11/pybind11.h>

namespace stratad {

void bind_measure(pybind11::module_& module);

}  // namespace stratad
