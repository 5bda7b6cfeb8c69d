// How long weights take to be multiplied with so many tokens at once, in each of the ways there are: by rows,
// by panels and by tiles on the pool, and by ggml's CPU backend, which gets what the pool declines.
//
// The pool's jobs and ggml's graph are the daemon's own, over the same placed memory.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "backend/batch_limits.hpp"
#include "backend/dense_job.hpp"
#include "backend/expert_jobs.hpp"
#include "measure/probe_memory.hpp"

namespace stratad {

enum class BatchPath { kRows, kPanels, kTiles, kGgml };
// A layer's experts, each with as many tokens; or one dense matrix of all their rows.
enum class BatchForm { kExperts, kDense };

struct BatchShape {
  ggml_type type = GGML_TYPE_Q4_K;
  int64_t rows = kProbeRows, columns = kProbeColumns;
  int64_t matrix_count = 64;
  int64_t used_count = 8;  // experts of one token; a divisor of matrix_count
};

class BatchProbe {
 public:
  // Places and fills the weights by the pool, which must have one slice. Throws std::invalid_argument for a
  // shape that cannot be, and as Arena::place does.
  BatchProbe(const BatchShape& shape, std::shared_ptr<Pool> pool, std::optional<InstructionSet> kernels,
             const Progress& progress);
  ~BatchProbe();
  BatchProbe(const BatchProbe&) = delete;
  BatchProbe& operator=(const BatchProbe&) = delete;

  // Whether there is such a way for this type, with these kernels and on this CPU.
  bool offers(BatchPath path) const noexcept;

  // Seconds of all matrices with `tokens_per_matrix` tokens each. The calling thread takes part as worker 0,
  // on its CPU, and is where it was afterwards. Throws std::invalid_argument unless offers(path), for no
  // tokens, or where the tokens of experts do not come out even.
  double sample(BatchPath path, BatchForm form, int tokens_per_matrix);

 private:
  struct Product;

  Product& product_of(BatchForm form, int tokens_per_matrix);
  ProductSettings settings_of(BatchPath path) const noexcept;
  void run(BatchPath path, BatchForm form, Product& product);

  BatchShape shape_;
  std::shared_ptr<Pool> pool_;
  std::optional<InstructionSet> kernels_;
  std::shared_ptr<Arena> weights_;
  std::unique_ptr<Product> product_;
  ProductJob expert_job_;
  DenseJob dense_job_;
  ggml_threadpool_t threads_ = nullptr;
  ggml_backend_t ggml_ = nullptr;
  bool may_use_tiles_ = false;
};

}  // namespace stratad
