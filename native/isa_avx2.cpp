#include "simd_avx2.hpp"
// clang-format off: the instruction set comes first
#include "forward.inl.hpp"

namespace clearhead {
extern const Kernels kernels_avx2;
const Kernels kernels_avx2 = {"avx2", {begin<float>, begin<double>}, {attend<float>, attend<double>}, {finish<float>, finish<double>}};
}  // namespace clearhead
