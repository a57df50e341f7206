// clang-format off: the instruction set comes before what is written in its terms
#include "simd_avx512.hpp"
#include "forward.inl.hpp"
#include "observe.inl.hpp"
#include "backward.inl.hpp"
#include "decode.inl.hpp"
#include "table.inl.hpp"
// clang-format on

namespace clearhead {
extern const Kernels kernels_avx512;
const Kernels kernels_avx512 = table("avx512");
}  // namespace clearhead
