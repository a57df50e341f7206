#include "backward.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "backward_bias.hpp"
#include "backward_dots.hpp"
#include "backward_statistics.hpp"
#include "decode.hpp"
#include "threads.hpp"
#include "worth.hpp"

namespace clearhead {
namespace {

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
          statistics_(p, dout, kernels),
          sight_(p),
          dots_(is_decode(p) ? nullptr : kernels.dots_backward[static_cast<int>(p.q.dtype)]),
          together_(dots_ ? panels_together(p) : 1),
          count_(workers_for(p.batches() * p.G * chain_length(), 2.5 * p.operations())),
          chains_(p.batches() * p.G, chain_length(), count_),
          sums_(p, std::min<int64_t>(count_, p.batches() * p.G)),
          ready_(p.batches() * p.G),
          turns_(p.batches() * p.G * key_pieces()) {
        workers_.reserve(count_);
        for (int i = 0; i < count_; ++i) workers_.emplace_back(p);
        if (dots_) {
            worth_ = heads_worth_packing(p, {}, dots_->parts);
            const int64_t chains = p.batches() * p.G;
            by_dots_.emplace(p, dout, *dots_, chains, std::min<int64_t>(count_, chains), count_,
                             together_);
        }
    }

    bool run() {
        return (!by_dots_ ||
                statistics_.sum_by_dots(*by_dots_, worth_, static_cast<bool>(gradients_.bias),
                                        interrupted_)) &&
               for_all(sight_.size(),
                       [&](int64_t i, Worker& w) { sight_.fill(i, *w.veil.mask); }) &&
               parallel_for(
                   chains_.pieces(), count_, [&](int64_t, int worker) { piece(worker); },
                   interrupted_) &&
               sinks() && bias();
    }

  private:
    using Worker = GradientWorker<Real>;
    static constexpr int kPrecision = sizeof(Real) == 8;
    static constexpr int64_t kTogether = 4;

    // As many as leave some pieces for everybody.
    static int64_t panels_together(const Problem& p) {
        const int64_t all = p.batches() * p.G * tiles(p.S, kPanel);
        return std::clamp<int64_t>(all / (8 * workers_for(std::max<int64_t>(1, all))), 1,
                                   kTogether);
    }

    template <class F>
    bool for_all(int64_t n, F f) {
        return parallel_for(
            n, static_cast<int>(std::min<int64_t>(workers_for(n), count_)),
            [&](int64_t task, int worker) { f(task, workers_[worker]); }, interrupted_);
    }

    // A chain is a group of heads: first the statistics of its queries, a panel each, then its
    // panels of keys.
    int64_t query_pieces() const { return p_.H / p_.G * panels_; }
    int64_t key_pieces() const { return (sight_.key_panels() + together_ - 1) / together_; }
    int64_t chain_length() const { return query_pieces() + key_pieces(); }

    void piece(int worker) {
        const Chains::Piece at = chains_.take(worker);
        if (at.index < query_pieces()) {
            const Place queries = query_panel(at.chain * query_pieces() + at.index);
            statistics_.fill(queries, workers_[worker]);
            if (by_dots_) by_dots_->lay_queries(at.chain, at.slot, at.index, queries);
            ready_.add(at.chain);
        } else {
            keys(at, at.index - query_pieces(), workers_[worker]);
        }
    }

    Place query_panel(int64_t task) const {
        const int64_t head = task / panels_;
        return p_.place(head / p_.H, head % p_.H, task % panels_ * kPanel);
    }

    // d loss / d sink = -(weight of the sink) * delta, summed over the queries.
    bool sinks() {
        return !gradients_.sink || for_all(heads_, [&](int64_t head, Worker&) { sink(head); });
    }

    void sink(int64_t head) {
        const Place at = p_.place(head / p_.H, head % p_.H, 0);
        const double logit = static_cast<double>(in_log2<Real>(p_.sink_at(at)));
        const Statistics<Real>& all = statistics_.all();
        double sum = 0;
        for (int64_t i = head * p_.T; i < (head + 1) * p_.T; ++i) {
            const double weight = std::exp2(logit - static_cast<double>(all.shift[i])) *
                                  static_cast<double>(all.factor[i]);
            // A sink of -inf is none, whatever the row; one that is merely far off sees NaN.
            if (logit != -INFINITY) sum -= weight * static_cast<double>(all.delta[i]);
        }
        Real* out = static_cast<Real*>(const_cast<void*>(gradients_.sink.data));
        out[p_.offset(gradients_.sink, at, at.head)] = static_cast<Real>(sum);
    }

    // dk and dv of some panels of keys: all query heads of their group, all their queries. What
    // they add to dq comes after what the keys before them add; the last to add takes dq out.
    void keys(const Chains::Piece& chain, int64_t index, Worker& w) {
        const int64_t begin = index * together_;
        const int64_t end = std::min(begin + together_, sight_.key_panels());
        ready_.wait(chain.chain, query_pieces());
        if constexpr (kPrecision == 0) {
            if (by_dots_ && worth_[chain.chain] && by_dots_->holds(chain.chain)) {
                return walk(chain, index, begin, end, true, ByDots{*this, chain.slot, w});
            }
        }
        for (int64_t i = begin; i < end; ++i) {
            walk(chain, index, i, i + 1, i + 1 == end, ByFloats{*this, w});
        }
    }

    // The queries pass by panels [begin, end) of keys. `last`: of those that take this turn.
    template <class Work>
    void walk(const Chains::Piece& chain, int64_t index, int64_t begin, int64_t end, bool last,
              Work work) {
        const int64_t batch = chain.chain / p_.G, own = chain.chain % p_.G;
        const int64_t heads = p_.H / p_.G, turn = chain.chain * key_pieces() + index;
        Worker& w = work.w;
        Place at = p_.place(batch, 0, 0);
        for (int64_t panel = begin; panel < end; ++panel) {
            const int64_t s0 = panel * kPanel;
            work.begin(panel - begin, matrix(p_, p_.k, at, own, s0), matrix(p_, p_.v, at, own, s0),
                       std::min(kPanel, p_.S - s0));
        }
        for (int64_t step = 0; step < heads * panels_; ++step) {
            at = p_.place(batch, own * heads + step / panels_, step % panels_ * kPanel);
            Real* const sums = sums_.of(chain.slot, step / panels_ * p_.T + at.t0);
            bool in_turn = index == 0;
            for (int64_t panel = begin; panel < end; ++panel) {
                const int64_t s0 = panel * kPanel, count = std::min(kPanel, p_.S - s0);
                const Seen how = sight_.of(batch, step % panels_, s0, count);
                const bool opens = panel == 0, closes = panel == sight_.last(batch, step % panels_);
                if (how == Seen::none && !opens && !closes) continue;
                Block block = {at.t0, at.rows, nullptr, nullptr};
                const bool adds =
                    how != Seen::none &&
                    lay_out_keys(p_, kernels_, at, s0, count, how, w.veil, w.by_row.data(), block);
                if (adds) work.block(panel - begin, step, at, block);
                if (opens) {
                    std::fill_n(sums, at.rows * sums_.stride(), Real(0));
                } else if (!in_turn) {
                    turns_.wait(turn - 1, step + 1);
                    in_turn = true;
                }
                if (adds) work.rows(panel - begin, block, sums);
                if (closes) {
                    kernels_.rows_out[kPrecision](sums, at.rows, p_.D, p_.scale,
                                                  matrix(p_, gradients_.q, at, at.head, at.t0));
                }
            }
            if (last && in_turn) turns_.pass(turn, step + 1);
        }
        if (last && index > 0) turns_.wait(turn - 1, heads * panels_);
        if (last) turns_.pass(turn, heads * panels_);
        for (int64_t panel = begin; panel < end; ++panel) {
            const int64_t s0 = panel * kPanel, count = std::min(kPanel, p_.S - s0);
            const auto leave = [&](const void* sums, int64_t cols, double by, const Array& to) {
                std::fill_n(w.factor(), count, static_cast<Real>(by));
                kernels_.transpose_out[kPrecision](sums, count, cols, w.factor(),
                                                   matrix(p_, to, at, own, s0));
            };
            leave(work.dk(panel - begin), p_.D, p_.scale, gradients_.k);
            leave(work.dv(panel - begin), p_.E, 1, gradients_.v);
        }
    }

    // What the plain kernels do for a panel of keys.
    struct ByFloats {
        Backward& pass;
        Worker& w;

        void begin(int64_t, const Matrix& k, const Matrix& v, int64_t keys) {
            w.panel.lanes = keys;
            w.panel.by_lane = false;
            w.panel.x = k;
            w.panel.y = v;
            pass.kernels_.gradient_begin[kPrecision](w.panel);
        }
        // dk += dS^T q, dv += P^T dout, for one panel of queries.
        void block(int64_t, int64_t, const Place& at, const Block& block) {
            const Statistics<Real>& all = pass.statistics_.all();
            const int64_t query = first_query(pass.p_, at);
            w.panel.a = matrix(pass.p_, pass.p_.q, at, at.head, 0);
            w.panel.b = matrix(pass.p_, pass.dout_, at, at.head, 0);
            pass.kernels_.gradient_block[kPrecision](
                w.panel, {block, &all.shift[query], &all.delta[query], &all.factor[query]},
                GradientStep::keys);
        }
        // dq += dS k, of the same panel.
        void rows(int64_t, const Block& block, Real* dq) {
            pass.kernels_.gradient_rows[kPrecision](w.panel, block, dq);
        }
        const void* dk(int64_t) const { return w.panel.dxt; }
        const void* dv(int64_t) const { return w.panel.dyt; }
    };

    // The same by dot products, for several panels.
    struct ByDots {
        Backward& pass;
        int slot;
        Worker& w;

        int worker() const { return static_cast<int>(&w - pass.workers_.data()); }
        void begin(int64_t i, const Matrix& k, const Matrix& v, int64_t keys) {
            pass.by_dots_->begin(worker(), i, k, v, keys);
        }
        void block(int64_t i, int64_t step, const Place& at, const Block& block) {
            const Statistics<Real>& all = pass.statistics_.all();
            const int64_t query = first_query(pass.p_, at);
            pass.by_dots_->block(worker(), i, slot, step, at.rows,
                                 {&all.shift[query], &all.delta[query], &all.factor[query]}, block);
        }
        void rows(int64_t i, const Block& block, Real* dq) {
            pass.by_dots_->rows(worker(), i, block.count, dq);
        }
        const void* dk(int64_t i) const { return pass.by_dots_->end(worker(), i).dkt; }
        const void* dv(int64_t i) const { return pass.by_dots_->end(worker(), i).dvt; }
    };

    bool bias() {
        if (!gradients_.bias) return true;
        const BiasGradient<Real> bias(p_, dout_, gradients_.bias, kernels_, statistics_.plain());
        return for_all(bias.tasks(), [&](int64_t task, Worker& w) { bias.run(task, w); });
    }

    const Problem& p_;
    const Array& dout_;
    const Gradients& gradients_;
    const Kernels& kernels_;
    const std::function<bool()>& interrupted_;
    const int64_t panels_, heads_;
    QueryStatistics<Real> statistics_;
    Sight sight_;
    // Not where strips made the forward pass's scores: lse goes with those of plain kernels.
    const DotsBackward* const dots_;
    const int64_t together_;  // panels of keys that share each panel of queries while it is near
    const int count_;
    Chains chains_;
    Sums<Real> sums_;
    Turns ready_, turns_;  // pieces of queries by chain; steps of each panel of keys
    std::vector<Worker> workers_;
    std::optional<DotGradients> by_dots_;
    std::vector<uint8_t> worth_;  // by chain, as in the forward pass: lse goes with its scores
};

}  // namespace

bool backward(const Problem& p, const Array& dout, const Gradients& gradients,
              const Kernels& kernels, const std::function<bool()>& interrupted) {
    return p.q.dtype == DType::f64
               ? Backward<double>(p, dout, gradients, kernels, interrupted).run()
               : Backward<float>(p, dout, gradients, kernels, interrupted).run();
}

}  // namespace clearhead
