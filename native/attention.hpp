// The driver: cuts a problem into panels, asks the mask which keys each panel needs, and lets the
// kernels of the chosen instruction set do the arithmetic.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "problem.hpp"

namespace clearhead {

// Writes p.out, and p.lse where wanted. Returns false if `interrupted` said so; the output is then
// incomplete. Throws nothing but std::bad_alloc: the problem has been checked.
bool forward(const Problem& p, const Kernels& kernels, const std::function<bool()>& interrupted);

// The same for the rows and keys of a part by the dot products of bfloat16 that kernels.dots has
// for this dtype (dots.cpp), for the heads of keys that are `worth` packing. Panels of others, and
// those whose numbers parts cannot hold, are left alone and marked, [batch][head][panel]. p.lse may
// be double.
bool forward_by_dots(const Problem& p, const Part& part, const Kernels& kernels,
                     const std::vector<uint8_t>& worth, const std::function<bool()>& interrupted,
                     std::vector<uint8_t>& left);

// The log-sum-exp of the rows of a part over its keys, in nats: lse[batch][head][t], in double also
// for float32 scores, so that weights of scores in the thousands keep their digits. Other rows
// stay. The forward pass with values of width 0.
bool row_lse(const Problem& p, double* lse, const Part& part, const Kernels& kernels,
             const std::function<bool()>& interrupted);

}  // namespace clearhead
