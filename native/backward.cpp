#include "backward.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "panels.hpp"
#include "threads.hpp"

namespace clearhead {
namespace {

// What the passes know of every query, [batch][head][T]; see GradientPanel.
template <class Real>
struct Statistics {
    std::vector<Real> shift, delta, factor;

    explicit Statistics(int64_t n) : shift(n), delta(n), factor(n) {}
};

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

// How far each task has come, where tasks add to the same places: a task may add at a step once the
// one before it has passed that step. Tasks start in order, so the first of those at work never
// waits; the order of the sums is fixed, whatever the number of threads.
class Turns {
  public:
    explicit Turns(int64_t tasks) : steps_(tasks) {}

    void wait(int64_t task, int64_t step) const {
        for (int spin = 0; steps_[task - 1].load(std::memory_order_acquire) <= step; ++spin) {
            if (spin > kSpins) std::this_thread::yield();
        }
    }
    void pass(int64_t task, int64_t step) {
        steps_[task].store(step + 1, std::memory_order_release);
    }

  private:
    static constexpr int kSpins = 1000;
    std::vector<std::atomic<int64_t>> steps_;
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
          stride_(padded(p.D)),
          statistics_(heads_ * p.T),
          dq_({heads_ * p.T * stride_}),
          turns_(p.batches() * p.G * key_panels()) {
        q_sums_ = dq_.take(heads_ * p.T * stride_);
        const int count = workers_for(std::max(heads_ * panels_, p.batches() * p.G * key_panels()));
        workers_.reserve(count);
        for (int i = 0; i < count; ++i) workers_.emplace_back(p);
    }

    bool run() {
        return for_all(heads_ * panels_, [&](int64_t task, Worker& w) { queries(task, w); }) &&
               for_all(heads_, [&](int64_t head, Worker&) { sink(head); }) && plan() &&
               for_all(p_.batches() * p_.G * key_panels(),
                       [&](int64_t task, Worker& w) { keys(task, w); }) &&
               for_all(heads_ * panels_, [&](int64_t task, Worker&) { leave_queries(task); }) &&
               bias();
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
            n, std::min<int64_t>(workers_for(n), static_cast<int64_t>(workers_.size())),
            [&](int64_t task, int worker) { f(task, workers_[worker]); }, interrupted_);
    }

    int64_t key_panels() const { return (p_.S + kPanel - 1) / kPanel; }
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

    Place queries_of(int64_t task) const {
        const int64_t head = task / panels_;
        return p_.place(head / p_.H, head % p_.H, (panels_ - 1 - task % panels_) * kPanel);
    }

    Real* q_sums(const Place& at) { return q_sums_ + query(at) * stride_; }

    // The statistics of one panel of queries.
    void queries(int64_t task, Worker& w) {
        const Place at = queries_of(task);
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
        std::fill_n(q_sums(at), at.rows * stride_, Real(0));
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

    // dq of one panel, once all keys have added to it.
    void leave_queries(int64_t task) {
        const Place at = queries_of(task);
        kernels_.rows_out[kPrecision](q_sums(at), at.rows, p_.D, p_.scale,
                                      matrix(p_, gradients_.q, at, at.head, at.t0));
    }

    // d loss / d sink = -(weight of the sink) * delta, summed over the queries.
    void sink(int64_t head) {
        if (!gradients_.sink) return;
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

    // Which stretches of keys each panel of queries sees: the second pass asks by keys.
    bool plan() {
        if (!p_.mask) return true;
        plan_.resize(p_.batches() * panels_);
        return for_all(static_cast<int64_t>(plan_.size()), [&](int64_t i, Worker& w) {
            plan_[i] = w.veil.mask->runs(p_.place(i / panels_, 0, i % panels_ * kPanel));
        });
    }

    Seen seen(int64_t batch, int64_t panel, int64_t s0, int64_t count) const {
        if (!p_.mask) return Seen::all;
        const std::vector<Run>& runs = plan_[batch * panels_ + panel];
        auto run = std::upper_bound(runs.begin(), runs.end(), s0,
                                    [](int64_t s, const Run& r) { return s < r.end; });
        return run->end >= s0 + count ? run->seen : Seen::some;
    }

    // As lay_out, with the roles exchanged: word i of the bits is query at.t0 + i, bit r key s0 +
    // r.
    bool lay_out_keys(const Place& at, int64_t s0, int64_t count, Seen seen, Worker& w,
                      GradientBlock& block) {
        const uint64_t all = first_bits(count);
        block.visible = nullptr;
        block.bias = nullptr;
        if (seen == Seen::all && p_.bias.kind == BiasKind::none) return true;
        if (seen == Seen::some) {
            std::fill(w.by_row.begin(), w.by_row.end(), 0);
            w.veil.mask->bits(at, s0, count, w.by_row.data());
            transpose_bits(w.by_row.data());
        } else {
            std::fill(w.by_row.begin(), w.by_row.end(), all);
        }
        if (p_.bias.kind != BiasKind::none) {
            lay_out_bias(p_, kernels_, at, at.t0, at.rows, s0, count, true, w.veil.bias.data(),
                         w.by_row.data());
            block.bias = w.veil.bias.data();
        }
        uint64_t every = all, some = 0;
        for (int64_t i = 0; i < at.rows; ++i) {
            every &= w.by_row[i];
            some |= w.by_row[i] & all;
        }
        if (every != all) block.visible = w.by_row.data();
        return some != 0;
    }

    // dk and dv of one panel of keys: all query heads of its group, all their queries. What it adds
    // to dq comes after what the keys before it add.
    void keys(int64_t task, Worker& w) {
        const int64_t batch = task / key_panels() / p_.G, own = task / key_panels() % p_.G;
        const int64_t s0 = task % key_panels() * kPanel, count = std::min(kPanel, p_.S - s0);
        const int64_t heads = p_.H / p_.G;
        GradientPanel& panel = w.panel;
        Place at = p_.place(batch, 0, 0);
        panel.lanes = count;
        panel.by_lane = false;
        panel.x = matrix(p_, p_.k, at, own, s0);
        panel.y = matrix(p_, p_.v, at, own, s0);
        kernels_.gradient_begin[kPrecision](panel);
        for (int64_t step = 0; step < heads * panels_; ++step) {
            const int64_t head = own * heads + step / panels_, i = step % panels_;
            const Seen how = seen(batch, i, s0, count);
            if (how == Seen::none) continue;
            at = p_.place(batch, head, i * kPanel);
            panel.a = matrix(p_, p_.q, at, head, 0);
            panel.b = matrix(p_, dout_, at, head, 0);
            GradientBlock block = {{at.t0, at.rows, nullptr, nullptr},
                                   &statistics_.shift[query(at)],
                                   &statistics_.delta[query(at)],
                                   &statistics_.factor[query(at)]};
            if (!lay_out_keys(at, s0, count, how, w, block)) continue;
            kernels_.gradient_block[kPrecision](panel, block, GradientStep::keys);
            if (s0 > 0) turns_.wait(task, step);
            kernels_.gradient_rows[kPrecision](panel, block, q_sums(at));
            turns_.pass(task, step);
        }
        if (s0 > 0) turns_.wait(task, heads * panels_ - 1);
        turns_.pass(task, heads * panels_ - 1);
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
    const int64_t panels_, heads_, stride_;
    Statistics<Real> statistics_;
    Scratch<Real> dq_;
    Real* q_sums_;  // [batch][head][T][stride_]: dq / scale
    Turns turns_;
    std::vector<Worker> workers_;
    std::vector<std::vector<Run>> plan_;
};

}  // namespace

bool backward(const Problem& p, const Array& dout, const Gradients& gradients,
              const Kernels& kernels, const std::function<bool()>& interrupted) {
    return p.q.dtype == DType::f64
               ? Backward<double>(p, dout, gradients, kernels, interrupted).run()
               : Backward<float>(p, dout, gradients, kernels, interrupted).run();
}

}  // namespace clearhead
