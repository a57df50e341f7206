// What a backward pass knows of every query before it walks the keys: shift, delta and factor, see
// GradientPanel. The weights are 2^(score - shift) * factor, and lse, from which shift is made, is
// rounded: where that shows, they are summed, and the factor takes it out again.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "attention.hpp"
#include "backward_dots.hpp"
#include "backward_worker.hpp"
#include "threads.hpp"

namespace clearhead {

template <class Real>
class QueryStatistics {
  public:
    QueryStatistics(const Problem& p, const Array& dout, const Kernels& kernels)
        : p_(p),
          dout_(dout),
          kernels_(kernels),
          few_(p.S == 1 || (p.T <= kStripRows && p.S <= kPanel)),
          all_(p.batches() * p.H * p.T) {}

    const Statistics<Real>& all() const { return all_; }
    // Those that go with the scores of plain kernels, where others go by dots.
    const Statistics<Real>& plain() const { return plain_ ? *plain_ : all_; }

    // Where lse is so large that its rounding shows in the weights: the same in double, by the
    // instructions that the weights will be made with. `for_bias`: plain kernels will take part.
    bool sum_by_dots(DotGradients& by_dots, const std::vector<uint8_t>& worth, bool for_bias,
                     const std::function<bool()>& interrupted) {
        if (largest_lse() * kLog2e <= kExact) return true;
        const int64_t heads = p_.batches() * p_.H;
        lse_.resize(heads * p_.T);
        Problem p = p_;
        p.E = 0;
        p.out = {};
        p.lse = doubles_of_rows(p, lse_.data());
        std::vector<uint8_t> left;
        if (!forward_by_dots(p, {}, kernels_, worth, interrupted, left)) return false;
        const int64_t panels = p_.panels(), of_chain = p_.H / p_.G * panels;
        const auto look = [&](int64_t task, int) {
            const int64_t head = task / panels;
            by_dots.look(task / of_chain, task % of_chain,
                         p_.place(head / p_.H, head % p_.H, task % panels * kPanel));
        };
        if (!parallel_for(heads * panels, workers_for(heads * panels), look, interrupted)) {
            return false;
        }
        // A chain with a number that parts cannot hold goes by plain kernels, all of it.
        for (int64_t chain = 0; chain < p_.batches() * p_.G; ++chain) {
            const auto first = left.begin() + chain * of_chain, end = first + of_chain;
            if (std::find(first, end, 1) != end || !by_dots.holds(chain)) {
                const int64_t rows = p_.H / p_.G * p_.T;
                std::fill_n(&lse_[chain * rows], rows, NAN);
            }
        }
        if (for_bias) plain_.emplace(heads * p_.T);
        return true;
    }

    // The statistics of one panel of queries.
    void fill(const Place& at, GradientWorker<Real>& w) {
        const int64_t first = first_query(p_, at);
        Real* const shifts = &all_.shift[first];
        Real* const factors = &all_.factor[first];
        const auto lses = given_lses(at);
        double largest = 0;  // of those whose rounding is not known
        for (int64_t r = 0; r < at.rows; ++r) {
            const double exact = exact_lse(first + r), x = near(exact, lses[r]) ? exact : lses[r];
            // Scores of few keys are near 0, and keep their digits: the factor takes the whole
            // part.
            const double whole = std::abs(x) < kSmall ? std::rint(x) : 0;
            shifts[r] = static_cast<Real>(x == -INFINITY ? INFINITY : x - whole);  // no weights
            factors[r] = static_cast<Real>(
                std::abs(x) < kTelling ? std::exp2(static_cast<double>(shifts[r]) - x) : 1);
            if (std::isfinite(x) && !(std::abs(exact) < kTelling)) {
                largest = std::max(largest, std::abs(x));
            }
        }
        if (p_.q.dtype > DType::f32) return sum_weights(at, w, GradientStep::sums);
        kernels_.row_products[kPrecision](matrix(p_, dout_, at, at.head, at.t0),
                                          matrix(p_, p_.out, at, at.head, at.t0), at.rows, p_.E,
                                          &all_.delta[first]);
        if (few_ || plain_ || largest > kExact) sum_weights(at, w, GradientStep::weights);
    }

  private:
    static constexpr int kPrecision = sizeof(Real) == 8;
    static constexpr double kEpsilon = std::numeric_limits<Real>::epsilon();
    static constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
    static constexpr double kMost = std::numeric_limits<Real>::max();
    // In log2 units.
    static constexpr double kSmall = 8;
    static constexpr double kExact = 24;        // below, lse rounds as little as a score does
    static constexpr double kTelling = 0x1p30;  // beyond, a double's rounding shows as well
    static constexpr int kTurns = 16;           // finds a score among 2^8 roundings around its lse

    double largest_lse() const {
        double largest = 0;
        for (int64_t head = 0; head < p_.batches() * p_.H; ++head) {
            const Place at = p_.place(head / p_.H, head % p_.H, 0);
            const float* lse =
                static_cast<const float*>(p_.lse.data) + p_.offset(p_.lse, at, at.head);
            for (int64_t t = 0; t < p_.T; ++t) {
                const double x = lse[t * p_.lse.row];
                if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
            }
        }
        return largest;
    }

    // An lse in log2 units, cut off as biases are.
    static double log2_of(double nats) {
        return std::isfinite(nats) ? std::clamp(nats * kLog2e, -kMost, kMost) : nats;
    }
    // What the caller gave of a panel's rows.
    std::array<double, kPanel> given_lses(const Place& at) const {
        std::array<double, kPanel> lses;
        const int64_t first = p_.offset(p_.lse, at, at.head) + at.t0 * p_.lse.row;
        for (int64_t r = 0; r < at.rows; ++r) {
            lses[r] = log2_of(read(p_.lse.data, p_.lse.dtype, first + r * p_.lse.row));
        }
        return lses;
    }
    // The same without its rounding, of one row; NaN where that is not known.
    double exact_lse(int64_t query) const {
        const double x = lse_.empty() ? NAN : log2_of(lse_[query]);
        return std::isfinite(x) ? x : NAN;
    }
    // Whether rounding can be how they differ: these keys may be a part of those that lse is about.
    // Strips and tiles add up a score in another order.
    static bool near(double exact, double given) {
        const double roundings = is_coarse(given) ? 128 : 16;
        return std::abs(exact - given) <= roundings * std::max(1.0, std::abs(given)) * kEpsilon;
    }
    // Whether its last digit is worth powers of 2.
    static bool is_coarse(double x) {
        return std::abs(x) * kEpsilon >= kSmall && std::abs(x) < kMost;
    }

    // Sums weights, for their factor. In half precision `out` is too coarse to give delta (its
    // rounding is as large as the differences dP - delta): P * dP is summed instead.
    void sum_weights(const Place& at, GradientWorker<Real>& w, GradientStep step) {
        const double sink = static_cast<double>(in_log2<Real>(p_.sink_at(at)));
        begin_queries(p_, dout_, kernels_, all_, at, w);
        add_weights(at, w, step);
        Bracket found[kPanel];
        for (int turn = 0; turn < kTurns && move_shifts(at.rows, w, sink, turn, found); ++turn) {
            std::fill_n(sums(w), 2 * kPanel, Real(0));
            add_weights(at, w, step);
        }
        const auto lses = given_lses(at);
        for (int64_t r = 0; r < at.rows; ++r) {
            const int64_t i = first_query(p_, at) + r;
            const double sum = sum_of(w, r, sink), by_sum = sum == 0 ? 0 : 1 / sum;
            const double exact = exact_lse(i);
            if (step == GradientStep::sums) {
                all_.delta[i] =
                    static_cast<Real>(static_cast<double>(sums(w)[kPanel + r]) * by_sum);
            }
            if (plain_) {
                plain_->shift[i] = w.shift()[r];
                plain_->factor[i] = static_cast<Real>(by_sum);
                plain_->delta[i] = all_.delta[i];
            }
            if (std::abs(exact) < kTelling) {
                if (step == GradientStep::weights) continue;
                all_.factor[i] =
                    static_cast<Real>(std::exp2(static_cast<double>(all_.shift[i]) - exact));
            } else if (step == GradientStep::sums ||
                       near(static_cast<double>(w.shift()[r]) + std::log2(sum), lses[r])) {
                if (std::isnan(exact)) all_.shift[i] = w.shift()[r];
                all_.factor[i] = static_cast<Real>(by_sum);
            }
        }
    }

    void add_weights(const Place& at, GradientWorker<Real>& w, GradientStep step) {
        for_blocks(p_, kernels_, at, w.veil, [&](const Block& block) {
            kernels_.gradient_block[kPrecision](w.panel, {block, nullptr, nullptr, nullptr}, step);
        });
    }

    static Real* sums(GradientWorker<Real>& w) { return static_cast<Real*>(w.panel.sums); }

    // The sum of a row's weights, the sink's included. Beside a large sink, the others may be 0.
    static double sum_of(GradientWorker<Real>& w, int64_t row, double sink) {
        return static_cast<double>(sums(w)[row]) +
               std::exp2(sink - static_cast<double>(w.shift()[row]));
    }

    // What is known to lie on either side of a row's largest score.
    struct Bracket {
        Real below = -kInfinity, above = kInfinity;
    };

    // Where a shift is coarse, its rounding makes all weights of a row 0 or infinite: a step
    // towards the largest score, twice the last until one is too far, then halfway back. Returns
    // whether there was one to take.
    static bool move_shifts(int64_t rows, GradientWorker<Real>& w, double sink, int turn,
                            Bracket (&found)[kPanel]) {
        bool moved = false;
        for (int64_t r = 0; r < rows; ++r) {
            Real& shift = w.shift()[r];
            const double sum = sum_of(w, r, sink);
            if (!is_coarse(static_cast<double>(shift)) || std::isnan(sum)) continue;
            if (sum > 0x1p-40 && sum < 0x1p40) continue;
            auto& [below, above] = found[r];
            (sum < 1 ? above : below) = shift;
            if (std::isfinite(below) && std::isfinite(above)) {
                shift = below + (above - below) / 2;
            } else {
                const Real rounding = std::nextafter(std::abs(shift), kInfinity) - std::abs(shift);
                shift += std::ldexp(sum < 1 ? -rounding : rounding, turn);
            }
            moved = true;
        }
        return moved;
    }

    const Problem& p_;
    const Array& dout_;
    const Kernels& kernels_;
    const bool few_;  // keys, of which strips may have made the scores in another order
    Statistics<Real> all_;
    std::optional<Statistics<Real>> plain_;
    std::vector<double> lse_;  // [batch][head][T], where it is wanted in double
};

}  // namespace clearhead
