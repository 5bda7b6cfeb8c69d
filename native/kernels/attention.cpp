#include "kernels/attention.hpp"

#include "kernels/kernel_table.hpp"

namespace stratad {

const AttentionKernel& attention_kernel(InstructionSet set) noexcept {
  return set == InstructionSet::kAvx512Vnni ? avx512_attention_kernel() : avx2_attention_kernel();
}

}  // namespace stratad
