#include "measure/probe_memory.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "ggml-cpu.h"
#include "ggml.h"

namespace stratad {
namespace {

constexpr int64_t kPatternRows = 64;
constexpr size_t kPageBytes = 4096;

// Some rows of ordinary weights. The kernels' time does not depend on what they hold, as long as no number is
// odd.
std::vector<std::byte> weight_pattern(ggml_type type, int64_t columns) {
  std::vector<float> values(static_cast<size_t>(kPatternRows * columns));
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.f, 0.02f);
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  std::vector<std::byte> pattern(kPatternRows * ggml_row_size(type, columns));
  ggml_quantize_chunk(type, values.data(), pattern.data(), 0, kPatternRows, columns, nullptr);
  return pattern;
}

void copy_repeated(std::span<const std::byte> pattern, std::byte* destination, size_t size, size_t offset) {
  while (size > 0) {
    const size_t begin = offset % pattern.size();
    const size_t part = std::min(size, pattern.size() - begin);
    std::memcpy(destination, pattern.data() + begin, part);
    destination += part;
    offset += part;
    size -= part;
  }
}

}  // namespace

size_t probe_matrix_bytes() noexcept {
  return ggml_row_size(GGML_TYPE_Q4_K, kProbeColumns) * kProbeRows;
}

std::shared_ptr<Arena> place_probe_memory(size_t size_bytes, std::shared_ptr<Pool> pool,
                                          const Progress& progress) {
  const size_t matrices = std::max<size_t>(1, (size_bytes + probe_matrix_bytes() - 1) / probe_matrix_bytes());
  // 256 weights of Q4_K take 144 bytes.
  static_assert(kProbeRows * kProbeColumns / 256 * 144 % kPageBytes == 0, "a matrix is whole pages");
  return place_weights(GGML_TYPE_Q4_K, kProbeColumns, matrices * probe_matrix_bytes(), std::move(pool),
                       progress);
}

bool can_place_weights(ggml_type type, int64_t columns) noexcept {
  return ggml_blck_size(type) > 0 && columns > 0 && columns % ggml_blck_size(type) == 0 &&
         !ggml_quantize_requires_imatrix(type) && ggml_get_type_traits(type)->from_float_ref != nullptr;
}

std::shared_ptr<Arena> place_weights(ggml_type type, int64_t columns, size_t size_bytes,
                                     std::shared_ptr<Pool> pool, const Progress& progress) {
  if (!can_place_weights(type, columns))
    throw std::invalid_argument("rows of " + std::to_string(columns) + " weights of type " +
                                ggml_type_name(type) + " cannot be made");
  const size_t size = (std::max<size_t>(1, size_bytes) + kPageBytes - 1) / kPageBytes * kPageBytes;
  ArenaReservation reservation(size);
  reservation.announce({0, kPageBytes, static_cast<int64_t>(size / kPageBytes), 1, 1});
  PlaceOptions options;
  options.lock = LockMode::kNever;
  const std::shared_ptr<Arena> arena =
      Arena::place(std::move(reservation), std::move(pool), options, progress);
  ggml_cpu_init();
  const std::vector<std::byte> pattern = weight_pattern(type, columns);
  arena->fill(arena->bytes().data(), size, [&](std::byte* destination, size_t part, size_t offset) {
    copy_repeated(pattern, destination, part, offset);
    return true;
  });
  return arena;
}

}  // namespace stratad
