// Boolean arrays that several heads share, turned to bits once for all of them.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "mask.hpp"

namespace clearhead {

// The mask of `p` with the bits of such arrays in place of their booleans, and where they are kept.
// Without a mask: the problem's own has no such array, or one too large to keep.
struct SharedMask {
    std::optional<Mask> mask;
    std::vector<std::vector<uint64_t>> bits;
    bool complete = true;  // false: `interrupted` said so

    SharedMask(const Problem& p, const std::function<bool()>& interrupted);
};

}  // namespace clearhead
