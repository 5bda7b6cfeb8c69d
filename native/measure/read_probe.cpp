#include "measure/read_probe.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <span>
#include <stdexcept>

#include "ggml-cpu.h"
#include "kernels/row_kernel.hpp"
#include "placement/thread_affinity.hpp"

namespace stratad {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
// A round is long enough for its beginning and end not to count, and short enough to stop soon.
constexpr size_t kUnitsPerWorker = 16;
constexpr int64_t kTaskRows = 96;
constexpr int64_t kTasksPerMatrix = kProbeRows / kTaskRows;
static_assert(kProbeRows % kTaskRows == 0 && kTaskRows % 2 == 0);

using Line [[gnu::vector_size(64), gnu::aligned(1), gnu::may_alias]] = uint64_t;

uint64_t read_bytes(const std::byte* bytes, size_t size) noexcept {
  Line sums[4] = {};
  for (size_t offset = 0; offset + sizeof sums <= size; offset += sizeof sums)
    for (size_t part = 0; part < 4; ++part)
      sums[part] ^= *reinterpret_cast<const Line*>(bytes + offset + part * sizeof(Line));
  const Line total = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
  return total[0] ^ total[1] ^ total[2] ^ total[3] ^ total[4] ^ total[5] ^ total[6] ^ total[7];
}

size_t units_of(const Pool& pool, int slice) noexcept {
  return kUnitsPerWorker * static_cast<size_t>(pool.workers_of(slice));
}

std::optional<InstructionSet> best_set() noexcept {
  for (InstructionSet set : {InstructionSet::kAvx512Vnni, InstructionSet::kAvx2})
    if (cpu_has(set)) return set;
  return std::nullopt;
}

// One token's activations, rounded as the best kernel for the probe's weights wants them.
class Activations {
 public:
  Activations() {
    ggml_cpu_init();
    std::vector<float> values(kProbeColumns);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::generate(values.begin(), values.end(), [&] { return normal(random); });
    const std::optional<InstructionSet> set = best_set();
    kernel_ = set ? find_row_kernel(GGML_TYPE_Q4_K, *set) : nullptr;
    const auto* traits = ggml_get_type_traits_cpu(GGML_TYPE_Q4_K);
    const size_t bytes = kernel_ != nullptr ? kernel_->activation_bytes(kProbeColumns)
                                            : ggml_row_size(traits->vec_dot_type, kProbeColumns);
    memory_.resize((bytes + sizeof(CacheLine) - 1) / sizeof(CacheLine));
    if (kernel_ != nullptr)
      kernel_->quantise(values.data(), kProbeColumns, memory_.data());
    else
      ggml_get_type_traits_cpu(traits->vec_dot_type)
          ->from_float(values.data(), memory_.data(), kProbeColumns);
  }

  // Half of the rows beside the other half, as a layer's gate and up are walked.
  float multiply(const char* rows, int64_t row_count, size_t row_bytes) const noexcept {
    float first[kTaskRows / 2], second[kTaskRows / 2];
    const char* other = rows + static_cast<size_t>(row_count / 2) * row_bytes;
    if (kernel_ == nullptr) {
      const auto* traits = ggml_get_type_traits_cpu(GGML_TYPE_Q4_K);
      for (int64_t row = 0; row < row_count; ++row)
        traits->vec_dot(static_cast<int>(kProbeColumns), first + row % (kTaskRows / 2), 0,
                        rows + static_cast<size_t>(row) * row_bytes, 0, memory_.data(), 0, 1);
      return first[0];
    }
    const RowStreams streams{.first = rows,
                             .second = other,
                             .row_count = row_count / 2,
                             .row_bytes = row_bytes,
                             .columns = kProbeColumns};
    const void* activations[1] = {memory_.data()};
    float *first_outputs[1] = {first}, *second_outputs[1] = {second};
    kernel_->multiply(streams, activations, 1, first_outputs, second_outputs);
    return first[0] + second[0];
  }

 private:
  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };

  const RowKernel* kernel_ = nullptr;
  std::vector<CacheLine> memory_;
};

}  // namespace

class ReadProbe::StreamJob final : public Job {
 public:
  explicit StreamJob(ReadProbe& probe) : probe_(probe) {}
  int phase_count() const noexcept override { return 1; }
  uint32_t task_count(int, int slice) const noexcept override {
    return static_cast<uint32_t>(units_of(*probe_.pool_, slice));
  }
  bool joins_slices(int) const noexcept override { return false; }
  void run(int, int slice, uint32_t task, int) noexcept override {
    const std::span<const std::byte> bytes = probe_.parts_[slice]->bytes();
    const size_t pieces = bytes.size() / kPieceBytes;
    const size_t begin = (probe_.cursors_[slice] + task) % pieces * kPieceBytes;
    sink_.fetch_xor(read_bytes(bytes.data() + begin, kPieceBytes), std::memory_order_relaxed);
  }

 private:
  ReadProbe& probe_;
  std::atomic<uint64_t> sink_{0};  // keeps the compiler from dropping the loop
};

class ReadProbe::MatrixJob final : public Job {
 public:
  explicit MatrixJob(ReadProbe& probe)
      : probe_(probe), is_multiplying_(probe.pattern_ == ReadPattern::kProducts) {}
  int phase_count() const noexcept override { return 1; }
  uint32_t task_count(int, int slice) const noexcept override {
    return static_cast<uint32_t>(units_of(*probe_.pool_, slice) * kTasksPerMatrix);
  }
  bool joins_slices(int) const noexcept override { return false; }
  void run(int, int slice, uint32_t task, int) noexcept override {
    const size_t row_bytes = probe_matrix_bytes() / kProbeRows;
    const size_t matrix = probe_.choices_[slice][task / kTasksPerMatrix];
    const std::byte* rows =
        probe_.parts_[slice]->bytes().data() + matrix + task % kTasksPerMatrix * kTaskRows * row_bytes;
    const uint64_t result =
        is_multiplying_ ? static_cast<uint64_t>(activations_.multiply(reinterpret_cast<const char*>(rows),
                                                                      kTaskRows, row_bytes) > 0)
                        : read_bytes(rows, kTaskRows * row_bytes);
    sink_.fetch_xor(result, std::memory_order_relaxed);
  }

 private:
  ReadProbe& probe_;
  bool is_multiplying_;
  Activations activations_;
  std::atomic<uint64_t> sink_{0};
};

ReadProbe::ReadProbe(std::vector<std::shared_ptr<Arena>> parts, std::shared_ptr<Pool> pool,
                     ReadPattern pattern)
    : parts_(std::move(parts)), pool_(std::move(pool)), pattern_(pattern), cursors_(parts_.size()) {
  if (static_cast<int>(parts_.size()) != pool_->slice_count())
    throw std::invalid_argument("a probe needs one part of memory for each slice");
  for (const auto& part : parts_)
    if (part->bytes().size() < std::max(kPieceBytes, probe_matrix_bytes()))
      throw std::invalid_argument("a part of a probe holds less than one piece");
  choices_.resize(parts_.size());
  for (int slice = 0; slice < pool_->slice_count(); ++slice) choices_[slice].resize(units_of(*pool_, slice));
}

ReadSample ReadProbe::sample(double seconds, const GoOn& go_on) {
  const std::optional<int> seat = pool_->layout().workers[0].cpu_id;
  std::optional<ScopedAffinity> pinned;
  if (seat) pinned.emplace(std::span(&*seat, 1));
  StreamJob stream(*this);
  std::optional<MatrixJob> matrices;
  if (pattern_ != ReadPattern::kStream) matrices.emplace(*this);
  ReadSample sample;
  while (sample.bytes == 0 || (sample.seconds < seconds && (!go_on || go_on()))) {
    choose();
    const auto start = std::chrono::steady_clock::now();
    if (matrices)
      pool_->run(*matrices);
    else
      pool_->run(stream);
    sample.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    sample.bytes += round_bytes();
  }
  return sample;
}

// Where the next round reads: further on, or elsewhere.
void ReadProbe::choose() {
  for (size_t slice = 0; slice < parts_.size(); ++slice) {
    const size_t size = parts_[slice]->bytes().size();
    if (pattern_ == ReadPattern::kStream) {
      cursors_[slice] = (cursors_[slice] + choices_[slice].size()) % (size / kPieceBytes);
      continue;
    }
    const size_t matrices = size / probe_matrix_bytes();
    for (size_t& choice : choices_[slice]) choice = random_() % matrices * probe_matrix_bytes();
  }
}

uint64_t ReadProbe::round_bytes() const noexcept {
  uint64_t units = 0;
  for (const auto& choices : choices_) units += choices.size();
  return units * (pattern_ == ReadPattern::kStream ? kPieceBytes : probe_matrix_bytes());
}

}  // namespace stratad
