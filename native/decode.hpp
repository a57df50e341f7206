// Forward passes of few queries: decoding with a cache, short prompts of grouped heads.
#pragma once
#include <functional>

#include "problem.hpp"

namespace clearhead {

// Whether `decode` is the faster way.
bool is_decode(const Problem& p);

// As `forward`, to the same contract.
bool decode(const Problem& p, const Kernels& kernels, const std::function<bool()>& interrupted);

}  // namespace clearhead
