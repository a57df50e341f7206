// clang-format off: the instruction set comes before what is written in its terms
#include "simd_avx512.hpp"
#include "simd_amx.hpp"
#include "dots.inl.hpp"
// clang-format on

namespace clearhead {
extern const Dots dots_amx;
const Dots dots_amx = dots();
}  // namespace clearhead
