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
void forward_panel(const Problem& p, Range keys, const Kernels& kernels, const Place& at,
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
    for_blocks(p, kernels, at, worker.veil, keys,
               [&](const Block& block) { kernels.attend[precision](panel, block); });
    kernels.finish[precision](panel, matrix(p, p.out, at, at.head, at.t0));
    if (p.lse) {
        write_lse(p, at, static_cast<const Real*>(panel.m), static_cast<const Real*>(panel.l));
    }
}

// The panels of a part that `wanted` names, [batch][head][panel], or all of them if it is empty.
template <class Real>
bool forward_in(const Problem& p, const Part& part, const Kernels& kernels,
                const std::function<bool()>& interrupted, const std::vector<uint8_t>& wanted = {}) {
    const int64_t panels = part.panels(p), tasks = p.batches() * p.H * panels;
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
            forward_panel(p, part.keys, kernels, part.place(p, head / p.H, head % p.H, panel),
                          workers[worker]);
        },
        interrupted);
}

bool forward_part(const Problem& p, const Part& part, const Kernels& kernels,
                  const std::function<bool()>& interrupted) {
    if (p.q.dtype == DType::f64) return forward_in<double>(p, part, kernels, interrupted);
    const Dots* dots = kernels.dots[static_cast<int>(p.q.dtype)];
    if (!dots) return forward_in<float>(p, part, kernels, interrupted);
    std::vector<uint8_t> left;  // panels that are not done
    const std::vector<uint8_t> worth = heads_worth_packing(p, part, dots->parts);
    if (!forward_by_dots(p, part, kernels, worth, interrupted, left)) return false;
    const bool done = std::all_of(left.begin(), left.end(), [](uint8_t l) { return !l; });
    return done || forward_in<float>(p, part, kernels, interrupted, left);
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
    return forward_part(p, {}, kernels, interrupted);
}

bool row_lse(const Problem& given, double* lse, const Part& part, const Kernels& kernels,
             const std::function<bool()>& interrupted) {
    if (given.batches() * given.H * part.panels(given) == 0) return true;
    Problem p = given;
    p.E = 0;
    p.v = p.k;
    p.lse = doubles_of_rows(p, lse);
    return forward_part(p, part, kernels, interrupted);
}

}  // namespace clearhead
