#include "attention.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "decode.hpp"
#include "dots.hpp"
#include "panels.hpp"
#include "shared_mask.hpp"
#include "threads.hpp"
#include "worth.hpp"

namespace clearhead {
namespace {

template <class Real>
struct ForwardWorker {
    Panel panel;
    Veil<Real> veil;
    Scratch<Real> scratch;

    explicit ForwardWorker(const Problem& p) : ForwardWorker(p, p.q.dtype > DType::f32) {}

  private:
    ForwardWorker(const Problem& p, bool converts)
        : veil(p),
          scratch({p.D * kPanel, p.E * kPanel, kBlock * kPanel, kPanel, 2 * kPanel,
                   converts * kBlock * p.D, converts * kBlock * p.E}) {
        panel.qt = scratch.take(p.D * kPanel);
        panel.ot = scratch.take(p.E * kPanel);
        panel.p = scratch.take(kBlock * kPanel);
        panel.m = scratch.take(kPanel);
        panel.l = scratch.take(2 * kPanel);
        panel.k_rows = scratch.take(converts * kBlock * p.D);
        panel.v_rows = scratch.take(converts * kBlock * p.E);
    }
};

template <class Real>
void write_lse(const Problem& p, const Place& at, const Panel& panel) {
    const Real* m = static_cast<const Real*>(panel.m);
    const Real* l = static_cast<const Real*>(panel.l);
    const int64_t start = p.offset(p.lse, at, at.head);
    Real* lse = static_cast<Real*>(const_cast<void*>(p.lse.data));
    for (int64_t r = 0; r < at.rows; ++r) {
        lse[start + (at.t0 + r) * p.lse.row] = static_cast<Real>(lse_of(m[r], l[r]));
    }
}

template <class Real>
void forward_panel(const Problem& p, const Kernels& kernels, const Place& at,
                   ForwardWorker<Real>& worker) {
    constexpr int precision = sizeof(Real) == 8;
    const int64_t group = at.head / (p.H / p.G);
    Panel& panel = worker.panel;
    panel.rows = at.rows;
    panel.D = p.D;
    panel.E = p.E;
    panel.q = matrix(p, p.q, at, at.head, at.t0);
    panel.k = matrix(p, p.k, at, group, 0);
    panel.v = matrix(p, p.v, at, group, 0);
    panel.q_factor = 1;  // after the sum, as in the backward pass: so that its P is this one
    panel.s_factor = p.q_factor();
    panel.cap_factor = p.softcap * kLog2e;
    panel.sink = in_log2<Real>(p.sink_at(at));
    kernels.begin[precision](panel);
    for_blocks(p, kernels, at, worker.veil,
               [&](const Block& block) { kernels.attend[precision](panel, block); });
    kernels.finish[precision](panel, matrix(p, p.out, at, at.head, at.t0));
    if (p.lse) write_lse<Real>(p, at, panel);
}

// The panels that `wanted` names, [batch][head][panel], or all of them if it is empty.
template <class Real>
bool forward_in(const Problem& p, const Kernels& kernels, const std::function<bool()>& interrupted,
                const std::vector<uint8_t>& wanted = {}) {
    const int64_t panels = p.panels(), tasks = p.batches() * p.H * panels;
    const int count = workers_for(tasks, p.operations());
    std::vector<ForwardWorker<Real>> workers;
    workers.reserve(count);
    for (int i = 0; i < count; ++i) workers.emplace_back(p);
    // The last panels of a causal head are the longest: they go first, so that none is left to run
    // alone at the end.
    return parallel_for(
        tasks, count,
        [&](int64_t task, int worker) {
            const int64_t panel = panels - 1 - task % panels, head = task / panels;
            if (!wanted.empty() && !wanted[head * panels + panel]) return;
            forward_panel(p, kernels, p.place(head / p.H, head % p.H, panel * kPanel),
                          workers[worker]);
        },
        interrupted);
}

}  // namespace

bool forward(const Problem& given, const Kernels& kernels,
             const std::function<bool()>& interrupted) {
    if (given.batches() * given.H * given.T == 0) return true;
    if (is_decode(given)) return decode(given, kernels, interrupted);
    const SharedMask shared(given, interrupted);
    if (!shared.complete) return false;
    Problem p = given;
    if (shared.mask) p.mask = &*shared.mask;
    if (const Dots* dots = kernels.dots[static_cast<int>(p.q.dtype)]) {
        std::vector<uint8_t> left;  // panels that are not done
        const std::vector<uint8_t> worth = heads_worth_packing(p, {}, dots->parts);
        if (!forward_by_dots(p, {}, kernels, worth, interrupted, left)) return false;
        const bool done = std::all_of(left.begin(), left.end(), [](uint8_t l) { return !l; });
        return done || forward_in<float>(p, kernels, interrupted, left);
    }
    return p.q.dtype == DType::f64 ? forward_in<double>(p, kernels, interrupted)
                                   : forward_in<float>(p, kernels, interrupted);
}

}  // namespace clearhead
