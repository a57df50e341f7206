// clang-format off: the instruction set comes before what is written in its terms
#include "simd_neon.hpp"
#include "forward.inl.hpp"
#include "observe.inl.hpp"
#include "backward.inl.hpp"
#include "decode.inl.hpp"
#include "table.inl.hpp"
// clang-format on

namespace clearhead {
extern const Kernels kernels_neon;
const Kernels kernels_neon = table("neon");
}  // namespace clearhead
