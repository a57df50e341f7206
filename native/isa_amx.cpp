// clang-format off: the instruction set comes before what is written in its terms
#include "simd_avx512.hpp"
#include "simd_amx.hpp"
#include "strip_amx.hpp"
#include "dots_backward.inl.hpp"
#include "dots_table.inl.hpp"
#include "strip_sums.inl.hpp"
// clang-format on

namespace clearhead {
extern const Dots bfloats_amx, halves_amx, floats_amx;
extern const DotsBackward bfloats_backward_amx, halves_backward_amx, floats_backward_amx;
const Dots bfloats_amx = dots(), halves_amx = sums<2>(), floats_amx = sums<3>();
extern const StripDots bfloats_strip_amx, halves_strip_amx, floats_strip_amx;
const StripDots bfloats_strip_amx = strip_dots(), halves_strip_amx = strip_sums<2>(),
                floats_strip_amx = strip_sums<3>();
const DotsBackward bfloats_backward_amx = dots_backward<1>(),
                   halves_backward_amx = dots_backward<2>(),
                   floats_backward_amx = dots_backward<3>();
}  // namespace clearhead
