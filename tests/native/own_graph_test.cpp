// A graph of our own in own mode under a sanitizer: every operation's result is poisoned beforehand, and then
// has the bits of ggml's CPU backend on one thread.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "backend/device.hpp"
#include "backend/graph_order.hpp"
#include "backend/own_backend.hpp"
#include "check.hpp"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"

namespace {

using namespace stratad;

constexpr int kColumns = 256, kHead = 32, kHeads = 6, kKeyHeads = 2, kCells = 600;

std::shared_ptr<Pool> pool_of(int workers, int slices) {
  WorkerLayout layout;
  layout.slices.resize(static_cast<size_t>(slices));
  for (int worker = 0; worker < workers; ++worker) layout.workers.push_back({std::nullopt, worker % slices});
  return std::make_shared<Pool>(layout, 2000);
}

// One layer in small: Q, K and V with a bias in between, attention over a filled cache, its output product.
class Layer {
 public:
  Layer(ggml_type type, int tokens, ggml_type other_type = GGML_TYPE_Q8_0)
      : context_(ggml_init({size_t{1} << 22, nullptr, true})) {
    const ggml_type value_type = other_type == GGML_TYPE_F32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
    ggml_tensor* input = leaf(GGML_TYPE_F32, kColumns, tokens);
    ggml_tensor* query = ggml_mul_mat(context_, leaf(type, kColumns, kHead * kHeads), input);
    query = ggml_add(context_, query, leaf(GGML_TYPE_F32, kHead * kHeads));
    ggml_tensor* key = ggml_mul_mat(context_, leaf(type, kColumns, kHead * kKeyHeads), input);
    ggml_tensor* value = ggml_mul_mat(context_, leaf(value_type, kColumns, kHead * kKeyHeads), input);
    query = ggml_permute(context_, ggml_reshape_3d(context_, query, kHead, kHeads, tokens), 0, 2, 1, 3);
    ggml_tensor* attention = ggml_flash_attn_ext(
        context_, query, leaf(GGML_TYPE_F16, kHead, kCells, kKeyHeads),
        leaf(GGML_TYPE_F16, kHead, kCells, kKeyHeads), leaf(GGML_TYPE_F16, kCells, tokens), 0.2f, 0.0f, 0.0f);
    attention = ggml_reshape_2d(context_, attention, kHead * kHeads, tokens);
    ggml_tensor* output = ggml_mul_mat(context_, leaf(other_type, kHead * kHeads, kColumns), attention);
    graph_ = ggml_new_graph(context_);
    for (ggml_tensor* result : {ggml_add(context_, output, input), ggml_mul(context_, key, value)})
      ggml_build_forward_expand(graph_, result);
    buffer_ = ggml_backend_alloc_ctx_tensors_from_buft(context_, ggml_backend_cpu_buffer_type());
    for (ggml_tensor* tensor : leaves_) fill(tensor);
  }
  ~Layer() {
    ggml_backend_buffer_free(buffer_);
    ggml_free(context_);
  }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  ggml_cgraph* graph() { return graph_; }

  // All results, one behind the other in the order of their creation.
  std::vector<char> compute(ggml_backend_t backend) {
    for (ggml_tensor* node : results())
      if (node->view_src == nullptr) std::memset(node->data, 0xff, ggml_nbytes(node));
    CHECK(ggml_backend_graph_compute(backend, graph_) == GGML_STATUS_SUCCESS);
    std::vector<char> bytes;
    for (ggml_tensor* node : results()) {
      const char* data = static_cast<const char*>(node->data);
      if (node->view_src == nullptr) bytes.insert(bytes.end(), data, data + ggml_nbytes(node));
    }
    return bytes;
  }

  // Whether every node stands behind what it reads.
  bool is_ordered() {
    std::set<const ggml_tensor*> seen(leaves_.begin(), leaves_.end());
    for (int index = 0; index < ggml_graph_n_nodes(graph_); ++index) {
      const ggml_tensor* node = ggml_graph_node(graph_, index);
      for (const ggml_tensor* source : node->src)
        if (source != nullptr && !seen.contains(source)) return false;
      seen.insert(node);
    }
    return true;
  }

 private:
  ggml_tensor* leaf(ggml_type type, int64_t columns, int64_t rows = 1, int64_t planes = 1) {
    leaves_.push_back(ggml_new_tensor_3d(context_, type, columns, rows, planes));
    return leaves_.back();
  }
  std::vector<ggml_tensor*> results() {
    std::vector<ggml_tensor*> nodes;
    for (ggml_tensor* tensor = ggml_get_first_tensor(context_); tensor != nullptr;
         tensor = ggml_get_next_tensor(context_, tensor))
      if (tensor->op != GGML_OP_NONE) nodes.push_back(tensor);
    return nodes;
  }
  void fill(ggml_tensor* tensor) {
    std::normal_distribution<float> deviates;
    std::vector<float> values(static_cast<size_t>(ggml_nelements(tensor)));
    std::generate(values.begin(), values.end(), [&] { return deviates(random_); });
    if (tensor->type == GGML_TYPE_F32) {
      std::memcpy(tensor->data, values.data(), values.size() * sizeof(float));
    } else {
      ggml_quantize_chunk(tensor->type, values.data(), tensor->data, 0, ggml_nrows(tensor), tensor->ne[0],
                          nullptr);
    }
  }

  ggml_context* context_;
  ggml_cgraph* graph_ = nullptr;
  ggml_backend_buffer_t buffer_ = nullptr;
  std::vector<ggml_tensor*> leaves_;
  std::mt19937 random_{7};
};

ggml_backend_t make_backend(ggml_abort_callback abort = nullptr, void* data = nullptr) {
  return make_own_backend({.mode = DeviceMode::kOwn, .abort = abort, .abort_data = data},
                          ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
}

void test_bits() {
  ggml_backend_t plain = ggml_backend_cpu_init();
  ggml_backend_cpu_set_n_threads(plain, 1);
  ggml_backend_t own = make_backend();
  set_device_options({.smallest_product_bytes = 0});
  for (ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_IQ4_XS})
    for (int tokens : {1, 3}) {
      Layer layer(type, tokens);
      const std::vector<char> reference = layer.compute(plain);
      own->iface.graph_optimize(own, layer.graph(), nullptr);
      CHECK(layer.is_ordered());
      for (int slices : {1, 2, 3})
        for (int workers : {1, 3, 4}) {
          attach_pool(pool_of(workers, slices));
          const DeviceCounters before = device_counters();
          CHECK(layer.compute(own) == reference);
          const DeviceCounters after = device_counters();
          CHECK(after.attentions == before.attentions + 1);
          // Q, K and V are one job once the graph is in order.
          CHECK(after.dense_jobs == before.dense_jobs + (tokens == 1 ? 2 : 0));
          CHECK(after.lane_products == before.lane_products + (tokens == 1 ? 0 : 4));
        }
    }
  ggml_backend_free(own);
  ggml_backend_free(plain);
}

double squared_error(const std::vector<char>& bytes, const std::vector<char>& reference) {
  const auto* values = reinterpret_cast<const float*>(bytes.data());
  const auto* others = reinterpret_cast<const float*>(reference.data());
  double error = 0, power = 0;
  for (size_t index = 0; index < bytes.size() / sizeof(float); ++index) {
    error += std::pow(static_cast<double>(values[index]) - others[index], 2);
    power += std::pow(static_cast<double>(others[index]), 2);
  }
  return error / power;
}

// Attention of several tokens by our kernel: near to ggml's (which rounds a few tokens' queries to 16 bits),
// the same bits for any layout, and for one token ggml's own.
void test_prompt_attention() {
  ggml_backend_t plain = ggml_backend_cpu_init();
  ggml_backend_cpu_set_n_threads(plain, 1);
  ggml_backend_t own = make_backend();
  for (const InstructionSet set : {InstructionSet::kAvx2, InstructionSet::kAvx512Vnni}) {
    if (!cpu_has(set)) continue;
    set_device_options({.products = ProductSettings(set), .smallest_product_bytes = 0});
    for (const auto& [tokens, type] :
         {std::pair{1, GGML_TYPE_F32}, {3, GGML_TYPE_F32}, {70, GGML_TYPE_Q8_0}}) {
      // Without panels a batch of 70 is ggml's.
      if (tokens > 8 && !has_panels(set)) continue;
      Layer layer(type, tokens, type);
      const std::vector<char> reference = layer.compute(plain);
      attach_pool(pool_of(1, 1));
      const DeviceCounters before = device_counters();
      const std::vector<char> first = layer.compute(own);
      CHECK(device_counters().attentions == before.attentions + 1);
      CHECK((first == reference) == (tokens < 64));
      // Quantised, a value that differs in its last bit may round to the neighbouring int8.
      CHECK(squared_error(first, reference) < (type == GGML_TYPE_F32 ? 1e-7 : 1e-4));
      for (int slices : {1, 2, 3})
        for (int workers : {3, 4}) {
          attach_pool(pool_of(workers, slices));
          CHECK(layer.compute(own) == first);
        }
    }
  }
  ggml_backend_free(own);
  ggml_backend_free(plain);
}

void test_without_a_pool() {
  attach_pool(nullptr);
  ggml_backend_t own = make_backend();
  Layer layer(GGML_TYPE_Q8_0, 1);
  const DeviceCounters before = device_counters();
  layer.compute(own);
  CHECK(device_counters().whole_graphs == before.whole_graphs + 1);
  ggml_backend_free(own);
}

void test_abort() {
  attach_pool(pool_of(2, 2));
  int calls = 0;
  const auto third = [](void* data) { return ++*static_cast<int*>(data) == 3; };
  ggml_backend_t own = make_backend(third, &calls);
  Layer layer(GGML_TYPE_Q8_0, 1);
  CHECK(ggml_backend_graph_compute(own, layer.graph()) == GGML_STATUS_ABORTED);
  CHECK(ggml_backend_graph_compute(own, layer.graph()) == GGML_STATUS_SUCCESS);
  ggml_backend_free(own);
}

}  // namespace

int main() {
  register_pool_device();
  test_bits();
  test_prompt_attention();
  test_without_a_pool();
  test_abort();
  attach_pool(nullptr);
  std::printf("own graph: %d failures\n", stratad::test::failures);
  return stratad::test::failures == 0 ? 0 : 1;
}
