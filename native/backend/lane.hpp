// A ggml CPU backend of one thread, for the small operations between pool jobs and for slices of ggml's own
// kernels: a worker runs any operation on a part of its rows or heads, with the bits that ggml gives it.
//
// A lane belongs to one worker at a time and is never used by two threads at once.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

namespace stratad {

class Lane {
 public:
  Lane();
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Nodes [begin, end) of a graph, in order, on the calling thread.
  ggml_status compute(ggml_cgraph* graph, int begin, int end) noexcept;
  ggml_status compute(ggml_tensor* node) noexcept;

  // Copies an operation and its sources, for the caller to narrow before compute_part(). The data are shared.
  void load(const ggml_tensor& node) noexcept;
  ggml_tensor& part() noexcept { return *part_; }
  ggml_tensor& source(int index) noexcept { return *sources_[index]; }
  ggml_status compute_part() noexcept { return compute(part_); }

 private:
  ggml_backend_t backend_;
  ggml_threadpool_t threadpool_;
  ggml_context* context_;  // holds the tensors and the graph below, no data
  ggml_cgraph* graph_;
  ggml_tensor* part_;
  ggml_tensor* sources_[GGML_MAX_SRC];
};

// Keeps `count` elements of dimension `dimension`, from `first` on.
void narrow(ggml_tensor& tensor, int dimension, int64_t first, int64_t count) noexcept;

}  // namespace stratad
