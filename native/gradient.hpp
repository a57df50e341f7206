// What drivers of a backward pass share, whatever their kernels: what is known of every query,
// which keys it sees, and the order in which panels of keys add to dq.
#pragma once
#include <algorithm>
#include <vector>

#include "chains.hpp"
#include "panels.hpp"

namespace clearhead {

// What the passes know of every query, [batch][head][T]; see GradientPanel.
template <class Real>
struct Statistics {
    std::vector<Real> shift, delta, factor;

    explicit Statistics(int64_t n) : shift(n), delta(n), factor(n) {}
};

// What is said of the queries of one chain: those of all heads that read one group's keys.
template <class Real>
class Sums {
  public:
    Sums(const Problem& p, int chains_at_once)
        : rows_(p.H / p.G * p.T),
          stride_(padded(p.D)),
          memory_({chains_at_once * rows_ * stride_}),
          sums_(memory_.take(chains_at_once * rows_ * stride_)) {}

    // Real[..][stride()]: what keys add to dq / scale, from one query of the chain on.
    Real* of(int slot, int64_t query) const { return sums_ + (slot * rows_ + query) * stride_; }
    int64_t stride() const { return stride_; }

  private:
    const int64_t rows_, stride_;
    Scratch<Real> memory_;
    Real* const sums_;
};

// Which stretches of keys each panel of queries sees: panels of keys ask the other way round.
class Sight {
  public:
    explicit Sight(const Problem& p) : p_(p), runs_(p.mask ? p.batches() * p.panels() : 0) {}

    // Panels of keys; one without a key where there are none.
    int64_t key_panels() const { return std::max<int64_t>(1, (p_.S + kPanel - 1) / kPanel); }

    // To be filled by any threads, each panel once, with a mask of the thread's own.
    int64_t size() const { return static_cast<int64_t>(runs_.size()); }
    void fill(int64_t i, Mask& mask) {
        runs_[i] = mask.runs(p_.place(i / p_.panels(), 0, i % p_.panels() * kPanel));
    }

    // Keys [s0, s0 + count), for the queries of a panel.
    Seen of(int64_t batch, int64_t panel, int64_t s0, int64_t count) const {
        if (count == 0) return Seen::none;
        if (!p_.mask) return Seen::all;
        const std::vector<Run>& runs = runs_[batch * p_.panels() + panel];
        const auto run = std::upper_bound(runs.begin(), runs.end(), s0,
                                          [](int64_t s, const Run& r) { return s < r.end; });
        return run->end >= s0 + count ? run->seen : Seen::some;
    }

    // The last panel of keys that a panel of queries sees; the first where it sees none.
    int64_t last(int64_t batch, int64_t panel) const {
        if (!p_.mask) return key_panels() - 1;
        const std::vector<Run>& runs = runs_[batch * p_.panels() + panel];
        int64_t end = 1;
        for (const Run& run : runs) end = run.seen == Seen::none ? end : run.end;
        return (end - 1) / kPanel;
    }

  private:
    const Problem& p_;
    std::vector<std::vector<Run>> runs_;
};

// As lay_out, with the roles exchanged: word i of the bits is query at.t0 + i, bit r key s0 + r.
// `by_row` has room for kPanel words.
template <class Real>
bool lay_out_keys(const Problem& p, const Kernels& kernels, const Place& at, int64_t s0,
                  int64_t count, Seen seen, Veil<Real>& veil, uint64_t* by_row, Block& block) {
    const uint64_t all = first_bits(count);
    block.visible = nullptr;
    block.bias = nullptr;
    if (seen == Seen::all && p.bias.kind == BiasKind::none) return true;
    if (seen == Seen::some) {
        std::fill_n(by_row, kPanel, 0);
        veil.mask->bits(at, s0, count, by_row);
        transpose_bits(by_row);
    } else {
        std::fill_n(by_row, kPanel, all);
    }
    if (p.bias.kind != BiasKind::none) {
        lay_out_bias(p, kernels, at, at.t0, at.rows, s0, count, true, veil.bias.data(), by_row);
        block.bias = veil.bias.data();
    }
    uint64_t every = all, some = 0;
    for (int64_t i = 0; i < at.rows; ++i) {
        every &= by_row[i];
        some |= by_row[i] & all;
    }
    if (every != all) block.visible = by_row;
    return some != 0;
}

}  // namespace clearhead
