// The log-sum-exp of rows: the forward pass with values of width 0.
#include <algorithm>
#include <cmath>
#include <vector>

#include "attention.hpp"
#include "dots.hpp"
#include "observe.hpp"
#include "panels.hpp"
#include "threads.hpp"
#include "worth.hpp"

namespace clearhead {
namespace {

template <class Real>
struct LseWorker {
    Panel panel = {};
    Veil<Real> veil;
    Scratch<Real> scratch;

    explicit LseWorker(const Problem& p)
        : veil(p),
          scratch({p.D * kPanel, kBlock * kPanel, kPanel, 2 * kPanel,
                   (p.q.dtype > DType::f32) * kBlock * p.D}) {
        panel.D = p.D;
        panel.qt = scratch.take(p.D * kPanel);
        panel.p = scratch.take(kBlock * kPanel);
        panel.m = scratch.take(kPanel);
        panel.l = panel.ot = scratch.take(2 * kPanel);
        panel.k_rows = scratch.take((p.q.dtype > DType::f32) * kBlock * p.D);
        panel.q_factor = 1;
        panel.s_factor = p.q_factor();
        panel.cap_factor = p.softcap * kLog2e;
    }
};

// The panels of the part that `wanted` names, [batch][head][panel], or all of them if it is empty.
template <class Real>
bool row_lse_in(const Problem& p, double* lse, const Part& part, const Kernels& kernels,
                const std::function<bool()>& interrupted, const std::vector<uint8_t>& wanted = {}) {
    constexpr int precision = sizeof(Real) == 8;
    const int64_t panels = part.panels(p), tasks = p.batches() * p.H * panels;
    const int count = workers_for(tasks);
    std::vector<LseWorker<Real>> workers;
    workers.reserve(count);
    for (int i = 0; i < count; ++i) workers.emplace_back(p);
    const auto task_of = [&](int64_t task, int worker) {
        const int64_t head = task / panels, number = panels - 1 - task % panels;
        if (!wanted.empty() && !wanted[head * panels + number]) return;
        const Place at = part.place(p, head / p.H, head % p.H, number);
        Panel& panel = workers[worker].panel;
        panel.rows = at.rows;
        panel.q = matrix(p, p.q, at, at.head, at.t0);
        panel.k = matrix(p, p.k, at, at.head / (p.H / p.G), 0);
        panel.v = panel.k;
        panel.v_rows = panel.k_rows;
        panel.sink = in_log2<Real>(p.sink_at(at));
        kernels.begin[precision](panel);
        for_blocks(p, kernels, at, workers[worker].veil, part.keys,
                   [&](const Block& block) { kernels.attend[precision](panel, block); });
        const Real* m = static_cast<const Real*>(panel.m);
        const Real* l = static_cast<const Real*>(panel.l);
        for (int64_t r = 0; r < at.rows; ++r) {
            lse[head * p.T + at.t0 + r] = lse_of(m[r], l[r]);
        }
    };
    return parallel_for(tasks, count, task_of, interrupted);
}

}  // namespace

bool row_lse(const Problem& given, double* lse, const Part& part, const Kernels& kernels,
             const std::function<bool()>& interrupted) {
    if (given.batches() * given.H * part.panels(given) == 0) return true;
    if (given.q.dtype == DType::f64) {
        return row_lse_in<double>(given, lse, part, kernels, interrupted);
    }
    const Dots* dots = kernels.dots[static_cast<int>(given.q.dtype)];
    if (!dots) return row_lse_in<float>(given, lse, part, kernels, interrupted);
    Problem p = given;
    p.E = 0;
    p.lse = doubles_of_rows(p, lse);
    std::vector<uint8_t> left;
    const std::vector<uint8_t> worth = heads_worth_packing(p, part, dots->parts);
    if (!forward_by_dots(p, part, kernels, worth, interrupted, left)) return false;
    const bool done = std::all_of(left.begin(), left.end(), [](uint8_t l) { return !l; });
    return done || row_lse_in<float>(given, lse, part, kernels, interrupted, left);
}

}  // namespace clearhead
