// clang-format off: the instruction set comes before what is written in its terms
#include "simd_scalar.hpp"
#include "forward.inl.hpp"
#include "observe.inl.hpp"
#include "backward.inl.hpp"
#include "decode.inl.hpp"
#include "table.inl.hpp"
// clang-format on

namespace clearhead {
extern const Kernels kernels_scalar;
const Kernels kernels_scalar = table("scalar");
}  // namespace clearhead
