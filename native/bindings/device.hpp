// The part of the Python face that sets and counts what the pool's device does.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>

#include "kernels/row_kernel.hpp"

namespace stratad {

// The row kernels of a name that supported_kernels() gives. Throws std::invalid_argument for any other.
std::optional<InstructionSet> kernels_named(const std::string& wanted);

// The weight type of this name, as GGUF tools or ggml spell it (Q4_K, q4_K). Throws std::invalid_argument.
ggml_type weight_type_named(const std::string& wanted);

void bind_device(pybind11::module_& module);

}  // namespace stratad
