#include "backward.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "chains.hpp"
#include "gradient.hpp"
#include "threads.hpp"

namespace clearhead {
namespace {

template <class Real>
struct GradientWorker {
    GradientPanel panel;
    Veil<Real> veil;
    std::vector<uint64_t> by_row;  // mask bits of a block of queries, one word a query
    std::vector<Real> lanes;  // [3][kPanel]: shift, delta and factor of the lanes at hand, padded
    Scratch<Real> scratch;

    explicit GradientWorker(const Problem& p) : GradientWorker(p, p.q.dtype > DType::f32) {}

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

template <class Real>
class Backward {
  public:
    Backward(const Problem& p, const Array& dout, const Gradients& gradients,
             const Kernels& kernels, const std::function<bool()>& interrupted)
        : p_(p),
          dout_(dout),
          gradients_(gradients),
          kernels_(kernels),
          interrupted_(interrupted),
          panels_(p.panels()),
          heads_(p.batches() * p.H),
          statistics_(heads_ * p.T),
          sight_(p),
          count_(workers_for(p.batches() * p.G * chain_length(), 2.5 * p.operations())),
          chains_(p.batches() * p.G, chain_length(), count_),
          sums_(p, std::min<int64_t>(count_, p.batches() * p.G)),
          ready_(p.batches() * p.G),
          turns_(p.batches() * p.G * sight_.key_panels()) {
        workers_.reserve(count_);
        for (int i = 0; i < count_; ++i) workers_.emplace_back(p);
    }

    bool run() {
        return for_all(sight_.size(),
                       [&](int64_t i, Worker& w) { sight_.fill(i, *w.veil.mask); }) &&
               parallel_for(
                   chains_.pieces(), count_, [&](int64_t, int worker) { piece(worker); },
                   interrupted_) &&
               sinks() && bias();
    }

  private:
    using Worker = GradientWorker<Real>;
    static constexpr int kPrecision = sizeof(Real) == 8;
    static constexpr double kEpsilon = std::numeric_limits<Real>::epsilon();
    static constexpr double kNear = 8;
    static constexpr double kExact = 24;  // log2 units: below, lse rounds as little as a score does

    template <class F>
    bool for_all(int64_t n, F f) {
        return parallel_for(
            n, static_cast<int>(std::min<int64_t>(workers_for(n), count_)),
            [&](int64_t task, int worker) { f(task, workers_[worker]); }, interrupted_);
    }

    // A chain is a group of heads: first the statistics of its queries, a panel each, then its
    // panels of keys.
    int64_t query_pieces() const { return p_.H / p_.G * panels_; }
    int64_t chain_length() const { return query_pieces() + sight_.key_panels(); }

    void piece(int worker) {
        const Chains::Piece at = chains_.take(worker);
        if (at.index < query_pieces()) {
            queries(at.chain * query_pieces() + at.index, workers_[worker]);
            ready_.add(at.chain);
        } else {
            keys(at, at.index - query_pieces(), workers_[worker]);
        }
    }

    int64_t group(int64_t head) const { return head / (p_.H / p_.G); }
    int64_t query(const Place& at) const { return (at.batch * p_.H + at.head) * p_.T + at.t0; }

    // A panel of queries, ready for its blocks of keys.
    void begin_queries(const Place& at, Worker& w) {
        GradientPanel& panel = w.panel;
        panel.lanes = at.rows;
        panel.by_lane = true;
        panel.x = matrix(p_, p_.q, at, at.head, at.t0);
        panel.y = matrix(p_, dout_, at, at.head, at.t0);
        panel.a = matrix(p_, p_.k, at, group(at.head), 0);
        panel.b = matrix(p_, p_.v, at, group(at.head), 0);
        std::copy_n(&statistics_.shift[query(at)], at.rows, shift(w));
        std::copy_n(&statistics_.delta[query(at)], at.rows, delta(w));
        panel.shift = shift(w);
        panel.delta = delta(w);
        kernels_.gradient_begin[kPrecision](panel);
    }

    // A kernel reads whole vectors, so the statistics of its lanes stand padded.
    static Real* shift(Worker& w) { return w.lanes.data(); }
    static Real* delta(Worker& w) { return w.lanes.data() + kPanel; }
    static Real* factor(Worker& w) { return w.lanes.data() + 2 * kPanel; }

    void each_block(const Place& at, Worker& w, GradientStep step) {
        for_blocks(p_, kernels_, at, w.veil, [&](const Block& block) {
            kernels_.gradient_block[kPrecision](w.panel, {block, nullptr, nullptr, nullptr}, step);
        });
    }

    // The statistics of one panel of queries.
    void queries(int64_t task, Worker& w) {
        const int64_t head = task / panels_;
        const Place at = p_.place(head / p_.H, head % p_.H, task % panels_ * kPanel);
        Real* const shifts = &statistics_.shift[query(at)];
        Real* const factors = &statistics_.factor[query(at)];
        const int64_t lse = p_.offset(p_.lse, at, at.head);
        double largest = 0;
        for (int64_t r = 0; r < at.rows; ++r) {
            const double x =
                read(p_.lse.data, p_.lse.dtype, lse + (at.t0 + r) * p_.lse.row) * kLog2e;
            // Scores of few keys are near 0, and keep their digits: the factor takes the whole
            // part.
            const double whole = std::abs(x) < kNear ? std::rint(x) : 0;
            shifts[r] = static_cast<Real>(x == -INFINITY ? INFINITY : x - whole);  // no weights
            factors[r] = static_cast<Real>(
                std::isfinite(x) ? std::exp2(static_cast<double>(shifts[r]) - x) : 1);
            if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
        }
        // Nor where other instructions made the forward pass's scores: lse and out have none of the
        // errors of these.
        if (p_.q.dtype > DType::f32 || kernels_.dots[static_cast<int>(p_.q.dtype)]) {
            sum_weights(at, w, GradientStep::sums);
            return;
        }
        kernels_.row_products[kPrecision](matrix(p_, dout_, at, at.head, at.t0),
                                          matrix(p_, p_.out, at, at.head, at.t0), at.rows, p_.E,
                                          &statistics_.delta[query(at)]);
        if (largest > kExact) sum_weights(at, w, GradientStep::weights);
    }

    // Sums weights, for their factor. In half precision `out` is too coarse to give delta (its
    // rounding is as large as the differences dP - delta): P * dP is summed instead. In full
    // precision the sum serves where lse is so large that its rounding shows in the weights; it may
    // say no more than that, since these keys may be a part of those that lse is about.
    void sum_weights(const Place& at, Worker& w, GradientStep step) {
        begin_queries(at, w);
        each_block(at, w, step);
        const Real* sums = static_cast<const Real*>(w.panel.sums);
        const double sink = static_cast<double>(in_log2<Real>(p_.sink_at(at)));
        for (int64_t r = 0; r < at.rows; ++r) {
            const double shift = static_cast<double>(statistics_.shift[query(at) + r]);
            // Beside a large sink, weights may all be 0.
            const double sum = static_cast<double>(sums[r]) + std::exp2(sink - shift);
            Real& factor = statistics_.factor[query(at) + r];
            if (step == GradientStep::sums) {
                factor = static_cast<Real>(sum == 0 ? 0 : 1 / sum);
                statistics_.delta[query(at) + r] =
                    sum == 0 ? 0 : static_cast<Real>(sums[kPanel + r] / sum);
            } else if (std::abs(sum - 1) < 4 * std::abs(shift) * kEpsilon) {
                factor = static_cast<Real>(1 / sum);
            }
        }
    }

    // d loss / d sink = -(weight of the sink) * delta, summed over the queries.
    bool sinks() {
        return !gradients_.sink || for_all(heads_, [&](int64_t head, Worker&) { sink(head); });
    }

    void sink(int64_t head) {
        const Place at = p_.place(head / p_.H, head % p_.H, 0);
        const double logit = static_cast<double>(in_log2<Real>(p_.sink_at(at)));
        double sum = 0;
        for (int64_t i = head * p_.T; i < (head + 1) * p_.T; ++i) {
            const double weight = std::exp2(logit - static_cast<double>(statistics_.shift[i])) *
                                  static_cast<double>(statistics_.factor[i]);
            // A sink of -inf is none, whatever the row; one that is merely far off sees NaN.
            if (logit != -INFINITY) sum -= weight * static_cast<double>(statistics_.delta[i]);
        }
        Real* out = static_cast<Real*>(const_cast<void*>(gradients_.sink.data));
        out[p_.offset(gradients_.sink, at, at.head)] = static_cast<Real>(sum);
    }

    // dk and dv of one panel of keys: all query heads of its group, all their queries. What it adds
    // to dq comes after what the keys before it add; the last to add takes dq out.
    void keys(const Chains::Piece& chain, int64_t index, Worker& w) {
        const int64_t batch = chain.chain / p_.G, own = chain.chain % p_.G;
        const int64_t s0 = index * kPanel, count = std::min(kPanel, p_.S - s0);
        const int64_t heads = p_.H / p_.G, turn = chain.chain * sight_.key_panels() + index;
        GradientPanel& panel = w.panel;
        Place at = p_.place(batch, 0, 0);
        panel.lanes = count;
        panel.by_lane = false;
        panel.x = matrix(p_, p_.k, at, own, s0);
        panel.y = matrix(p_, p_.v, at, own, s0);
        kernels_.gradient_begin[kPrecision](panel);
        ready_.wait(chain.chain, query_pieces());
        for (int64_t step = 0; step < heads * panels_; ++step) {
            const int64_t i = step % panels_;
            const Seen how = sight_.of(batch, i, s0, count);
            const bool first = index == 0, last = index == sight_.last(batch, i);
            if (how == Seen::none && !first && !last) continue;
            at = p_.place(batch, own * heads + step / panels_, i * kPanel);
            panel.a = matrix(p_, p_.q, at, at.head, 0);
            panel.b = matrix(p_, dout_, at, at.head, 0);
            GradientBlock block = {{at.t0, at.rows, nullptr, nullptr},
                                   &statistics_.shift[query(at)],
                                   &statistics_.delta[query(at)],
                                   &statistics_.factor[query(at)]};
            const bool adds = how != Seen::none && lay_out_keys(p_, kernels_, at, s0, count, how,
                                                                w.veil, w.by_row.data(), block);
            Real* const sums = sums_.of(chain.slot, step / panels_ * p_.T + at.t0);
            if (adds) kernels_.gradient_block[kPrecision](panel, block, GradientStep::keys);
            if (first) {
                std::fill_n(sums, at.rows * sums_.stride(), Real(0));
            } else {
                turns_.wait(turn - 1, step + 1);
            }
            if (adds) kernels_.gradient_rows[kPrecision](panel, block, sums);
            if (last) {
                kernels_.rows_out[kPrecision](sums, at.rows, p_.D, p_.scale,
                                              matrix(p_, gradients_.q, at, at.head, at.t0));
            }
            turns_.pass(turn, step + 1);
        }
        if (index > 0) turns_.wait(turn - 1, heads * panels_);
        turns_.pass(turn, heads * panels_);
        const auto leave = [&](const void* sums, int64_t cols, double by, const Array& to) {
            std::fill_n(factor(w), count, static_cast<Real>(by));
            kernels_.transpose_out[kPrecision](sums, count, cols, factor(w),
                                               matrix(p_, to, at, own, s0));
        };
        leave(panel.dxt, p_.D, p_.scale, gradients_.k);
        leave(panel.dyt, p_.E, 1, gradients_.v);
    }

    // dbias = dS, summed over what the bias was repeated along. A task owns cells of the bias, all
    // of its repetitions included, so that no two threads add to one place.
    bool bias() {
        const Array& out = gradients_.bias;
        if (!out) return true;
        const int64_t own_panels = out.row ? panels_ : 1, own_heads = out.head ? p_.H : 1;
        int64_t own_batches = 1;
        for (size_t i = 0; i < p_.lead.size(); ++i) own_batches *= out.lead[i] ? p_.lead[i] : 1;
        return for_all(own_batches * own_heads * own_panels, [&](int64_t task, Worker& w) {
            const int64_t panel = task % own_panels, head = task / own_panels % own_heads;
            const int64_t cell = p_.offset(out, own_place(task / own_panels / own_heads), 0);
            for (int64_t batch = 0; batch < p_.batches(); ++batch) {
                if (p_.offset(out, p_.place(batch, 0, 0), 0) != cell) continue;
                for (int64_t h = head; h < (out.head ? head + 1 : p_.H); ++h) {
                    for (int64_t i = panel; i < (out.row ? panel + 1 : panels_); ++i) {
                        add_bias(p_.place(batch, h, i * kPanel), w);
                    }
                }
            }
        });
    }

    // The n-th batch among those that differ in the bias's own leading axes.
    Place own_place(int64_t n) const {
        Place at = {};
        for (size_t i = p_.lead.size(); i-- > 0;) {
            if (!gradients_.bias.lead[i]) continue;
            at.lead[i] = n % p_.lead[i];
            n /= p_.lead[i];
        }
        return at;
    }

    void add_bias(const Place& at, Worker& w) {
        const Array& to = gradients_.bias;
        Real* out = static_cast<Real*>(const_cast<void*>(to.data)) + p_.offset(to, at, at.head);
        const Real* ds = static_cast<const Real*>(w.panel.p);
        const Real* factors = &statistics_.factor[query(at)];
        begin_queries(at, w);
        for_blocks(p_, kernels_, at, w.veil, [&](const Block& block) {
            kernels_.gradient_block[kPrecision](w.panel, {block, nullptr, nullptr, nullptr},
                                                GradientStep::scores);
            double all = 0;
            for (int64_t i = 0; i < block.count; ++i) {
                double column = 0;
                for (int64_t r = 0; r < at.rows; ++r) {
                    // The factor of a row may be NaN: what the row does not see is left alone.
                    if (block.visible && !(block.visible[i] >> r & 1)) continue;
                    const Real x = ds[i * kPanel + r] * factors[r];
                    if (to.row) {
                        out[(at.t0 + r) * to.row + (block.begin + i) * to.col] += x;
                    } else {
                        column += static_cast<double>(x);
                    }
                }
                all += column;
                if (!to.row && to.col) {
                    out[(block.begin + i) * to.col] += static_cast<Real>(column);
                }
            }
            if (!to.row && !to.col) *out += static_cast<Real>(all);
        });
    }

    const Problem& p_;
    const Array& dout_;
    const Gradients& gradients_;
    const Kernels& kernels_;
    const std::function<bool()>& interrupted_;
    const int64_t panels_, heads_;
    Statistics<Real> statistics_;
    Sight sight_;
    const int count_;
    Chains chains_;
    Sums<Real> sums_;
    Turns ready_, turns_;  // pieces of queries by chain; steps of each panel of keys
    std::vector<Worker> workers_;
};

}  // namespace

bool backward(const Problem& p, const Array& dout, const Gradients& gradients,
              const Kernels& kernels, const std::function<bool()>& interrupted) {
    return p.q.dtype == DType::f64
               ? Backward<double>(p, dout, gradients, kernels, interrupted).run()
               : Backward<float>(p, dout, gradients, kernels, interrupted).run();
}

}  // namespace clearhead
