// What follows from the caches of the processor that runs us.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels.hpp"

namespace clearhead {

// Bytes of a core's first-level data cache, asked once; 32 KiB where the system does not say.
int64_t first_level_bytes();
// And of its second-level cache; 256 KiB.
int64_t second_level_bytes();

// Keys of a block, whose weights P, [keys][kPanel], are written by one product and read by the
// next: they get half of the first-level cache, and the rows of Q, K and V that pass by them the
// rest. A multiple of 12, so that tiles of 6, 4 or 3 keys come out even; at most kBlock, for which
// scratch is laid out, since more won nothing.
constexpr int64_t block_keys(int64_t cache_bytes, int64_t bytes_of_weight) {
    const int64_t fit = cache_bytes / 2 / (kPanel * bytes_of_weight);
    return std::clamp<int64_t>(fit / 12 * 12, 24, kBlock);
}

}  // namespace clearhead
