// The driver: cuts a problem into panels, asks the mask which keys each panel needs, and lets the
// kernels of the chosen instruction set do the arithmetic.
#pragma once
#include <functional>

#include "problem.hpp"

namespace clearhead {

// Writes p.out, and p.lse where wanted. Returns false if `interrupted` said so; the output is then
// incomplete. Throws nothing but std::bad_alloc: the problem has been checked.
bool forward(const Problem& p, const Kernels& kernels, const std::function<bool()>& interrupted);

// The same in bfloat16 by the dot products of kernels.dots (dots.cpp).
bool forward_by_dots(const Problem& p, const Kernels& kernels,
                     const std::function<bool()>& interrupted);

}  // namespace clearhead
