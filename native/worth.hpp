// Whether to pack a head's keys and values for tile products: it pays where enough queries use each
// of them.
#pragma once
#include "mask.hpp"
#include "problem.hpp"

namespace clearhead {

// Of the `shared` query heads from that of `first` on. Depends on nothing but these heads' sizes
// and mask, so that they have the same bits in whatever batch, by however many threads. `mask` is
// the problem's, or null.
bool is_worth_packing(const Problem& p, int parts, const Place& first, int64_t shared, Mask* mask);

}  // namespace clearhead
