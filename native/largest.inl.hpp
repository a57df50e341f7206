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

// Few of the largest: `top` levels of a vector each, sorted down, so that 16 rows take in a key at
// once: it takes the place of the first that is smaller, and that and all below it move down. Of
// equals the one that came first stays above. A key is carried as the bits of a Real.
template <class Real>
void sort_in(const Watch& watch, const Real* x, int64_t keys, int64_t begin, int64_t column) {
    using S = Simd<Real>;
    Real* scores = static_cast<Real*>(watch.top_score) + column;
    Real* places = static_cast<Real*>(watch.top_place) + column;
    const Real* least = scores + (watch.top - 1) * kPanel;
    for (int64_t i = 0; i < keys; ++i) {
        Vec<Real> score = S::load(x + i * kPanel);
        if (!S::any(S::greater(score, S::load(least)))) continue;
        Vec<Real> place = S::set1(__builtin_bit_cast(Real, typename BitsOf<Real>::Type(begin + i)));
        auto larger = S::greater(score, score);  // nowhere yet; from there on all move down
        for (int64_t at = 0; at < watch.top * kPanel; at += kPanel) {
            const Vec<Real> old = S::load(scores + at), old_place = S::load(places + at);
            larger = S::either(larger, S::greater(score, old));
            S::store(scores + at, S::select(larger, score, old));
            S::store(places + at, S::select(larger, place, old_place));
            score = S::select(larger, old, score);
            place = S::select(larger, old_place, place);
        }
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
