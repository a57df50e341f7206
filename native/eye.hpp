// One panel of an observation: its queries, their lse, and what is kept of its rows.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "observe.hpp"
#include "panels.hpp"
#include "watch.hpp"

namespace clearhead {

// Not a multiple of 4096 bytes: a store to the one and a load of the other would seem to meet.
constexpr int64_t kPendingRoom = (kPending + 1) * kPanel;
constexpr int64_t kFew = 32;  // of the largest weights: above, a list per row is cheaper

// What is kept of one panel's rows while the keys pass by.
template <class Real>
struct Eye {
    Place at = {};
    Scratch<Real> scratch;
    Panel panel = {};
    Watch watch = {};
    Real *low, *weights, *top_score, *top_place, *threshold, *largest;
    std::vector<int64_t> top_key, top_count;
    Grid grids[kMaxGrids];

    Eye(const Problem& p, const ObservationRequest& wanted);

    // Whether the largest weights are kept in lists: where they are many, and where the number of a
    // key does not fit the bits of a float.
    static bool lists(const Problem& p, const ObservationRequest& wanted) {
        return wanted.top > kFew || (wanted.top > 0 && p.S > INT32_MAX);
    }
    static int64_t room(const Problem& p, const ObservationRequest& wanted) {
        return lists(p, wanted) ? 2 * wanted.top : 0;
    }
    // Scores and keys that are kept for a row.
    static int64_t kept(const Problem& p, const ObservationRequest& wanted) {
        return lists(p, wanted) ? room(p, wanted) : wanted.top;
    }

    void aim(const Problem& p, const ObservationRequest& request, const Place& place);
    void take_lse(const Problem& p);
};

template <class Real>
Eye<Real>::Eye(const Problem& p, const ObservationRequest& wanted)
    : scratch({p.D * kPanel, kPanel, 2 * kPanel, kPanel, wanted.columns * kPanel,
               kept(p, wanted) * kPanel, kept(p, wanted) * kPanel, kPanel, kPanel,
               kMaxGrids * kPendingRoom, kMaxGrids * kPendingRoom}),
      top_key(room(p, wanted) * kPanel),
      top_count(kPanel) {
    panel.D = p.D;
    panel.qt = scratch.take(p.D * kPanel);
    panel.m = scratch.take(kPanel);
    panel.l = panel.ot = scratch.take(2 * kPanel);
    panel.q_factor = p.q_factor();
    panel.s_factor = 1;
    panel.cap_factor = p.softcap * kLog2e;
    panel.sink = -INFINITY;
    low = scratch.take(kPanel);
    weights = scratch.take(wanted.columns * kPanel);
    top_score = scratch.take(kept(p, wanted) * kPanel);
    top_place = scratch.take(kept(p, wanted) * kPanel);
    threshold = scratch.take(kPanel);
    largest = scratch.take(kPanel);

    watch.low = low;
    watch.grid_count = static_cast<int64_t>(wanted.grids.size());
    watch.columns = wanted.columns;
    watch.weights = wanted.weights ? weights : nullptr;
    watch.S = p.S;
    watch.largest = wanted.largest ? largest : nullptr;
    watch.top = wanted.top;
    watch.top_score = top_score;
    watch.top_key = top_key.data();
    watch.top_room = room(p, wanted);
    watch.top_count = top_count.data();
    watch.threshold =
        lists(p, wanted) || wanted.top == 0 ? threshold : top_score + (wanted.top - 1) * kPanel;
    watch.top_place = lists(p, wanted) ? nullptr : top_place;
    watch.distances = wanted.distances;
    for (size_t g = 0; g < wanted.grids.size(); ++g) {
        grids[g].pending_sum = scratch.take(kPendingRoom);
        grids[g].pending_largest = scratch.take(kPendingRoom);
    }
}

// Points the panel and what is watched at rows that it has not seen yet.
template <class Real>
void Eye<Real>::aim(const Problem& p, const ObservationRequest& request, const Place& place) {
    at = place;
    panel.rows = at.rows;
    panel.q = matrix(p, p.q, at, at.head, at.t0);
    panel.k = matrix(p, p.k, at, at.head / (p.H / p.G), 0);
    watch.rows = at.rows;
    watch.grids = grids;
    watch.position = at.t0 + p.S - p.T;
    if (request.weights) {
        const Array& a = request.weights;
        const int64_t start = p.offset(a, at, at.head);
        for (int64_t c = 0; c < request.columns; ++c) {
            for (int64_t r = 0; r < kPanel; ++r) {
                const int64_t from = start + c * a.row + (at.t0 + r) * a.col;
                weights[c * kPanel + r] =
                    r < at.rows ? static_cast<const Real*>(a.data)[from] : Real(0);
            }
        }
    }
    std::fill_n(largest, kPanel, Real(-INFINITY));
    std::fill_n(threshold, kPanel, Real(-INFINITY));
    std::fill(top_count.begin(), top_count.end(), 0);
    std::fill_n(top_score, kept(p, request) * kPanel, Real(-INFINITY));
}

// Puts the rows' lse into panel.m, and what rounding takes from it into `low`.
template <class Real>
void Eye<Real>::take_lse(const Problem& p) {
    Real* lse = static_cast<Real*>(panel.m);
    const int64_t start = p.offset(p.lse, at, at.head);
    for (int64_t r = 0; r < kPanel; ++r) {
        lse[r] = INFINITY;
        low[r] = 0;
        if (r >= at.rows) continue;
        const double nats = read(p.lse.data, p.lse.dtype, start + (at.t0 + r) * p.lse.row);
        if (nats == -INFINITY) continue;  // sees no key: +inf makes every weight 0
        lse[r] = in_log2<Real>(nats);
        if (std::abs(nats) < 1e30) low[r] = static_cast<Real>(nats * kLog2e - lse[r]);
    }
}

}  // namespace clearhead
