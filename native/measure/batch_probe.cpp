#include "measure/batch_probe.hpp"

#include <algorithm>
#include <chrono>
#include <random>
#include <span>
#include <stdexcept>
#include <string>

#include "backend/ggml_threads.hpp"
#include "ggml-backend.h"
#include "kernels/tiles.hpp"
#include "placement/thread_affinity.hpp"

namespace stratad {
namespace {

struct ContextFree {
  void operator()(ggml_context* context) const noexcept { ggml_free(context); }
};

std::vector<int> cpus_of(const Pool& pool) {
  std::vector<int> cpu_ids;
  for (const WorkerSeat& worker : pool.layout().workers)
    if (worker.cpu_id) cpu_ids.push_back(*worker.cpu_id);
  return cpu_ids;
}

// Ordinary activations. Their repetition is nothing that a kernel's time depends on.
void fill_repeated(float* values, int64_t count) {
  constexpr int64_t kPeriod = 4096;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::generate_n(values, std::min(kPeriod, count), [&] { return normal(random); });
  for (int64_t index = kPeriod; index < count; ++index) values[index] = values[index - kPeriod];
}

void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument(what);
}

}  // namespace

// One node of ggml's graph with its sources: what both the pool and ggml are given.
struct BatchProbe::Product {
  BatchForm form;
  int tokens_per_matrix;
  std::unique_ptr<ggml_context, ContextFree> context;
  ggml_cgraph* graph = nullptr;
  ggml_tensor* node = nullptr;
  Scratch<float> input, output;
  std::vector<int32_t> ids;
};

BatchProbe::BatchProbe(const BatchShape& shape, std::shared_ptr<Pool> pool,
                       std::optional<InstructionSet> kernels, const Progress& progress)
    : shape_(shape), pool_(std::move(pool)), kernels_(kernels) {
  require(
      shape.rows > 0 && shape.rows % kRowUnit == 0 && shape.used_count > 0 && shape.matrix_count > 0 &&
          shape.matrix_count % shape.used_count == 0,
      "a probe needs rows in multiples of 16, and as many matrices as a multiple of those one token uses");
  require(pool_->slice_count() == 1, "a probe of batches needs a pool of one slice");
  const size_t bytes =
      ggml_row_size(shape.type, shape.columns) * static_cast<size_t>(shape.rows * shape.matrix_count);
  weights_ = place_weights(shape.type, shape.columns, bytes, pool_, progress);
  may_use_tiles_ = !prepare_tiles(*pool_);
  threads_ = start_ggml_threads(pool_->worker_count(), cpus_of(*pool_));
  ggml_ = ggml_backend_cpu_init();
  ggml_backend_cpu_set_n_threads(ggml_, pool_->worker_count());
  ggml_backend_cpu_set_threadpool(ggml_, threads_);
}

BatchProbe::~BatchProbe() {
  ggml_backend_free(ggml_);
  ggml_threadpool_free(threads_);
}

bool BatchProbe::offers(BatchPath path) const noexcept {
  const RowKernel* kernel = kernels_ ? find_row_kernel(shape_.type, *kernels_) : nullptr;
  const bool fits = kernel != nullptr && shape_.columns % kernel->column_unit == 0;
  switch (path) {
    case BatchPath::kPanels:
      return fits && kernel->multiply_panels != nullptr;
    case BatchPath::kTiles:
      return fits && kernel->multiply_tiles != nullptr && may_use_tiles_;
    default:
      return true;
  }
}

double BatchProbe::sample(BatchPath path, BatchForm form, int tokens_per_matrix) {
  require(offers(path), "these weights are not multiplied that way here");
  Product& product = product_of(form, tokens_per_matrix);
  const std::vector<int> cpu_ids = cpus_of(*pool_);
  // Worker 0's CPU for the pool; ggml's calling thread may be on any.
  const ScopedAffinity affinity(
      path == BatchPath::kGgml ? std::span<const int>(cpu_ids)
                               : std::span<const int>(cpu_ids).first(std::min<size_t>(1, cpu_ids.size())));
  const auto start = std::chrono::steady_clock::now();
  run(path, form, product);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

BatchProbe::Product& BatchProbe::product_of(BatchForm form, int tokens_per_matrix) {
  if (product_ && product_->form == form && product_->tokens_per_matrix == tokens_per_matrix)
    return *product_;
  const bool is_dense = form == BatchForm::kDense;
  const int64_t shared_by = is_dense ? 1 : shape_.matrix_count / shape_.used_count;
  require(tokens_per_matrix > 0, "a batch has at least one token");
  const int64_t tokens = tokens_per_matrix * shared_by;
  auto made = std::make_unique<Product>();
  made->form = form;
  made->tokens_per_matrix = tokens_per_matrix;
  made->context.reset(ggml_init({8 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
  ggml_context* context = made->context.get();
  ggml_tensor *weight, *input;
  if (is_dense) {
    weight = ggml_new_tensor_2d(context, shape_.type, shape_.columns, shape_.rows * shape_.matrix_count);
    input = ggml_new_tensor_2d(context, GGML_TYPE_F32, shape_.columns, tokens);
    made->node = ggml_mul_mat(context, weight, input);
  } else {
    weight = ggml_new_tensor_3d(context, shape_.type, shape_.columns, shape_.rows, shape_.matrix_count);
    input = ggml_new_tensor_3d(context, GGML_TYPE_F32, shape_.columns, 1, tokens);
    ggml_tensor* ids = ggml_new_tensor_2d(context, GGML_TYPE_I32, shape_.used_count, tokens);
    made->ids.resize(static_cast<size_t>(ggml_nelements(ids)));
    for (size_t slot = 0; slot < made->ids.size(); ++slot)
      made->ids[slot] = static_cast<int32_t>(slot % static_cast<size_t>(shape_.matrix_count));
    ids->data = made->ids.data();
    made->node = ggml_mul_mat_id(context, weight, input, ids);
  }
  weight->data = weights_->bytes().data();
  input->data = made->input.of(static_cast<size_t>(ggml_nelements(input)));
  made->node->data = made->output.of(static_cast<size_t>(ggml_nelements(made->node)));
  fill_repeated(static_cast<float*>(input->data), ggml_nelements(input));
  std::fill_n(static_cast<float*>(made->node->data), ggml_nelements(made->node), 0.f);  // touched, not timed
  made->graph = ggml_new_graph(context);
  ggml_build_forward_expand(made->graph, made->node);
  product_ = std::move(made);
  return *product_;
}

ProductSettings BatchProbe::settings_of(BatchPath path) const noexcept {
  ProductSettings settings(kernels_);
  BatchLimits limits;
  limits.panel_tokens = path == BatchPath::kRows ? kNoTokens : 1;
  limits.tile_tokens = path == BatchPath::kTiles ? 1 : kNoTokens;
  settings.limits.fill(limits);
  return settings;
}

void BatchProbe::run(BatchPath path, BatchForm form, Product& product) {
  if (path == BatchPath::kGgml) {
    if (ggml_backend_graph_compute(ggml_, product.graph) != GGML_STATUS_SUCCESS)
      throw std::runtime_error("ggml could not multiply the probe's weights");
  } else if (form == BatchForm::kDense) {
    dense_job_.prepare(std::span(&product.node, 1), *pool_, settings_of(path));
    pool_->run(dense_job_);
  } else {
    expert_job_.prepare(product.node, *pool_, settings_of(path));
    pool_->run(expert_job_);
  }
}

}  // namespace stratad
