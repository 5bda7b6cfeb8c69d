// How fast a pool's workers read placed memory: one behind the other, by random experts, or multiplying them
// as a decode step does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "measure/probe_memory.hpp"

namespace stratad {

enum class ReadPattern {
  kStream,    // whole runs of memory, one behind the other: what memory and links carry
  kExperts,   // the rows of randomly chosen expert matrices: what the layout of experts leaves of that
  kProducts,  // the same rows times one token's activations: what a worker of the pool reaches
};

// Asked between jobs, on the submitting thread: whether to go on.
using GoOn = std::function<bool()>;

struct ReadSample {
  uint64_t bytes = 0;
  double seconds = 0;
};

class ReadProbe {
 public:
  // parts[s] is what the workers of slice s read; it may lie on any node. Throws std::invalid_argument unless
  // there is one part for each slice.
  ReadProbe(std::vector<std::shared_ptr<Arena>> parts, std::shared_ptr<Pool> pool, ReadPattern pattern);

  // Reads for about so many seconds, at least one job, and goes on where the last sample ended. The calling
  // thread takes part as worker 0, on its CPU, and is where it was afterwards.
  ReadSample sample(double seconds, const GoOn& go_on);

 private:
  class StreamJob;
  class MatrixJob;

  void choose();
  uint64_t round_bytes() const noexcept;

  std::vector<std::shared_ptr<Arena>> parts_;
  std::shared_ptr<Pool> pool_;
  ReadPattern pattern_;
  std::mt19937_64 random_{1};
  std::vector<size_t> cursors_;               // by slice: where the stream goes on
  std::vector<std::vector<size_t>> choices_;  // by slice: byte offsets of a round's matrices
};

}  // namespace stratad
