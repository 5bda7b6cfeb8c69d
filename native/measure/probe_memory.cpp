#include "measure/probe_memory.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "ggml-cpu.h"
#include "ggml.h"

namespace stratad {
namespace {

constexpr int64_t kPatternRows = 64;
constexpr size_t kPageBytes = 4096;

// Some rows of ordinary weights. The kernels' time does not depend on what they hold, as long as no number is
// odd.
std::vector<std::byte> weight_pattern() {
  std::vector<float> values(kPatternRows * kProbeColumns);
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.f, 0.02f);
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  std::vector<std::byte> pattern(kPatternRows * ggml_row_size(GGML_TYPE_Q4_K, kProbeColumns));
  ggml_quantize_chunk(GGML_TYPE_Q4_K, values.data(), pattern.data(), 0, kPatternRows, kProbeColumns, nullptr);
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
  const size_t size = matrices * probe_matrix_bytes();
  // 256 weights of Q4_K take 144 bytes.
  static_assert(kProbeRows * kProbeColumns / 256 * 144 % kPageBytes == 0, "a matrix is whole pages");
  ArenaReservation reservation(size);
  reservation.announce({0, kPageBytes, static_cast<int64_t>(size / kPageBytes), 1, 1});
  PlaceOptions options;
  options.lock = LockMode::kNever;
  const std::shared_ptr<Arena> arena =
      Arena::place(std::move(reservation), std::move(pool), options, progress);
  ggml_cpu_init();
  const std::vector<std::byte> pattern = weight_pattern();
  arena->fill(arena->bytes().data(), size, [&](std::byte* destination, size_t part, size_t offset) {
    copy_repeated(pattern, destination, part, offset);
    return true;
  });
  return arena;
}

}  // namespace stratad
