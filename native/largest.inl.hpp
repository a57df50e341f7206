// The largest weights of each row of a panel. Few are sorted in as they come; many are listed.
#pragma once
#include "tile.inl.hpp"
#include "watch.hpp"

namespace clearhead {
namespace {

// An integer of a Real's size: what its bits hold of a key.
template <class Real>
struct BitsOf;
template <>
struct BitsOf<float> {
    using Type = int32_t;
};
template <>
struct BitsOf<double> {
    using Type = int64_t;
};

// Few of the largest: `top` levels of a vector each, sorted down. Each row takes in a score of its
// own: those that are larger stay, it comes below them, and the rest move down, all levels at once.
// Of equals the one that came first stays above. A key is carried as the bits of a Real.
template <class Real>
inline void take_in(Real* scores, Real* places, int64_t top, Vec<Real> score, Vec<Real> place) {
    using S = Simd<Real>;
    int64_t at = (top - 1) * kPanel;
    Vec<Real> old = S::load(scores + at), old_place = S::load(places + at);
    auto below = S::greater(score, old);
    for (; at > 0; at -= kPanel) {
        const Vec<Real> next = S::load(scores + at - kPanel);
        const Vec<Real> next_place = S::load(places + at - kPanel);
        const auto moves = S::greater(score, next);
        const Vec<Real> from = S::select(moves, next, score);
        const Vec<Real> from_place = S::select(moves, next_place, place);
        S::store(scores + at, S::select(below, from, old));
        S::store(places + at, S::select(below, from_place, old_place));
        old = next, old_place = next_place, below = moves;
    }
    S::store(scores, S::select(below, score, old));
    S::store(places, S::select(below, place, old_place));
}

constexpr int kKeysAtOnce = 4;

// The scores of some keys, from `begin` on, of which one at least is larger than the least of its
// row. Rows take in the first such score each at once, whatever its key; seldom is there another.
template <class Real>
inline void sort_in(const Watch& watch, const Vec<Real> (&x)[kKeysAtOnce], int64_t begin,
                    int64_t column) {
    using S = Simd<Real>;
    Real* scores = static_cast<Real*>(watch.top_score) + column;
    Real* places = static_cast<Real*>(watch.top_place) + column;
    const auto place = [begin](int i) {
        return S::set1(__builtin_bit_cast(Real, typename BitsOf<Real>::Type(begin + i)));
    };
    const Vec<Real> least = S::load(scores + (watch.top - 1) * kPanel);
    constexpr int last = kKeysAtOnce - 1;
    Vec<Real> first = x[last], first_place = place(last);
    auto later = S::greater(first, least), again = S::greater(least, least);  // nowhere yet
#pragma GCC unroll 4
    for (int i = last - 1; i >= 0; --i) {
        const auto larger = S::greater(x[i], least);
        first = S::select(larger, x[i], first);
        first_place = S::select(larger, place(i), first_place);
        again = S::either(again, S::both(larger, later));
        later = S::either(larger, later);
    }
    take_in(scores, places, watch.top, first, first_place);
    if (!S::any(again)) return;
    auto taken = S::greater(x[0], least);
    for (int i = 1; i <= last; ++i) {
        const auto larger = S::greater(x[i], least);
        const Vec<Real> next = S::select(S::both(taken, larger), x[i], least);
        take_in(scores, places, watch.top, next, place(i));
        taken = S::either(taken, larger);
    }
}

// The same of any number of keys, whose scores are in memory.
template <class Real>
void sort_in(const Watch& watch, const Real* x, int64_t keys, int64_t begin, int64_t column) {
    using S = Simd<Real>;
    const Real* levels = static_cast<const Real*>(watch.top_score) + column;
    for (int64_t key = 0; key < keys; key += kKeysAtOnce) {
        const Vec<Real> least = S::load(levels + (watch.top - 1) * kPanel);
        Vec<Real> some[kKeysAtOnce];
        auto larger = S::greater(least, least);
        for (int64_t i = 0; i < kKeysAtOnce; ++i) {
            some[i] = key + i < keys ? S::load(x + (key + i) * kPanel) : least;
            larger = S::either(larger, S::greater(some[i], least));
        }
        if (S::any(larger)) sort_in<Real>(watch, some, begin + key, column);
    }
}

// Many of the largest: each row has a list of twice the length, and now and then drops its lower
// half. The k-th largest of n > k scores, which it reorders: Hoare's quickselect.
template <class Real>
Real kth_largest(Real* x, int64_t n, int64_t k) {
    int64_t low = 0, high = n - 1;
    while (low < high) {
        const Real pivot = x[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (x[i] > pivot) ++i;
            while (pivot > x[j]) --j;
            if (i > j) break;
            const Real swapped = x[i];
            x[i++] = x[j];
            x[j--] = swapped;
        }
        if (k - 1 <= j) {
            high = j;
        } else if (k - 1 >= i) {
            low = i;
        } else {
            break;
        }
    }
    return x[k - 1];
}

// A row's list is full: keeps its `top` largest scores in their order, which is that of the keys,
// so that of equals the lower keys stay; the least of them is what the next must pass.
template <class Real>
__attribute__((noinline)) void keep_largest(const Watch& watch, int64_t row) {
    Real* score = static_cast<Real*>(watch.top_score) + row * watch.top_room;
    Real* spare = static_cast<Real*>(watch.top_spare);
    int64_t* keys = watch.top_key + row * watch.top_room;
    const int64_t n = watch.top_count[row];
    for (int64_t i = 0; i < n; ++i) spare[i] = score[i];
    const Real least = kth_largest(spare, n, watch.top);
    int64_t equals = watch.top, kept = 0;
    for (int64_t i = 0; i < n; ++i) equals -= score[i] > least;
    for (int64_t i = 0; i < n; ++i) {
        if (score[i] < least || (score[i] == least && equals-- <= 0)) continue;
        score[kept] = score[i];
        keys[kept++] = keys[i];
    }
    watch.top_count[row] = kept;
    static_cast<Real*>(watch.threshold)[row] = least;
}

// Scores of a block that pass their row's threshold, each with the place it has in P.
template <class Real>
struct Finds {
    Real *score, *place;
    int64_t count = 0;
};

template <class Real>
void find(const Watch& watch, const Real* x, int64_t keys, int64_t key, int64_t column,
          Finds<Real>& finds) {
    using S = Simd<Real>;
    alignas(64) static constexpr Real kCount[] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                  8, 9, 10, 11, 12, 13, 14, 15};
    const Vec<Real> lane = S::load(kCount);
    const Vec<Real> threshold = S::load(static_cast<const Real*>(watch.threshold) + column);
    for (int64_t i = 0; i < keys; ++i) {
        const Vec<Real> score = S::load(x + i * kPanel);
        const auto passes = S::greater(score, threshold);
        const Vec<Real> first = S::set1(Real((key + i) * kPanel + column));
        S::compress(finds.place + finds.count, passes, S::add(first, lane));
        finds.count += S::compress(finds.score + finds.count, passes, score);
    }
}

// Finds go to their rows' lists. Keys come in order, and only a strictly larger score passes.
template <class Real>
void list_finds(const Watch& watch, const Finds<Real>& finds, int64_t begin) {
    for (int64_t i = 0; i < finds.count; ++i) {
        const int64_t place = static_cast<int64_t>(finds.place[i]), row = place % kPanel;
        const int64_t at = row * watch.top_room + watch.top_count[row]++;
        static_cast<Real*>(watch.top_score)[at] = finds.score[i];
        watch.top_key[at] = begin + place / kPanel;
        if (watch.top_count[row] == watch.top_room) keep_largest<Real>(watch, row);
    }
}

}  // namespace
}  // namespace clearhead
