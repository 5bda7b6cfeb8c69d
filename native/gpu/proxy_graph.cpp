#include "gpu/proxy_graph.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "ggml-impl.h"  // ggml_graph_view: a view keeps the use counts by which devices fuse operations

namespace stratad {
namespace {

using Clock = std::chrono::steady_clock;

// Adds the time until it ends to a counter.
class Stopwatch {
 public:
  explicit Stopwatch(std::atomic<uint64_t>& nanoseconds) : nanoseconds_(nanoseconds), start_(Clock::now()) {}
  ~Stopwatch() {
    nanoseconds_.fetch_add(static_cast<uint64_t>((Clock::now() - start_) / std::chrono::nanoseconds(1)),
                           std::memory_order_relaxed);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::atomic<uint64_t>& nanoseconds_;
  Clock::time_point start_;
};

void count(std::atomic<uint64_t>& counter, uint64_t by = 1) noexcept {
  counter.fetch_add(by, std::memory_order_relaxed);
}

const ggml_tensor* root(const ggml_tensor* tensor) noexcept {
  return tensor->view_src != nullptr ? tensor->view_src : tensor;
}

int32_t& id_at(const ggml_tensor& ids, int64_t choice, int64_t token) noexcept {
  char* data = static_cast<char*>(ids.data) + static_cast<size_t>(token) * ids.nb[1];
  return *reinterpret_cast<int32_t*>(data + static_cast<size_t>(choice) * ids.nb[0]);
}

float weight_at(const ggml_tensor& weights, int64_t choice, int64_t token) noexcept {
  const char* data = static_cast<const char*>(weights.data) + static_cast<size_t>(token) * weights.nb[2];
  return *reinterpret_cast<const float*>(data + static_cast<size_t>(choice) * weights.nb[1]);
}

int64_t tokens_of(const ggml_tensor* experts) noexcept {
  return experts->src[2]->ne[1];
}

}  // namespace

ggml_status ProxyGraph::compute() {
  count(proxy_.totals().graphs);
  if (proxy_.cache() != nullptr) proxy_.cache()->begin_step();
  if (proxy_.staging() != nullptr) proxy_.staging()->forget();
  const int node_count = ggml_graph_n_nodes(graph_);
  for (int begin = 0; begin < node_count;) {
    const int experts = next_experts(begin);
    if (settings_.abort != nullptr && settings_.abort(settings_.abort_data)) return GGML_STATUS_ABORTED;
    ggml_status status = submit(begin, experts);
    begin = experts;
    if (status == GGML_STATUS_SUCCESS && experts < node_count)
      status = is_staged(experts) ? run_staged(experts, &begin) : run_on_pool(experts, &begin);
    if (status == GGML_STATUS_ALLOC_FAILED) give_up_cache();
    if (status != GGML_STATUS_SUCCESS) {
      if (status != GGML_STATUS_ALLOC_FAILED)
        proxy_.fail(std::string("the driver refused a computation (") + ggml_status_to_string(status) + ")");
      return status;
    }
  }
  if (proxy_.cache() != nullptr) proxy_.cache()->plan_swaps();
  return GGML_STATUS_SUCCESS;
}

// This call fails, and the next has the cache's memory: the device is as sound as before.
void ProxyGraph::give_up_cache() {
  ggml_backend_synchronize(inner_);
  memory_.hot.clear();
  proxy_.close_cache();
}

bool ProxyGraph::is_experts(int index) const noexcept {
  const ggml_tensor* node = ggml_graph_node(graph_, index);
  return node->op == GGML_OP_MUL_MAT_ID && !is_empty_operation(node) && proxy_.takes(node);
}

bool ProxyGraph::is_staged(int index) const {
  const ggml_tensor* node = ggml_graph_node(graph_, index);
  return tokens_of(node) > proxy_.pool_tokens() && proxy_.staging() != nullptr && proxy_.inner_takes(node);
}

int ProxyGraph::next_experts(int begin) const noexcept {
  const int node_count = ggml_graph_n_nodes(graph_);
  while (begin < node_count && !is_experts(begin)) ++begin;
  return begin;
}

// How far the graph goes on from `begin` without reading `result`.
int ProxyGraph::independent_end(int begin, const ggml_tensor* result) const noexcept {
  const int node_count = ggml_graph_n_nodes(graph_);
  for (; begin < node_count; ++begin) {
    const ggml_tensor* node = ggml_graph_node(graph_, begin);
    if (is_experts(begin) || root(node) == root(result)) break;
    const bool reads = std::any_of(
        std::begin(node->src), std::end(node->src),
        [&](const ggml_tensor* source) { return source != nullptr && root(source) == root(result); });
    if (reads) break;
  }
  return begin;
}

ggml_status ProxyGraph::submit(int begin, int end) {
  bool has_work = false;
  for (int index = begin; index < end; ++index)
    has_work = has_work || !is_empty_operation(ggml_graph_node(graph_, index));
  if (!has_work) return GGML_STATUS_SUCCESS;
  count(proxy_.totals().stretches);
  ggml_cgraph stretch = ggml_graph_view(graph_, begin, end);
  return ggml_backend_graph_compute_async(inner_, &stretch);
}

void ProxyGraph::wait() {
  {
    const Stopwatch stopwatch(proxy_.totals().gpu_wait_nanoseconds);
    ggml_backend_synchronize(inner_);
  }
  if (has_waited_) return;
  has_waited_ = true;
  if (proxy_.cache() != nullptr) proxy_.cache()->release_swaps();
}

// ---------------------------------------------------------------- few tokens: the pool, and hot experts

ggml_status ProxyGraph::run_on_pool(int index, int* end) {
  if (device_.fuse_chains.load(std::memory_order_relaxed)) {
    if (auto chain = match_chain(graph_, index, device_.products)) {
      ++device_.counters.fused_chains;
      *end = index + chain->node_count;
      return run_chain(*chain, *end, end);
    }
  }
  ++device_.counters.fallback_operations;
  *end = index + 1;
  return run_product(ggml_graph_node(graph_, index));
}

// `begin`: the first node behind the chain; `end`: behind what was submitted beyond it.
ggml_status ProxyGraph::run_chain(ExpertChain& chain, int begin, int* end) {
  const ggml_tensor input = host_copy(chain.input, memory_.input);
  const ggml_tensor ids = host_copy(chain.ids, memory_.ids);
  const ggml_tensor weights = host_copy(chain.weights, memory_.weights);
  fetch(input, chain.input);
  fetch(ids, chain.ids);
  fetch(weights, chain.weights);
  wait();
  check(ids, chain.gate.weight->ne[2]);

  CachedLayer* layer = proxy_.cache() == nullptr ? nullptr : proxy_.cache()->find(chain.down.weight);
  const int width = split_by_residence(layer, ids);
  const bool has_cold = std::any_of(memory_.cold_ids.begin(), memory_.cold_ids.end(),
                                    [](int32_t expert) { return expert != kElsewhere; });
  HotGraph* hot = width == 0 ? nullptr : prepare_hot(*layer, chain, ids, weights, width, has_cold);
  ggml_status status = GGML_STATUS_SUCCESS;
  if (hot != nullptr) {
    ggml_cgraph part = ggml_graph_view(hot->graph(), 0, hot->node_count() - (has_cold ? 1 : 0));
    status = ggml_backend_graph_compute_async(inner_, &part);
  }
  // What does not need the experts' result goes on meanwhile, for example a shared expert.
  const int independent = independent_end(begin, chain.output);
  if (status == GGML_STATUS_SUCCESS) status = submit(begin, independent);
  *end = independent;
  if (status != GGML_STATUS_SUCCESS || (hot != nullptr && !has_cold)) return status;

  ggml_tensor pool_ids = ids;
  if (hot != nullptr) {
    pool_ids.data = memory_.cold_ids.data();
    pool_ids.nb[1] = static_cast<size_t>(ids.ne[0]) * sizeof(int32_t);
  }
  ggml_tensor output = host_copy(chain.output, memory_.output);
  run_pool_job(chain, pool_ids, weights, input, output);
  const Stopwatch stopwatch(proxy_.totals().copy_nanoseconds);
  ggml_tensor* target = hot != nullptr ? hot->cold() : chain.output;
  ggml_backend_tensor_set_async(inner_, target, output.data, 0, ggml_nbytes(&output));
  if (hot == nullptr) return GGML_STATUS_SUCCESS;
  ggml_cgraph last = ggml_graph_view(hot->graph(), hot->node_count() - 1, hot->node_count());
  return ggml_backend_graph_compute_async(inner_, &last);
}

// Sets the ids of the choices that the pool computes, and gives the most hot choices that one token has.
int ProxyGraph::split_by_residence(CachedLayer* layer, const ggml_tensor& ids) {
  std::vector<int32_t>& cold = memory_.cold_ids;
  cold.assign(static_cast<size_t>(ids.ne[0] * ids.ne[1]), kElsewhere);
  int widest = 0;
  for (int64_t token = 0; token < ids.ne[1]; ++token) {
    int width = 0;
    for (int64_t choice = 0; choice < ids.ne[0]; ++choice) {
      const int32_t expert = id_at(ids, choice, token);
      const bool is_hit = layer != nullptr && layer->table.slot_of(expert) != SlotTable::kNone;
      if (layer != nullptr) proxy_.cache()->note_use(*layer, expert, is_hit);
      if (is_hit) ++width;
      if (!is_hit) cold[static_cast<size_t>(token * ids.ne[0] + choice)] = expert;
    }
    widest = std::max(widest, width);
  }
  return widest;
}

// Null when the device has no memory for it: the pool computes all then.
HotGraph* ProxyGraph::prepare_hot(CachedLayer& layer, const ExpertChain& chain, const ggml_tensor& ids,
                                  const ggml_tensor& weights, int width, bool has_cold) {
  const Stopwatch stopwatch(proxy_.totals().copy_nanoseconds);
  const auto tokens = static_cast<int>(ids.ne[1]);
  HotGraph* hot =
      memory_.hot.get(layer, chain, {width, tokens, has_cold}, [&] { ggml_backend_synchronize(inner_); });
  if (hot == nullptr) return nullptr;
  hot->connect(chain);
  const size_t entries = static_cast<size_t>(width) * static_cast<size_t>(tokens);
  auto* slot_ids = reinterpret_cast<int32_t*>(memory_.hot_ids.of(2 * entries * sizeof(int32_t)));
  int32_t* expert_ids = slot_ids + entries;
  auto* shares = reinterpret_cast<float*>(memory_.hot_weights.of(entries * sizeof(float)));
  int32_t filler = 0;  // an expert that lies in a slot, for tokens with fewer hot choices than others
  while (layer.table.slot_of(filler) == SlotTable::kNone) ++filler;
  for (int64_t token = 0; token < tokens; ++token) {
    size_t entry = static_cast<size_t>(token) * static_cast<size_t>(width);
    const size_t end = entry + static_cast<size_t>(width);
    for (int64_t choice = 0; choice < ids.ne[0]; ++choice) {
      const int32_t expert = id_at(ids, choice, token);
      if (layer.table.slot_of(expert) == SlotTable::kNone) continue;
      slot_ids[entry] = layer.table.slot_of(expert);
      expert_ids[entry] = expert;
      shares[entry++] = weight_at(weights, choice, token);
    }
    for (; entry < end; ++entry) {
      slot_ids[entry] = layer.table.slot_of(filler);
      expert_ids[entry] = filler;
      shares[entry] = 0;
    }
  }
  ggml_backend_tensor_set_async(inner_, hot->slot_ids(), slot_ids, 0, entries * sizeof(int32_t));
  if (hot->expert_ids() != nullptr)
    ggml_backend_tensor_set_async(inner_, hot->expert_ids(), expert_ids, 0, entries * sizeof(int32_t));
  ggml_backend_tensor_set_async(inner_, hot->weights(), shares, 0, entries * sizeof(float));
  return hot;
}

void ProxyGraph::run_pool_job(const ExpertChain& chain, const ggml_tensor& ids, const ggml_tensor& weights,
                              const ggml_tensor& input, ggml_tensor& output) {
  ExpertChain job = chain;
  job.input = &input;
  job.ids = &ids;
  job.weights = &weights;
  job.output = &output;
  for (WeightProduct* product : {&job.gate, &job.up, &job.down}) product->bias = mirror(product->bias);
  count(proxy_.totals().pool_chains);
  const Stopwatch stopwatch(proxy_.totals().pool_nanoseconds);
  device_.chain_job.prepare(job, *device_.pool);
  device_.run(device_.chain_job, device_.counters.expert_bytes);
}

// One product by itself; what belongs to it is computed by the inner device.
ggml_status ProxyGraph::run_product(ggml_tensor* node) {
  ggml_tensor input = host_copy(node->src[1], memory_.input);
  ggml_tensor ids = host_copy(node->src[2], memory_.ids);
  fetch(input, node->src[1]);
  fetch(ids, node->src[2]);
  wait();
  check(ids, node->src[0]->ne[2]);
  ggml_tensor product = host_copy(node, memory_.output);
  product.src[1] = &input;
  product.src[2] = &ids;
  {
    const Stopwatch stopwatch(proxy_.totals().pool_nanoseconds);
    device_.product_job.prepare(&product, *device_.pool, device_.products);
    device_.run(device_.product_job, device_.counters.expert_bytes);
  }
  const Stopwatch stopwatch(proxy_.totals().copy_nanoseconds);
  ggml_backend_tensor_set_async(inner_, node, product.data, 0, ggml_nbytes(&product));
  return GGML_STATUS_SUCCESS;
}

const ggml_tensor* ProxyGraph::mirror(const ggml_tensor* bias) {
  if (bias == nullptr || ggml_backend_buffer_is_host(root(bias)->buffer)) return bias;
  const auto [found, is_new] = memory_.biases.try_emplace(bias);
  ProxyMemory::Mirror& copy = found->second;
  if (is_new) {
    copy.bytes.resize(ggml_nbytes(bias));
    ggml_backend_tensor_get(bias, copy.bytes.data(), 0, copy.bytes.size());
    copy.tensor = *bias;
    copy.tensor.data = copy.bytes.data();
  }
  return &copy.tensor;
}

// ---------------------------------------------------------------- many tokens: the inner device

ggml_status ProxyGraph::run_staged(int index, int* end) {
  StagedWeights& staging = *proxy_.staging();
  ggml_tensor* node = ggml_graph_node(graph_, index);
  read_used_experts(node->src[2], node->src[0]->ne[2]);
  const auto begin_copy = [&](const ggml_tensor* weight) {
    count(proxy_.totals().staged_bytes, memory_.used_experts.size() * weight->nb[2]);
    return staging.begin(weight, memory_.used_experts);
  };
  int area = staging.area_of(node->src[0]);
  if (area < 0) area = begin_copy(node->src[0]);
  *end = next_experts(index + 1);
  if (*end < ggml_graph_n_nodes(graph_)) {
    const ggml_tensor* next = ggml_graph_node(graph_, *end);
    if (next->src[2] == read_ids_ && is_staged(*end) && staging.area_of(next->src[0]) < 0)
      begin_copy(next->src[0]);
  }
  ggml_tensor* weight = node->src[0];
  {
    const Stopwatch stopwatch(proxy_.totals().copy_nanoseconds);
    node->src[0] = staging.finish(area);
  }
  // Devices read a graph's nodes while it is handed to them, and not afterwards.
  const ggml_status status = submit(index, *end);
  node->src[0] = weight;
  // The areas are written by another thread: what reads them is over before it hears of the next copy. That
  // thread copies the next product's experts meanwhile, which takes far longer than multiplying.
  wait();
  staging.release(area);
  count(proxy_.totals().staged_products);
  return status;
}

void ProxyGraph::read_used_experts(const ggml_tensor* ids, int64_t expert_count) {
  if (ids == read_ids_) return;
  const ggml_tensor copy = host_copy(ids, memory_.ids);
  fetch(copy, ids);
  wait();
  check(copy, expert_count);
  memory_.is_used.assign(static_cast<size_t>(expert_count), false);
  for (int64_t token = 0; token < copy.ne[1]; ++token)
    for (int64_t choice = 0; choice < copy.ne[0]; ++choice)
      memory_.is_used[static_cast<size_t>(id_at(copy, choice, token))] = true;
  memory_.used_experts.clear();
  for (int32_t expert = 0; expert < expert_count; ++expert)
    if (memory_.is_used[static_cast<size_t>(expert)]) memory_.used_experts.push_back(expert);
  read_ids_ = ids;
}

// ---------------------------------------------------------------- between host and device

// The tensor's header, with its data in host memory.
ggml_tensor ProxyGraph::host_copy(const ggml_tensor* tensor, HostArea& area) {
  ggml_tensor copy = *tensor;
  copy.data = area.of(ggml_nbytes(tensor));
  copy.view_src = nullptr;
  copy.buffer = nullptr;
  return copy;
}

void ProxyGraph::fetch(const ggml_tensor& copy, const ggml_tensor* tensor) {
  ggml_backend_tensor_get_async(inner_, tensor, copy.data, 0, ggml_nbytes(tensor));
}

// A device that was lost may leave anything here.
void ProxyGraph::check(const ggml_tensor& ids, int64_t expert_count) const {
  for (int64_t token = 0; token < ids.ne[1]; ++token)
    for (int64_t choice = 0; choice < ids.ne[0]; ++choice)
      if (const int32_t expert = id_at(ids, choice, token); expert < 0 || expert >= expert_count)
        throw std::runtime_error("the router's result names expert " + std::to_string(expert) + " of " +
                                 std::to_string(expert_count));
}

}  // namespace stratad
