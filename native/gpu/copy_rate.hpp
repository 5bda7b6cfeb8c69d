// How fast a GPU reads the pages of one slice of an arena.
#pragma once

#include <cstddef>
#include <string>

#include "arena/arena.hpp"

namespace stratad {

// Bytes a second from the slice's pages to the device's memory, over copies as an upload of experts makes
// them: in the arena's own pieces. At most `limit_bytes` are copied, after one untimed round over the first
// of them. 0 for a slice without pages. Throws std::invalid_argument for an unknown device or slice and
// std::runtime_error when the device has no memory left.
double measure_copy_rate(const Arena& arena, int slice, const std::string& device_name, size_t limit_bytes);

}  // namespace stratad
