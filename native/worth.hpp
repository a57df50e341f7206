// Whether to pack a head's keys and values for tile products: it pays where enough queries use each
// of them.
#pragma once
#include <cstdint>
#include <vector>

#include "problem.hpp"

namespace clearhead {

// Of each head of keys, [batch][group], for a pass over a part. Depends on nothing but the sizes
// and the mask of the query heads that read it, so that they have the same bits in whatever batch,
// by however many threads.
std::vector<uint8_t> heads_worth_packing(const Problem& p, const Part& part, int parts);

}  // namespace clearhead
