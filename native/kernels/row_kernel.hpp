// Row kernels of our own: rows of a weight matrix, as GGUF stores them, times activations.
//
// ggml's dot product takes one row at a time and reaches about half of what memory delivers. These walk two
// runs of rows side by side and ask for both a few KiB ahead, which brings them to the read ceiling
// (docs/BENCHMARKS.md). The weights stay in the standard layout, so ggml and GPUs read them in place.
//
// A row's sum depends on nothing but the row and the activations: not on which rows are walked with it, where
// a run begins, or how many tokens are multiplied at once. Hence any cut into slices and tasks gives the same
// bits. They are not ggml's bits: sums are formed in another order, from the same rounded activations.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ggml.h"

namespace stratad {

// What a kernel needs of the CPU, least first.
enum class InstructionSet { kAvx2, kAvx512Vnni };

// Two runs of as many rows each, which are multiplied side by side. `second` may be null: then `first` is
// walked alone. Rows of a run lie one behind the other.
struct RowStreams {
  const char* first = nullptr;
  const char* second = nullptr;
  int64_t row_count = 0;
  size_t row_bytes = 0;
  int64_t columns = 0;
  // What the same worker is likely to read next: prefetching runs over into it at the end. Null where
  // unknown.
  const char* after_first = nullptr;
  const char* after_second = nullptr;
};

// Tokens that a kernel multiplies while it reads a row once.
inline constexpr int kKernelTokens = 4;

struct RowKernel {
  ggml_type weight_type;
  InstructionSet instruction_set;
  // Columns must be a multiple of this: 256 for the types with blocks of 256, else the type's block.
  int64_t column_unit;
  // Size of one token's activations in the form that `multiply` reads; a multiple of 64.
  size_t (*activation_bytes)(int64_t columns) noexcept;
  // Brings `columns` floats into that form (64-byte aligned), rounded exactly as ggml rounds them for this
  // type.
  void (*quantise)(const float* values, int64_t columns, void* activations) noexcept;
  // first_output[t][r] = row r of the first run times token t's activations; likewise the second run.
  // 1 <= token_count <= kKernelTokens. Writes exactly row_count floats per token and run.
  void (*multiply)(const RowStreams& streams, const void* const* activations, int token_count,
                   float* const* first_output, float* const* second_output) noexcept;
  // The same for one run and any number of tokens, worth its rearranging of the rows from some tokens on:
  // output [t][r]. Sums are formed in another order than in `multiply`, the same for any run and any other
  // tokens. Null where the kernel has none.
  void (*multiply_panels)(const char* rows, int64_t row_count, size_t row_bytes, int64_t columns,
                          const void* const* activations, int token_count,
                          float* const* outputs) noexcept = nullptr;
  // The same with the same bits, by the CPU's tile registers (AMX). To be called only after prepare_tiles()
  // (kernels/tiles.hpp) had no objection. Null where the kernel has none.
  void (*multiply_tiles)(const char* rows, int64_t row_count, size_t row_bytes, int64_t columns,
                         const void* const* activations, int token_count,
                         float* const* outputs) noexcept = nullptr;
};

// Whether this CPU has all that the kernels of a set use.
bool cpu_has(InstructionSet set) noexcept;

// The kernel for a weight type, of this set or, where it has none for the type, of a lesser one. Null: none.
const RowKernel* find_row_kernel(ggml_type weight_type, InstructionSet set) noexcept;

// Whether any kernel of a set multiplies by panels.
bool has_panels(InstructionSet set) noexcept;

}  // namespace stratad
