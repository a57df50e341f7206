// One worker of a backward pass by plain kernels, and what a panel of queries needs before it walks
// its keys.
#pragma once
#include <algorithm>
#include <vector>

#include "gradient.hpp"

namespace clearhead {

template <class Real>
struct GradientWorker {
    GradientPanel panel;
    Veil<Real> veil;
    std::vector<uint64_t> by_row;  // mask bits of a block of queries, one word a query
    std::vector<Real> lanes;  // [3][kPanel]: shift, delta and factor of the lanes at hand, padded
    Scratch<Real> scratch;

    explicit GradientWorker(const Problem& p) : GradientWorker(p, p.q.dtype > DType::f32) {}

    // A kernel reads whole vectors, so the statistics of its lanes stand padded.
    Real* shift() { return lanes.data(); }
    Real* delta() { return lanes.data() + kPanel; }
    Real* factor() { return lanes.data() + 2 * kPanel; }

  private:
    GradientWorker(const Problem& p, bool converts)
        : veil(p),
          by_row(kPanel),
          lanes(3 * kPanel),
          scratch({p.D * kPanel, p.D * kPanel, whole_panels(p.D) * kPanel, p.E * kPanel,
                   p.E * kPanel, kBlock * kPanel, kBlock * kPanel, 2 * kPanel,
                   converts * kBlock * p.D, converts * kBlock * p.E}) {
        panel.D = p.D;
        panel.E = p.E;
        panel.cap_factor = p.softcap * kLog2e;
        panel.s_factor = p.q_factor();
        panel.xt = scratch.take(p.D * kPanel);
        panel.dxt = scratch.take(p.D * kPanel);
        panel.x_rows = scratch.take(whole_panels(p.D) * kPanel);
        panel.yt = scratch.take(p.E * kPanel);
        panel.dyt = scratch.take(p.E * kPanel);
        panel.p = scratch.take(kBlock * kPanel);
        panel.slope = scratch.take(kBlock * kPanel);
        panel.sums = scratch.take(2 * kPanel);
        panel.a_rows = scratch.take(converts * kBlock * p.D);
        panel.b_rows = scratch.take(converts * kBlock * p.E);
    }

    static int64_t whole_panels(int64_t n) { return (n + kPanel - 1) / kPanel * kPanel; }
};

// Where the rows of a panel stand among all queries, [batch][head][T].
inline int64_t first_query(const Problem& p, const Place& at) {
    return (at.batch * p.H + at.head) * p.T + at.t0;
}

// A panel of queries, ready for its blocks of keys.
template <class Real>
void begin_queries(const Problem& p, const Array& dout, const Kernels& kernels,
                   const Statistics<Real>& statistics, const Place& at, GradientWorker<Real>& w) {
    const int64_t group = at.head / (p.H / p.G), first = first_query(p, at);
    GradientPanel& panel = w.panel;
    panel.lanes = at.rows;
    panel.by_lane = true;
    panel.x = matrix(p, p.q, at, at.head, at.t0);
    panel.y = matrix(p, dout, at, at.head, at.t0);
    panel.a = matrix(p, p.k, at, group, 0);
    panel.b = matrix(p, p.v, at, group, 0);
    std::copy_n(&statistics.shift[first], at.rows, w.shift());
    std::copy_n(&statistics.delta[first], at.rows, w.delta());
    panel.shift = w.shift();
    panel.delta = w.delta();
    kernels.gradient_begin[sizeof(Real) == 8](panel);
}

}  // namespace clearhead
