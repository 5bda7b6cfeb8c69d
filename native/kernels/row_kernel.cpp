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

const RowKernel* find_row_kernel(ggml_type weight_type, InstructionSet set) noexcept {
  if (set == InstructionSet::kAvx512Vnni)
    for (const RowKernel& kernel : avx512_row_kernels())
      if (kernel.weight_type == weight_type) return &kernel;
  for (const RowKernel& kernel : avx2_row_kernels())
    if (kernel.weight_type == weight_type) return &kernel;
  return nullptr;
}

}  // namespace stratad
