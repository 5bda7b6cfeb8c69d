// What Python sees of GPU modules, devices, registered memory and copy rates.
#pragma once

#include <pybind11/pybind11.h>

namespace stratad {

// After the arena's binding: functions here take one.
void bind_gpu_modules(pybind11::module_& module);

}  // namespace stratad
