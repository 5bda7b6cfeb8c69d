// How near the row kernels come to a plain read of the same bytes, with ggml's dot product beside them.
//
// Every sample of a kernel has a plain read of other random experts next to it; what is printed is the median
// and the range of the ratios of the two. Absolute rates mean nothing on a shared machine.
//
// Experts are multiplied as the pool does it: 768 x 2048 is gate and up, two runs side by side; 2048 x 768 is
// down, one run. Each worker takes its share of the rows of every expert and knows which expert comes next.
//
// usage: kernel_bench [--type Q4_K]... [--rounds 9] [--mib 2048] [--huge-pages] [--single-token]
// --single-token: our kernels with one token, nothing else.
// prints: type rows columns workers tokens kernel ratio lowest highest GB/s(kernel) GB/s(read) lowest highest
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "arena/arena.hpp"
#include "ggml-cpu.h"
#include "kernels/kernel_table.hpp"
#include "pool/pool.hpp"

namespace {

using namespace stratad;

constexpr ggml_type kTypes[] = {GGML_TYPE_Q4_K,   GGML_TYPE_Q6_K, GGML_TYPE_Q8_0,  GGML_TYPE_Q5_K,
                                GGML_TYPE_IQ4_XS, GGML_TYPE_Q4_0, GGML_TYPE_MXFP4, GGML_TYPE_IQ4_NL,
                                GGML_TYPE_BF16,   GGML_TYPE_F16};
constexpr size_t kSampleBytes = size_t{200} << 20;

struct Options {
  std::vector<ggml_type> types;
  int rounds = 9;
  size_t arena_bytes = size_t{2} << 30;  // far more than any cache, unless computing alone is looked at
  bool uses_huge_pages = false;
  bool is_single_token = false;
};

// Reads without computing: what memory gives, in the widest loads that there are.
using Line [[gnu::vector_size(64), gnu::aligned(1), gnu::may_alias]] = uint64_t;
[[gnu::target_clones("default", "avx2", "avx512f")]] void read_bytes(const char* bytes, size_t size,
                                                                     Line* sink) {
  Line sums[4] = {};
  for (size_t offset = 0; offset + sizeof sums <= size; offset += sizeof sums)
    for (size_t part = 0; part < 4; ++part) {
      const void* address = bytes + offset + part * sizeof(Line);
      sums[part] ^= *static_cast<const Line*>(address);
    }
  *sink = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
}

// Does the same on every worker, which is alone in a slice of its own.
class WorkerJob final : public Job {
 public:
  explicit WorkerJob(const std::function<void(int)>& work) : work_(work) {}
  int phase_count() const noexcept override { return 1; }
  uint32_t task_count(int, int) const noexcept override { return 1; }
  bool joins_slices(int) const noexcept override { return false; }
  void run(int, int, uint32_t, int worker) noexcept override { work_(worker); }

 private:
  const std::function<void(int)>& work_;
};

WorkerLayout layout_of(int workers) {
  WorkerLayout layout;
  layout.slices.resize(static_cast<size_t>(workers));
  for (int worker = 0; worker < workers; ++worker) layout.workers.push_back({worker, worker});
  return layout;
}

struct Matrix {
  ggml_type type;
  int64_t rows, columns;
  size_t row_bytes() const { return ggml_row_size(type, columns); }
  size_t bytes() const { return row_bytes() * static_cast<size_t>(rows); }
};

// Experts of one shape in an arena, a fresh random choice of them for every sample, and ways to read those.
class Bench {
 public:
  Bench(const Options& options, const Matrix& matrix, char* arena, int workers)
      : options_(options), matrix_(matrix), arena_(arena), pool_(layout_of(workers), 1'000'000) {
    pool_.adopt_calling_thread();
    choice_.resize((kSampleBytes / matrix.bytes() / 2 + 2) * 2);
    fill();
    std::normal_distribution<float> normal;
    for (auto& token : tokens_) {
      token.resize(static_cast<size_t>(matrix.columns));
      for (float& value : token) value = normal(random_);
    }
    for (auto& output : outputs_) output.resize(static_cast<size_t>(2 * matrix.rows));
  }

  void compare_kernels(const char* name, std::span<const RowKernel> kernels) {
    for (const RowKernel& kernel : kernels) {
      if (kernel.weight_type != matrix_.type || !cpu_has(kernel.instruction_set)) continue;
      for (int token = 0; token < kKernelTokens; ++token)
        kernel.quantise(tokens_[token].data(), matrix_.columns,
                        aligned(token, kernel.activation_bytes(matrix_.columns)));
      compare(name, 1, [&](int worker) { multiply(kernel, 1, worker); });
      if (!options_.is_single_token)
        compare(name, kKernelTokens, [&](int worker) { multiply(kernel, kKernelTokens, worker); });
    }
  }

  void compare_ggml() {
    const ggml_type rounded = ggml_get_type_traits_cpu(matrix_.type)->vec_dot_type;
    for (int token = 0; token < kKernelTokens; ++token)
      ggml_get_type_traits_cpu(rounded)->from_float(
          tokens_[token].data(), aligned(token, ggml_row_size(rounded, matrix_.columns)), matrix_.columns);
    for (int count : {1, kKernelTokens})
      compare("ggml", count, [&](int worker) { multiply_by_ggml(count, worker); });
  }

 private:
  // Random weights, the same 64 rows again and again: what they are does not matter.
  void fill() {
    std::vector<float> values(static_cast<size_t>(64 * matrix_.columns));
    std::normal_distribution<float> normal(0, 0.02f);
    for (float& value : values) value = normal(random_);
    const size_t bytes = 64 * matrix_.row_bytes();
    ggml_quantize_chunk(matrix_.type, values.data(), arena_, 0, 64, matrix_.columns, nullptr);
    for (size_t offset = bytes; offset + bytes <= options_.arena_bytes; offset += bytes)
      std::memcpy(arena_ + offset, arena_, bytes);
  }

  double seconds(const std::function<void(int)>& work) {
    for (size_t& expert : choice_) expert = random_() % (options_.arena_bytes / matrix_.bytes());
    WorkerJob job(work);
    const auto start = std::chrono::steady_clock::now();
    pool_.run(job);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  void compare(const char* name, int tokens, const std::function<void(int)>& work) {
    std::vector<double> ratios, rates, read_rates;
    const double gigabytes = static_cast<double>(expert_count() * matrix_.bytes()) * 1e-9;
    for (int round = -1; round < options_.rounds; ++round) {  // the first one warms up
      const double reading = seconds([this](int worker) { read(worker); });
      const double working = seconds(work);
      if (round < 0) continue;
      ratios.push_back(reading / working);
      rates.push_back(gigabytes / working);
      read_rates.push_back(gigabytes / reading);
    }
    for (auto* samples : {&ratios, &rates, &read_rates}) std::sort(samples->begin(), samples->end());
    const size_t middle = ratios.size() / 2;
    std::printf("%s %lld %lld %d %d %s %.3f %.3f %.3f %.2f %.2f %.2f %.2f\n", ggml_type_name(matrix_.type),
                static_cast<long long>(matrix_.rows), static_cast<long long>(matrix_.columns),
                pool_.worker_count(), tokens, name, ratios[middle], ratios.front(), ratios.back(),
                rates[middle], read_rates[middle], read_rates.front(), read_rates.back());
    std::fflush(stdout);
  }

  // The last two are only what follows.
  size_t expert_count() const { return choice_.size() - 2; }
  int64_t begin(int worker) const { return matrix_.rows / 16 * worker / pool_.worker_count() * 16; }
  int64_t row_count(int worker) const { return begin(worker + 1) - begin(worker); }
  const char* rows(size_t index, int worker) const {
    return arena_ + choice_[index] * matrix_.bytes() +
           static_cast<size_t>(begin(worker)) * matrix_.row_bytes();
  }

  void read(int worker) {
    Line sink;
    for (size_t index = 0; index < expert_count(); ++index)
      read_bytes(rows(index, worker), static_cast<size_t>(row_count(worker)) * matrix_.row_bytes(), &sink);
  }

  void multiply(const RowKernel& kernel, int count, int worker) {
    const bool is_pair = matrix_.columns > matrix_.rows;
    const size_t experts = is_pair ? 2 : 1;
    float *first[kKernelTokens], *second[kKernelTokens];
    for (int token = 0; token < count; ++token) {
      first[token] = outputs_[token].data() + begin(worker);
      second[token] = first[token] + matrix_.rows;
    }
    RowStreams streams;
    streams.row_count = row_count(worker);
    streams.row_bytes = matrix_.row_bytes();
    streams.columns = matrix_.columns;
    for (size_t index = 0; index < expert_count(); index += experts) {
      streams.first = rows(index, worker);
      streams.after_first = rows(index + experts, worker);
      if (is_pair) {
        streams.second = rows(index + 1, worker);
        streams.after_second = rows(index + 3, worker);
      }
      kernel.multiply(streams, activations_, count, first, second);
    }
  }

  void multiply_by_ggml(int count, int worker) {
    const auto* traits = ggml_get_type_traits_cpu(matrix_.type);
    for (size_t index = 0; index < expert_count(); ++index)
      for (int64_t row = 0; row < row_count(worker); ++row)
        for (int token = 0; token < count; ++token)
          traits->vec_dot(static_cast<int>(matrix_.columns), &outputs_[token][begin(worker) + row], 0,
                          rows(index, worker) + row * matrix_.row_bytes(), 0, activations_[token], 0, 1);
  }

  // Memory for a token's rounded activations.
  void* aligned(int token, size_t bytes) {
    memory_[token].resize(bytes + 64);
    char* begin = memory_[token].data();
    begin += -reinterpret_cast<uintptr_t>(begin) % 64;
    activations_[token] = begin;
    return begin;
  }

  const Options& options_;
  Matrix matrix_;
  char* arena_;
  Pool pool_;
  std::mt19937 random_{7};
  std::vector<size_t> choice_;
  std::vector<float> tokens_[kKernelTokens], outputs_[kKernelTokens];
  std::vector<char> memory_[kKernelTokens];
  const void* activations_[kKernelTokens];
};

Options parse(std::span<char*> arguments) {
  Options options;
  for (size_t index = 1; index < arguments.size(); ++index) {
    const std::string option = arguments[index];
    if (option == "--huge-pages") {
      options.uses_huge_pages = true;
      continue;
    }
    if (option == "--single-token") {
      options.is_single_token = true;
      continue;
    }
    const char* value = index + 1 < arguments.size() ? arguments[++index] : "";
    if (option == "--rounds") options.rounds = std::max(1, std::atoi(value));
    if (option == "--mib") options.arena_bytes = static_cast<size_t>(std::max(4, std::atoi(value))) << 20;
    for (ggml_type type : kTypes)
      if (option == "--type" && strcasecmp(value, ggml_type_name(type)) == 0) options.types.push_back(type);
  }
  if (options.types.empty()) options.types.assign(std::begin(kTypes), std::end(kTypes));
  return options;
}

// A scheduler group of our own at the highest priority, where we may: as tests/bench/__main__.py does it.
void raise_priority() {
  setsid();
  if (FILE* group = std::fopen("/proc/self/autogroup", "w")) {
    std::fputs("-20", group);
    std::fclose(group);
  }
}

}  // namespace

int main(int count, char** arguments) {
  const Options options = parse({arguments, static_cast<size_t>(count)});
  raise_priority();
  ggml_cpu_init();
  const MappedRegion arena(options.arena_bytes);
  void* memory = arena.bytes().data();
  madvise(memory, options.arena_bytes, options.uses_huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  for (ggml_type type : options.types)
    for (const Matrix& matrix : {Matrix{type, 768, 2048}, Matrix{type, 2048, 768}})
      for (int workers : {1, 2}) {
        Bench bench(options, matrix, static_cast<char*>(memory), workers);
        bench.compare_kernels("avx512", avx512_row_kernels());
        bench.compare_kernels("avx2", avx2_row_kernels());
        if (!options.is_single_token) bench.compare_ggml();
      }
  return 0;
}
