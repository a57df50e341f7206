// clang-format off: the instruction set comes before what is written in its terms
#include "simd_avx2.hpp"
#include "forward.inl.hpp"
#include "observe.inl.hpp"
#include "backward.inl.hpp"
#include "decode.inl.hpp"
#include "table.inl.hpp"
// clang-format on

namespace clearhead {
extern const Kernels kernels_avx2;
const Kernels kernels_avx2 = table("avx2");
}  // namespace clearhead
