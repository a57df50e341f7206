// The gradient of a bias array: dS, summed over what the bias was repeated along.
#pragma once
#include <cmath>

#include "backward_worker.hpp"

namespace clearhead {

// A task owns cells of the bias, all of its repetitions included, so that no two threads add to one
// place.
template <class Real>
class BiasGradient {
  public:
    BiasGradient(const Problem& p, const Array& dout, const Array& out, const Kernels& kernels,
                 const Statistics<Real>& statistics)
        : p_(p),
          dout_(dout),
          out_(out),
          kernels_(kernels),
          statistics_(statistics),
          panels_(out.row ? p.panels() : 1),
          heads_(out.head ? p.H : 1) {}

    int64_t tasks() const {
        int64_t batches = 1;
        for (size_t i = 0; i < p_.lead.size(); ++i) batches *= out_.lead[i] ? p_.lead[i] : 1;
        return batches * heads_ * panels_;
    }

    void run(int64_t task, GradientWorker<Real>& w) const {
        const int64_t panel = task % panels_, head = task / panels_ % heads_;
        const int64_t cell = p_.offset(out_, own_place(task / panels_ / heads_), 0);
        for (int64_t batch = 0; batch < p_.batches(); ++batch) {
            if (p_.offset(out_, p_.place(batch, 0, 0), 0) != cell) continue;
            for (int64_t h = head; h < (out_.head ? head + 1 : p_.H); ++h) {
                for (int64_t i = panel; i < (out_.row ? panel + 1 : p_.panels()); ++i) {
                    add(p_.place(batch, h, i * kPanel), w);
                }
            }
        }
    }

  private:
    // The n-th batch among those that differ in the bias's own leading axes.
    Place own_place(int64_t n) const {
        Place at = {};
        for (size_t i = p_.lead.size(); i-- > 0;) {
            if (!out_.lead[i]) continue;
            at.lead[i] = n % p_.lead[i];
            n /= p_.lead[i];
        }
        return at;
    }

    void add(const Place& at, GradientWorker<Real>& w) const {
        constexpr int precision = sizeof(Real) == 8;
        Real* out = static_cast<Real*>(const_cast<void*>(out_.data)) + p_.offset(out_, at, at.head);
        const Real* ds = static_cast<const Real*>(w.panel.p);
        const Real* factors = &statistics_.factor[first_query(p_, at)];
        begin_queries(p_, dout_, kernels_, statistics_, at, w);
        for_blocks(p_, kernels_, at, w.veil, [&](const Block& block) {
            kernels_.gradient_block[precision](w.panel, {block, nullptr, nullptr, nullptr},
                                               GradientStep::scores);
            double all = 0;
            for (int64_t i = 0; i < block.count; ++i) {
                double column = 0;
                for (int64_t r = 0; r < at.rows; ++r) {
                    // The factor of a row may be NaN: what the row does not see is left alone.
                    if (block.visible && !(block.visible[i] >> r & 1)) continue;
                    const Real x = ds[i * kPanel + r] * factors[r];
                    if (out_.row) {
                        out[(at.t0 + r) * out_.row + (block.begin + i) * out_.col] += x;
                    } else {
                        column += static_cast<double>(x);
                    }
                }
                all += column;
                if (!out_.row && out_.col) {
                    out[(block.begin + i) * out_.col] += static_cast<Real>(column);
                }
            }
            if (!out_.row && !out_.col) *out += static_cast<Real>(all);
        });
    }

    const Problem& p_;
    const Array& dout_;
    const Array& out_;
    const Kernels& kernels_;
    const Statistics<Real>& statistics_;
    const int64_t panels_, heads_;  // that have cells of their own
};

}  // namespace clearhead
