// The driver of the backward pass.
#pragma once
#include <functional>

#include "problem.hpp"

namespace clearhead {

// Where the gradients go. q, k, v have the full leading shape of the problem: where an input was
// broadcast, the caller sums. bias has the bias's own shape and starts at 0; sink is [lead..., H].
// An array without data is not wanted. bias and sink hold double for f64 and float otherwise.
struct Gradients {
    Array q, k, v, bias, sink;
};

// `p` carries out and lse of the forward pass as inputs. As forward() otherwise.
bool backward(const Problem& p, const Array& dout, const Gradients& gradients,
              const Kernels& kernels, const std::function<bool()>& interrupted);

}  // namespace clearhead
