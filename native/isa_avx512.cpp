#include "simd_avx512.hpp"
// clang-format off: the instruction set comes first
#include "forward.inl.hpp"

namespace clearhead {
extern const Kernels kernels_avx512;
const Kernels kernels_avx512 = {"avx512", {begin<float>, begin<double>}, {attend<float>, attend<double>}, {finish<float>, finish<double>}};
}  // namespace clearhead
