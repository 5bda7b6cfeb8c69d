// The Python face of native/: coarse calls, structs with named fields, no addresses. Every call that can
// block releases the GIL; workers never call Python.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <system_error>

#include "arena/arena.hpp"
#include "arena/read_rate.hpp"
#include "arena/row_cut.hpp"
#include "backend/device.hpp"
#include "bindings/device.hpp"
#include "bindings/gpu_modules.hpp"
#include "bindings/measure.hpp"
#include "chat/answer_format.hpp"
#include "engine/context.hpp"
#include "engine/model.hpp"
#include "engine/sampler.hpp"
#include "gpu/gpu_offload.hpp"
#include "pool/pool.hpp"

namespace py = pybind11;
using namespace stratad;

namespace {

using ReleaseGil = py::call_guard<py::gil_scoped_release>;

// A Python callable as Progress: takes the GIL for the call. A Python exception travels on as
// error_already_set.
Progress progress_of(const py::object& callable) {
  if (callable.is_none()) return {};
  auto shared = std::make_shared<py::object>(callable);
  return [shared](const char* stage, double fraction) {
    const py::gil_scoped_acquire gil;
    return (*shared)(stage, fraction).cast<bool>();
  };
}

template <class T>
py::array_t<T> to_array(std::span<const T> values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

// A buffer's memory; `view` must outlive the span.
std::span<uint8_t> bytes_of(const py::buffer_info& view) {
  return {static_cast<uint8_t*>(view.ptr), static_cast<size_t>(view.size * view.itemsize)};
}

void translate_errors(py::module_& module) {
  static PyObject* model_load_error =
      py::exception<ModelLoadError>(module, "ModelLoadError", PyExc_RuntimeError).ptr();
  static PyObject* load_cancelled =
      py::exception<LoadCancelled>(module, "LoadCancelled", PyExc_RuntimeError).ptr();
  static PyObject* decode_error = py::exception<DecodeError>(module, "DecodeError", PyExc_RuntimeError).ptr();
  static PyObject* grammar_dead_end =
      py::exception<GrammarDeadEnd>(module, "GrammarDeadEnd", PyExc_ValueError).ptr();
  (void)model_load_error;
  (void)load_cancelled;
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const ModelLoadError& failure) {
      PyErr_SetString(model_load_error, failure.what());
    } catch (const LoadCancelled& failure) {
      PyErr_SetString(load_cancelled, failure.what());
    } catch (const GrammarDeadEnd& failure) {
      PyErr_SetString(grammar_dead_end, failure.what());
    } catch (const DecodeError& failure) {
      const py::object instance =
          py::reinterpret_steal<py::object>(PyObject_CallFunction(decode_error, "s", failure.what()));
      if (!instance) return;
      instance.attr("status") = failure.status;
      PyErr_SetObject(decode_error, instance.ptr());
    } catch (const std::system_error& failure) {
      const py::tuple arguments = py::make_tuple(failure.code().value(), failure.what());
      PyErr_SetObject(PyExc_OSError, arguments.ptr());
    }
  });
}

void bind_pool(py::module_& module) {
  py::class_<SliceSeat>(module, "SliceSeat")
      .def(py::init(
               [](std::vector<int> node_ids, int weight) { return SliceSeat{std::move(node_ids), weight}; }),
           py::arg("node_ids") = std::vector<int>{}, py::arg("weight") = 1)
      .def_readonly("node_ids", &SliceSeat::node_ids)
      .def_readonly("weight", &SliceSeat::weight);
  py::class_<WorkerSeat>(module, "WorkerSeat")
      .def(py::init(
               [](std::optional<int> cpu_id, int slice_index) { return WorkerSeat{cpu_id, slice_index}; }),
           py::arg("cpu_id") = std::nullopt, py::arg("slice_index") = 0)
      .def_readonly("cpu_id", &WorkerSeat::cpu_id)
      .def_readonly("slice_index", &WorkerSeat::slice_index);
  py::class_<SliceCounters>(module, "SliceCounters")
      .def_readonly("tasks", &SliceCounters::tasks)
      .def_property_readonly(
          "wait_seconds",
          [](const SliceCounters& c) { return static_cast<double>(c.wait_nanoseconds) * 1e-9; })
      .def_property_readonly("drain_seconds", [](const SliceCounters& c) {
        return static_cast<double>(c.drain_nanoseconds) * 1e-9;
      });
  py::class_<Pool, std::shared_ptr<Pool>>(module, "Pool")
      .def(py::init([](std::vector<SliceSeat> slices, std::vector<WorkerSeat> workers, double spin_seconds) {
             return std::make_shared<Pool>(WorkerLayout{std::move(slices), std::move(workers)},
                                           static_cast<uint64_t>(spin_seconds * 1e9));
           }),
           py::arg("slices"), py::arg("workers"), py::arg("spin_seconds") = 50e-6, ReleaseGil())
      .def_property_readonly("slice_count", &Pool::slice_count)
      .def_property_readonly("worker_count", &Pool::worker_count)
      .def(
          "workers_of",
          [](const Pool& pool, int slice) {
            if (slice < 0 || slice >= pool.slice_count()) throw std::out_of_range("no such slice");
            return pool.workers_of(slice);
          },
          py::arg("slice"))
      .def("adopt_calling_thread", &Pool::adopt_calling_thread)
      .def("counters", [](const Pool& pool) {
        std::vector<SliceCounters> counters;
        for (int slice = 0; slice < pool.slice_count(); ++slice) counters.push_back(pool.counters(slice));
        return counters;
      });
  module.def(
      "cut_rows",
      [](int64_t rows, size_t row_bytes, const std::vector<SliceSeat>& slices, int slice) {
        const RowRange range = cut_rows(rows, row_bytes, slices, slice);
        return std::pair(range.begin, range.end);
      },
      py::arg("rows"), py::arg("row_bytes"), py::arg("slices"), py::arg("slice"));
}

void bind_memory_policy(py::module_& module) {
  py::class_<PolicyFailure>(module, "PolicyFailure")
      .def_readonly("call", &PolicyFailure::call)
      .def_readonly("error_number", &PolicyFailure::error_number);
  py::enum_<PolicyMode>(module, "PolicyMode")
      .value("DEFAULT", PolicyMode::kDefault)
      .value("PREFERRED", PolicyMode::kPreferred)
      .value("INTERLEAVE", PolicyMode::kInterleave);
  module.def("probe_memory_policy", &probe_memory_policy);
  module.def(
      "set_thread_policy",
      [](PolicyMode mode, const std::vector<int>& node_ids) {
        if (const int error_number = set_thread_policy(mode, node_ids))
          throw std::system_error(error_number, std::generic_category(), "set_mempolicy");
      },
      py::arg("mode"), py::arg("node_ids") = std::vector<int>{});
}

void bind_arena(py::module_& module) {
  py::enum_<LockMode>(module, "LockMode").value("NEVER", LockMode::kNever).value("TRY", LockMode::kTry);
  py::class_<PlaceOptions>(module, "PlaceOptions")
      .def(py::init([](bool allow_huge_pages, size_t huge_page_bytes, LockMode lock, double limit_ratio,
                       bool repair) {
             return PlaceOptions{allow_huge_pages, huge_page_bytes, lock, limit_ratio, repair};
           }),
           py::arg("allow_huge_pages") = false, py::arg("huge_page_bytes") = 0,
           py::arg("lock") = LockMode::kTry, py::arg("limit_ratio") = 0.95, py::arg("repair") = true);
  py::class_<PlaceOutcome>(module, "PlaceOutcome")
      .def_readonly("failures", &PlaceOutcome::failures)
      .def_readonly("lowest_local_ratio", &PlaceOutcome::lowest_local_ratio)
      .def_readonly("repaired_pages", &PlaceOutcome::repaired_pages)
      .def_readonly("is_locked", &PlaceOutcome::is_locked)
      .def_readonly("lock_error_number", &PlaceOutcome::lock_error_number);
  py::class_<Arena, std::shared_ptr<Arena>>(module, "Arena")
      .def_property_readonly("size_bytes", [](const Arena& arena) { return arena.bytes().size(); })
      .def_property_readonly("slice_count", [](const Arena& arena) { return arena.layout().slices.size(); })
      .def_property_readonly("outcome", &Arena::outcome)
      .def("slice_bytes", &Arena::slice_bytes, py::arg("slice"))
      .def("repair", &Arena::repair, ReleaseGil())
      .def_property_readonly("are_pages_held", &Arena::are_pages_held)
      .def(
          "sample_placement",
          [](const Arena& arena, int slice, size_t page_count) {
            std::vector<int32_t> nodes;
            {
              const py::gil_scoped_release release;
              nodes = arena.sample_placement(slice, page_count);
            }
            return to_array(std::span<const int32_t>(nodes));
          },
          py::arg("slice"), py::arg("page_count"));
  module.def(
      "measure_read_rate", [](const Arena& arena, Pool& pool) { return measure_read_rate(arena, pool); },
      py::arg("arena"), py::arg("pool"), ReleaseGil());
}

void bind_inner_devices(py::module_& module) {
  py::class_<InnerDevice>(module, "GpuDevice")
      .def_readonly("name", &InnerDevice::name)
      .def_readonly("description", &InnerDevice::description)
      .def_readonly("backend", &InnerDevice::backend)
      .def_readonly("pci_address", &InnerDevice::pci_address)
      .def_readonly("free_bytes", &InnerDevice::free_bytes)
      .def_readonly("total_bytes", &InnerDevice::total_bytes);
  module.def("gpu_devices", &inner_devices, ReleaseGil());
}

void bind_gpu_counters(py::module_& module) {
  py::class_<CacheCounters>(module, "CacheCounters")
      .def_readonly("hits", &CacheCounters::hits)
      .def_readonly("misses", &CacheCounters::misses)
      .def_readonly("hit_bytes", &CacheCounters::hit_bytes)
      .def_readonly("swaps", &CacheCounters::swaps)
      .def_readonly("swap_bytes", &CacheCounters::swap_bytes)
      .def_readonly("slots", &CacheCounters::slots)
      .def_readonly("resident", &CacheCounters::resident)
      .def_readonly("device_bytes", &CacheCounters::device_bytes);
  py::class_<GpuCounters>(module, "GpuCounters")
      .def_readonly("graphs", &GpuCounters::graphs)
      .def_readonly("stretches", &GpuCounters::stretches)
      .def_readonly("pool_chains", &GpuCounters::pool_chains)
      .def_readonly("staged_products", &GpuCounters::staged_products)
      .def_readonly("staged_bytes", &GpuCounters::staged_bytes)
      .def_readonly("gpu_wait_seconds", &GpuCounters::gpu_wait_seconds)
      .def_readonly("pool_seconds", &GpuCounters::pool_seconds)
      .def_readonly("copy_seconds", &GpuCounters::copy_seconds)
      .def_readonly("upload_seconds", &GpuCounters::upload_seconds)
      .def_readonly("cache", &GpuCounters::cache);
  py::class_<MemoryOutcome>(module, "GpuMemoryOutcome")
      .def_readonly("device", &MemoryOutcome::device)
      .def_readonly("free_bytes", &MemoryOutcome::free_bytes)
      .def_readonly("has_staging", &MemoryOutcome::has_staging)
      .def_readonly("asked_bytes", &MemoryOutcome::asked_bytes)
      .def_readonly("cache_bytes", &MemoryOutcome::cache_bytes)
      .def_readonly("was_refused", &MemoryOutcome::was_refused)
      .def_readonly("cached_slots", &MemoryOutcome::cached_slots)
      .def_readonly("expert_layers", &MemoryOutcome::expert_layers);
}

void bind_gpu(py::module_& module) {
  bind_inner_devices(module);
  bind_gpu_counters(module);
  py::class_<GpuOffload, std::shared_ptr<GpuOffload>>(module, "GpuOffload")
      .def(py::init<const std::vector<std::string>&>(), py::arg("devices"), ReleaseGil())
      .def("inner_devices", &GpuOffload::inner_devices, ReleaseGil())
      .def(
          "open_memory",
          [](GpuOffload& gpu, uint64_t reserve_bytes, std::optional<uint64_t> cache_bytes, bool is_frozen,
             const ExpertProfile& profile, const py::object& progress) {
            const Progress native_progress = progress_of(progress);
            const py::gil_scoped_release release;
            return gpu.open_memory({reserve_bytes, cache_bytes, is_frozen}, profile, [&](double done) {
              return !native_progress || native_progress("filling the expert cache", done);
            });
          },
          py::kw_only(), py::arg("reserve_bytes"), py::arg("cache_bytes") = std::nullopt,
          py::arg("is_frozen") = false, py::arg("profile") = ExpertProfile{},
          py::arg("progress") = py::none())
      .def("profile", &GpuOffload::profile, ReleaseGil())
      .def("set_pool_tokens", &GpuOffload::set_pool_tokens, py::arg("tokens"))
      .def_property_readonly("failure", &GpuOffload::failure)
      .def("counters", &GpuOffload::counters);
  module.attr("DEFAULT_GPU_POOL_TOKENS") = kDefaultPoolTokens;
}

void bind_model(py::module_& module) {
  py::enum_<ArenaScope>(module, "ArenaScope")
      .value("EXPERTS", ArenaScope::kExperts)
      .value("WEIGHTS", ArenaScope::kWeights);
  py::class_<Model, std::shared_ptr<Model>>(module, "Model")
      .def_static(
          "load",
          [](const std::vector<std::string>& paths, std::shared_ptr<Pool> pool, const PlaceOptions& place,
             bool use_arena, const std::string& plain_gpu, ArenaScope scope, std::shared_ptr<GpuOffload> gpu,
             int gpu_layer_count, bool release_page_cache, const py::object& progress) {
            const Progress native_progress = progress_of(progress);
            const py::gil_scoped_release release;
            return Model::load({paths, use_arena, plain_gpu, scope, std::move(gpu), gpu_layer_count,
                                release_page_cache, place},
                               std::move(pool), native_progress);
          },
          py::arg("paths"), py::arg("pool") = nullptr, py::kw_only(), py::arg("place") = PlaceOptions{},
          py::arg("use_arena") = true, py::arg("plain_gpu") = "", py::arg("scope") = ArenaScope::kExperts,
          py::arg("gpu") = nullptr, py::arg("gpu_layer_count") = -1, py::arg("release_page_cache") = false,
          py::arg("progress") = py::none())
      .def_property_readonly("arenas", &Model::arenas)
      .def_property_readonly("gpu", &Model::gpu)
      .def("tokenize", &Model::tokenize, py::arg("text"), py::kw_only(), py::arg("add_special"),
           py::arg("parse_special"), ReleaseGil())
      .def(
          "token_bytes",
          [](const Model& model, llama_token token) { return py::bytes(model.token_bytes(token)); },
          py::arg("token"))
      .def(
          "token_text",
          [](const Model& model, llama_token token) {
            return std::string(llama_vocab_get_text(model.vocabulary(), token));
          },
          py::arg("token"))
      .def(
          "is_end_of_generation",
          [](const Model& model, llama_token token) { return llama_vocab_is_eog(model.vocabulary(), token); },
          py::arg("token"))
      .def_property_readonly("token_count",
                             [](const Model& model) { return llama_vocab_n_tokens(model.vocabulary()); })
      .def_property_readonly("bos_token",
                             [](const Model& model) { return llama_vocab_bos(model.vocabulary()); })
      .def_property_readonly("eos_token",
                             [](const Model& model) { return llama_vocab_eos(model.vocabulary()); })
      .def_property_readonly("trained_context_tokens",
                             [](const Model& model) { return llama_model_n_ctx_train(model.get()); })
      .def_property_readonly("chat_template", &Model::chat_template)
      .def("metadata", &Model::metadata, py::arg("key"));
}

void bind_context(py::module_& module) {
  module.attr("DEVICE_FAILED") = kDeviceFailed;
  py::class_<Batch>(module, "Batch")
      .def(py::init<>())
      .def("add", &Batch::add, py::arg("token"), py::arg("position"), py::arg("sequence") = 0,
           py::arg("wants_logits") = false)
      .def("clear", &Batch::clear)
      .def("__len__", &Batch::size);
  py::class_<DecodeCounters>(module, "DecodeCounters")
      .def_readonly("calls", &DecodeCounters::calls)
      .def_readonly("tokens", &DecodeCounters::tokens)
      .def_readonly("seconds", &DecodeCounters::seconds);
  py::class_<Context>(module, "Context")
      .def(py::init([](std::shared_ptr<Model> model, uint32_t context_tokens, uint32_t batch_tokens,
                       uint32_t sequence_count, int thread_count, std::vector<int> cpu_ids) {
             return std::make_unique<Context>(
                 std::move(model), ContextOptions{context_tokens, batch_tokens, sequence_count, thread_count,
                                                  std::move(cpu_ids)});
           }),
           py::arg("model"), py::kw_only(), py::arg("context_tokens") = 4096, py::arg("batch_tokens") = 512,
           py::arg("sequence_count") = 1, py::arg("thread_count") = 1,
           py::arg("cpu_ids") = std::vector<int>{}, ReleaseGil())
      .def_property_readonly("context_tokens", &Context::context_tokens)
      .def_property_readonly("counters", &Context::counters)
      .def("decode", &Context::decode, py::arg("batch"), ReleaseGil())
      .def("abort", &Context::abort)
      .def(
          "logits", [](const Context& context, int index) { return to_array(context.logits(index)); },
          py::arg("index") = -1)
      .def("forget", &Context::forget, py::arg("sequence"), py::arg("begin") = 0, py::arg("end") = -1,
           ReleaseGil())
      .def("cut", &Context::cut, py::arg("sequence"), py::arg("position"), ReleaseGil())
      .def("first_cut", &Context::first_cut, py::arg("sequence"))
      .def("first_cut_when_restored", &Context::first_cut_when_restored, py::arg("sequence"))
      .def("state_bytes", &Context::state_bytes, py::arg("sequence") = 0, ReleaseGil())
      .def(
          "save_state",
          [](const Context& context, llama_seq_id sequence, const py::buffer& state) {
            const py::buffer_info view = state.request(true);
            const std::span<uint8_t> bytes = bytes_of(view);
            const py::gil_scoped_release release;
            context.save_state(sequence, bytes);
          },
          py::arg("sequence"), py::arg("state"))
      .def(
          "restore_state",
          [](Context& context, llama_seq_id sequence, const py::buffer& state) {
            const py::buffer_info view = state.request();
            const std::span<const uint8_t> bytes = bytes_of(view);
            const py::gil_scoped_release release;
            context.restore_state(sequence, bytes);
          },
          py::arg("sequence"), py::arg("state"));
}

void bind_sampler(py::module_& module) {
  using Texts = std::vector<std::string>;
  py::class_<GrammarOptions>(module, "Grammar")
      .def(py::init([](std::string text, std::string prefix, Texts trigger_words, Texts trigger_patterns,
                       std::string thinking_start, Texts thinking_ends) {
             return GrammarOptions{std::move(text),           std::move(prefix),
                                   std::move(trigger_words),  std::move(trigger_patterns),
                                   std::move(thinking_start), std::move(thinking_ends)};
           }),
           py::arg("text"), py::kw_only(), py::arg("prefix") = "", py::arg("trigger_words") = Texts{},
           py::arg("trigger_patterns") = Texts{}, py::arg("thinking_start") = "",
           py::arg("thinking_ends") = Texts{});
  py::class_<Sampler>(module, "Sampler")
      .def(py::init([](std::shared_ptr<Model> model, float temperature, int top_k, float top_p, float min_p,
                       std::optional<uint32_t> seed, float repeat_penalty, float frequency_penalty,
                       float presence_penalty, int penalty_last_tokens, std::optional<GrammarOptions> grammar,
                       std::vector<std::pair<llama_token, float>> logit_bias) {
             return std::make_unique<Sampler>(
                 std::move(model), SamplerOptions{temperature, top_k, top_p, min_p, seed, repeat_penalty,
                                                  frequency_penalty, presence_penalty, penalty_last_tokens,
                                                  std::move(grammar), std::move(logit_bias)});
           }),
           py::arg("model"), py::kw_only(), py::arg("temperature") = 0.8f, py::arg("top_k") = 40,
           py::arg("top_p") = 0.95f, py::arg("min_p") = 0.05f, py::arg("seed") = std::nullopt,
           py::arg("repeat_penalty") = 1.0f, py::arg("frequency_penalty") = 0.0f,
           py::arg("presence_penalty") = 0.0f, py::arg("penalty_last_tokens") = 64,
           py::arg("grammar") = std::nullopt,
           py::arg("logit_bias") = std::vector<std::pair<llama_token, float>>{}, ReleaseGil())
      .def("sample", &Sampler::sample, py::arg("context"), py::arg("index") = -1, ReleaseGil());
}

void bind_chat(py::module_& module) {
  py::class_<ToolCall>(module, "ToolCall")
      .def_readonly("id", &ToolCall::id)
      .def_readonly("name", &ToolCall::name)
      .def_readonly("arguments", &ToolCall::arguments);
  py::class_<AnswerParts>(module, "AnswerParts")
      .def_readonly("reasoning", &AnswerParts::reasoning)
      .def_readonly("content", &AnswerParts::content)
      .def_readonly("tool_calls", &AnswerParts::tool_calls);
  py::class_<AnswerPlan>(module, "AnswerPlan")
      .def_readonly("prompt", &AnswerPlan::prompt)
      .def_readonly("prompt_end", &AnswerPlan::prompt_end)
      .def_readonly("grammar", &AnswerPlan::grammar)
      .def_readonly("trigger_words", &AnswerPlan::trigger_words)
      .def_readonly("trigger_patterns", &AnswerPlan::trigger_patterns)
      .def_readonly("marks", &AnswerPlan::marks)
      .def_readonly("stop_strings", &AnswerPlan::stop_strings)
      .def_readonly("thinking_start", &AnswerPlan::thinking_start)
      .def_readonly("thinking_ends", &AnswerPlan::thinking_ends)
      .def("parse", &AnswerPlan::parse, py::arg("text"), py::arg("is_partial"), ReleaseGil());
  py::class_<AnswerFormat>(module, "AnswerFormat")
      .def(py::init<const std::string&, const std::string&, const std::string&>(), py::arg("source"),
           py::kw_only(), py::arg("start_text"), py::arg("end_text"), ReleaseGil())
      .def_property_readonly("describes_tools", &AnswerFormat::describes_tools)
      .def_property_readonly("writes_tool_calls", &AnswerFormat::writes_tool_calls)
      .def_property_readonly("wants_object_arguments", &AnswerFormat::wants_object_arguments)
      .def_property_readonly("has_system_role", &AnswerFormat::has_system_role)
      .def_property_readonly("wants_content_parts", &AnswerFormat::wants_content_parts)
      .def("plan", &AnswerFormat::plan, py::arg("request"), ReleaseGil());
  module.def("grammar_of_schema", &grammar_of_schema, py::arg("schema"), ReleaseGil());
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.doc() = "Placed memory, pinned workers and llama.cpp behind them.";
  translate_errors(module);
  bind_pool(module);
  bind_memory_policy(module);
  bind_arena(module);
  bind_device(module);
  bind_gpu(module);
  bind_model(module);
  bind_context(module);
  bind_sampler(module);
  bind_chat(module);
  bind_measure(module);
  bind_gpu_modules(module);
  module.def("llama_version", [] { return std::string(llama_version()); });
}
