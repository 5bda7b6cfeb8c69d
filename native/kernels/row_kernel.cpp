#include "kernels/row_kernel.hpp"

#include "kernels/kernel_table.hpp"

namespace stratad {

bool cpu_has(InstructionSet set) noexcept {
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
  if (set == InstructionSet::kAvx2) return has_avx2;
  return has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

namespace {

std::span<const RowKernel> kernels_of(InstructionSet set) noexcept {
  return set == InstructionSet::kAvx512Vnni ? avx512_row_kernels() : avx2_row_kernels();
}

}  // namespace

const RowKernel* find_row_kernel(ggml_type weight_type, InstructionSet set) noexcept {
  for (const InstructionSet tried : {set, InstructionSet::kAvx2})
    for (const RowKernel& kernel : kernels_of(tried))
      if (kernel.weight_type == weight_type) return &kernel;
  return nullptr;
}

bool has_panels(InstructionSet set) noexcept {
  for (const RowKernel& kernel : kernels_of(set))
    if (kernel.multiply_panels != nullptr) return true;
  return false;
}

}  // namespace stratad
