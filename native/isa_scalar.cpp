#include "simd_scalar.hpp"
// clang-format off: the instruction set comes first
#include "forward.inl.hpp"

namespace clearhead {
extern const Kernels kernels_scalar;
const Kernels kernels_scalar = {"scalar", {begin<float>, begin<double>}, {attend<float>, attend<double>}, {finish<float>, finish<double>}};
}  // namespace clearhead
