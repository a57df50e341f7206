#include "backward_dots.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace clearhead {
namespace {

// Numbers whose products, and products of those, neither overflow nor lose what counts below the
// least number; see fits in sums.inl.hpp.
constexpr float kMost = 0x1p30f, kLeast = 0x1p-60f;
constexpr int64_t kSquare = kTile * kTile;

uint16_t* halves(Scratch<float>& scratch, int64_t n) {
    return reinterpret_cast<uint16_t*>(scratch.take(n / 2));
}

}  // namespace

DotGradients::DotGradients(const Problem& p, const Array& dout, const DotsBackward& dots,
                           int64_t chains, int64_t slots, int64_t workers, int64_t together)
    : p_(p),
      dout_(dout),
      dots_(dots),
      steps_(p.H / p.G * p.panels()),
      together_(together),
      memory_({slots * steps_ * step_size()}),
      laid_(memory_.take(slots * steps_ * step_size())),
      largest_(4 * chains),
      panels_(workers * together) {
    const int64_t pairs = dots.parts * 2 * tiles(p.D, 32) * kTile * kPanel;
    const int64_t weights = dots.parts * kPanel * kPanel;
    for (int64_t worker = 0; worker < workers; ++worker) {
        // What one block leaves to the next step is of no use after it: panels share that.
        Scratch<float>& shared = scratch_.emplace_back(std::initializer_list<int64_t>{
            8 * kSquare, 8 * kSquare, weights / 2, weights / 2, weights / 2, 4 * kSquare});
        KeyPanel one = {};
        one.D = p.D;
        one.E = p.E;
        one.s_factor = p.q_factor();
        one.cap_factor = p.softcap * kLog2e;
        one.s = shared.take(8 * kSquare);
        one.dp = shared.take(8 * kSquare);
        one.p = halves(shared, weights);
        one.ds = halves(shared, weights);
        one.ds_rows = halves(shared, weights);
        one.fresh = shared.take(4 * kSquare);
        for (int64_t i = 0; i < together; ++i) {
            Scratch<float>& own = scratch_.emplace_back(std::initializer_list<int64_t>{
                rows_of(p.D) / 2, rows_of(p.E) / 2, pairs / 2, p.D * kPanel, p.E * kPanel});
            one.kt = halves(own, rows_of(p.D));
            one.vt = halves(own, rows_of(p.E));
            one.k_pairs = halves(own, pairs);
            one.dkt = own.take(p.D * kPanel);
            one.dvt = own.take(p.E * kPanel);
            panel(static_cast<int>(worker), i) = one;
        }
    }
}

Laid DotGradients::laid(int slot, int64_t step, bool dout) const {
    uint16_t* const q = laid_ + (slot * steps_ + step) * step_size();
    if (!dout) return {q, q + rows_of(p_.D)};
    uint16_t* const d = q + rows_of(p_.D) + columns_of(p_.D);
    return {d, d + rows_of(p_.E)};
}

void DotGradients::lay_queries(int64_t chain, int slot, int64_t step, const Place& at) {
    const Matrix q = matrix(p_, p_.q, at, at.head, at.t0);
    const Matrix dout = matrix(p_, dout_, at, at.head, at.t0);
    for (int64_t group = 0; group < tiles(at.rows, kGroup); ++group) {
        dots_.lay_rows(q, at.rows, p_.D, group, laid(slot, step, false));
        dots_.lay_rows(dout, at.rows, p_.E, group, laid(slot, step, true));
    }
    look(chain, step, at);
}

void DotGradients::look(int64_t chain, int64_t step, const Place& at) {
    const int64_t own = at.head / (p_.H / p_.G);
    const int64_t s0 = step * p_.S / steps_, s1 = (step + 1) * p_.S / steps_;
    const auto note = [&](int which, const Matrix& m, int64_t rows, int64_t cols) {
        const uint32_t bits = std::bit_cast<uint32_t>(dots_.largest(m, rows, cols));
        std::atomic<uint32_t>& most = largest_[4 * chain + which];
        uint32_t before = most.load(std::memory_order_relaxed);
        while (bits > before && !most.compare_exchange_weak(before, bits)) continue;
    };
    note(0, matrix(p_, p_.q, at, at.head, at.t0), at.rows, p_.D);
    note(1, matrix(p_, p_.k, at, own, s0), s1 - s0, p_.D);
    note(2, matrix(p_, p_.v, at, own, s0), s1 - s0, p_.E);
    note(3, matrix(p_, dout_, at, at.head, at.t0), at.rows, p_.E);
}

bool DotGradients::holds(int64_t chain) const {
    return std::abs(p_.q_factor()) <= kMost &&
           std::all_of(&largest_[4 * chain], &largest_[4 * chain] + 4,
                       [](const std::atomic<uint32_t>& bits) {
                           const float x = std::bit_cast<float>(bits.load());
                           return x == 0 || (x >= kLeast && x <= kMost);
                       });
}

void DotGradients::begin(int worker, int64_t i, const Matrix& k, const Matrix& v, int64_t keys) {
    KeyPanel& it = panel(worker, i);
    it.keys = keys;
    it.k = k;
    it.v = v;
    dots_.begin(it);
}

void DotGradients::block(int worker, int64_t i, int slot, int64_t step, int64_t rows,
                         const float* const (&statistics)[3], const Block& block) {
    dots_.block(panel(worker, i), {rows, laid(slot, step, false), laid(slot, step, true),
                                   statistics[0], statistics[1], statistics[2], block.visible,
                                   static_cast<const float*>(block.bias)});
}

}  // namespace clearhead
