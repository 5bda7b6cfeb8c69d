#include "backend/lane.hpp"

#include "ggml-cpu.h"
#include "ggml-impl.h"  // ggml_graph_view: the public interface has none

namespace stratad {
namespace {

constexpr int kGraphNodes = 8;

}  // namespace

Lane::Lane() : backend_(ggml_backend_cpu_init()) {
  auto parameters = ggml_threadpool_params_default(1);
  parameters.poll = 0;
  threadpool_ = ggml_threadpool_new(&parameters);
  ggml_backend_cpu_set_n_threads(backend_, 1);
  ggml_backend_cpu_set_threadpool(backend_, threadpool_);
  const size_t size =
      ggml_graph_overhead_custom(kGraphNodes, false) + (GGML_MAX_SRC + 2) * ggml_tensor_overhead();
  context_ = ggml_init({size, nullptr, true});
  graph_ = ggml_new_graph_custom(context_, kGraphNodes, false);
  part_ = ggml_new_tensor_1d(context_, GGML_TYPE_F32, 1);
  for (ggml_tensor*& source : sources_) source = ggml_new_tensor_1d(context_, GGML_TYPE_F32, 1);
}

Lane::~Lane() {
  ggml_backend_free(backend_);
  ggml_threadpool_free(threadpool_);
  ggml_free(context_);
}

ggml_status Lane::compute(ggml_cgraph* graph, int begin, int end) noexcept {
  // A view keeps the use counts by which ggml decides what it may fuse.
  ggml_cgraph stretch = ggml_graph_view(graph, begin, end);
  return ggml_backend_graph_compute(backend_, &stretch);
}

ggml_status Lane::compute(ggml_tensor* node) noexcept {
  ggml_graph_clear(graph_);
  ggml_graph_add_node(graph_, node);
  return ggml_backend_graph_compute(backend_, graph_);
}

void Lane::load(const ggml_tensor& node) noexcept {
  *part_ = node;
  for (int index = 0; index < GGML_MAX_SRC; ++index) {
    if (node.src[index] == nullptr) continue;
    *sources_[index] = *node.src[index];
    part_->src[index] = sources_[index];
  }
}

void narrow(ggml_tensor& tensor, int dimension, int64_t first, int64_t count) noexcept {
  tensor.data = static_cast<char*>(tensor.data) + static_cast<size_t>(first) * tensor.nb[dimension];
  tensor.ne[dimension] = count;
}

}  // namespace stratad
