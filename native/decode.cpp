#include "decode.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <vector>

#include "panels.hpp"
#include "strip_dots.hpp"
#include "threads.hpp"

namespace clearhead {
namespace {

// Keys of a task. It follows from the problem alone, so that the bits do not depend on the threads.
constexpr int64_t kShard = 1024;

// The rows of some heads of a group, all its T queries, read the group's keys together: row
// h * T + t is query t of the bundle's head h.
struct Bundle {
    Place at;  // of its first head
    int64_t group, heads, rows;
};

// The problem in bundles, and their keys in shards.
struct Plan {
    const Problem& p;
    int64_t parts, heads, shards, keys;

    explicit Plan(const Problem& p) : p(p) {
        const int64_t group = p.H / p.G, fit = kPanel / p.T;
        parts = (group + fit - 1) / fit;
        heads = (group + parts - 1) / parts;
        shards = std::max<int64_t>(1, (p.S + kShard - 1) / kShard);
        keys = (p.S + shards - 1) / shards;
        keys = (keys + kBlock - 1) / kBlock * kBlock;
    }
    // Few queries wait for their keys and values: to read a number takes as long as this many
    // operations.
    double operations() const {
        constexpr double reading = 16;
        const double numbers =
            static_cast<double>(p.batches() * p.G * p.S) * static_cast<double>(p.D + p.E);
        return std::max(p.operations(), reading * numbers);
    }
    int64_t bundles() const { return p.batches() * p.G * parts; }
    int64_t rows() const { return (heads * p.T + 3) / 4 * 4; }
    RowStates states(void* data) const { return {data, shards, rows(), p.E}; }

    Bundle bundle(int64_t index) const {
        const int64_t part = index % parts, group = index / parts % p.G;
        const int64_t of_group = p.H / p.G, first = part * heads;
        const int64_t count = std::min(heads, of_group - first);
        return {p.place(index / parts / p.G, group * of_group + first, 0), group, count,
                count * p.T};
    }
};

// What a strip by dot products works with.
struct DotWorker {
    const StripDots& by;
    DotStrip strip = {};
    Scratch<float> scratch;
    uint16_t* q_rows;  // of bfloat16

    DotWorker(const Plan& plan, const StripDots& by)
        : DotWorker(by, tiles(plan.rows(), kTile), tiles(plan.p.D, 32), tiles(plan.p.E, 32)) {}

  private:
    static constexpr int64_t kFloats = kTile * kTile;  // of a tile

    // Tiles of keys or values in parts of which `waiting` first parts wait for their product.
    static int64_t cut(const StripDots& by, int64_t waiting) {
        return 2 * (waiting + 1) + 4 * (by.parts - 1);
    }
    DotWorker(const StripDots& by, int64_t columns, int64_t steps, int64_t stripes)
        : DotWorker(by, by.parts * columns * steps,
                    by.parts == 1 ? kPiece / kTile * steps : cut(by, steps),
                    by.parts == 1 ? kPiece / kTile * stripes : cut(by, kGroupsOfParts),
                    columns * (by.parts == 1 ? kPiece : kBlock) / kTile,
                    columns * (by.parts == 1 ? 2 * kPiece / kTile : kGroupsOfParts * by.parts),
                    columns * 2 * stripes, columns * kTile) {}
    // Sizes in tiles.
    DotWorker(const StripDots& by, int64_t q, int64_t k, int64_t v, int64_t s, int64_t p, int64_t o,
              int64_t rows)
        : by(by),
          scratch({q * kFloats, q * kFloats, k * kFloats, v * kFloats, s * kFloats, p * kFloats,
                   o * kFloats, 8 * kFloats, rows, rows, rows}) {
        const auto halves = [&](int64_t size) {
            return reinterpret_cast<uint16_t*>(scratch.take(size * kFloats));
        };
        q_rows = halves(q);
        strip.q = halves(q);
        strip.k_rows = halves(k);
        strip.v_rows = halves(v);
        strip.s = scratch.take(s * kFloats);
        strip.p = reinterpret_cast<uint32_t*>(scratch.take(p * kFloats));
        strip.o = scratch.take(o * kFloats);
        strip.fresh = scratch.take(8 * kFloats);
        strip.m = scratch.take(rows);
        strip.l = scratch.take(rows);
        strip.rounded = scratch.take(rows);
    }
};

// Dot products for a problem's strips, or null. Numbers become parts only where enough rows use
// them, and from where they stand side by side.
const StripDots* dots_of(const Plan& plan, const Kernels& kernels) {
    const Problem& p = plan.p;
    const StripDots* dots = kernels.strip_dots[static_cast<int>(p.q.dtype)];
    if (!dots || dots->parts == 1) return dots;
    const bool lie =
        p.k.col == 1 && p.v.col == 1 && p.k.dtype == p.q.dtype && p.v.dtype == p.q.dtype;
    const int64_t rows = plan.heads * p.T;
    return lie && dots->least_rows <= rows && rows <= dots->most_rows ? dots : nullptr;
}

template <class Real>
struct DecodeWorker {
    Veil<Real> veil;      // of one head
    Veil<Real> together;  // of the bundle's
    int64_t batch = -1;   // whose runs these are: no mask has others for another head
    const std::vector<Run>* runs = nullptr;
    Scratch<Real> scratch;
    Real *q, *ones;
    Real* state;  // of the task at hand: lines that another core wrote last are slow to come by
    Strip strip = {};
    Panel panel = {};
    std::optional<DotWorker> dots;  // where it goes by dot products

    DecodeWorker(const Plan& plan, const StripDots* by_dots)
        : DecodeWorker(plan.p, padded(plan.p.D), padded(plan.p.E), plan.states(nullptr).size()) {
        if (by_dots) dots.emplace(plan, *by_dots);
    }

  private:
    DecodeWorker(const Problem& p, int64_t D, int64_t E, int64_t of_states)
        : veil(p),
          together(p),
          scratch({kPanel * D, kPanel, kBlock * D, kBlock * E, kBlock * kPanel, D * kPanel,
                   E * kPanel, kPanel, 2 * kPanel, of_states}) {
        q = scratch.take(kPanel * D);
        ones = scratch.take(kPanel);
        std::fill_n(ones, kPanel, Real(1));
        strip.k_rows = panel.k_rows = scratch.take(kBlock * D);
        strip.v_rows = panel.v_rows = scratch.take(kBlock * E);
        strip.s = panel.p = scratch.take(kBlock * kPanel);
        panel.qt = scratch.take(D * kPanel);
        panel.ot = scratch.take(E * kPanel);
        panel.m = scratch.take(kPanel);
        panel.l = scratch.take(2 * kPanel);
        state = scratch.take(of_states);
    }
};

// `lay_out` for the rows of all heads of a bundle.
template <class Real>
bool lay_out_bundle(const Problem& p, const Kernels& kernels, const Bundle& bundle, int64_t begin,
                    int64_t count, Seen seen, DecodeWorker<Real>& worker, Block& block) {
    if (bundle.heads == 1) {
        return lay_out(p, kernels, bundle.at, begin, count, seen, worker.veil, block);
    }
    block = {begin, count, nullptr, nullptr};
    if (seen == Seen::all && p.bias.kind == BiasKind::none) return true;
    Veil<Real>& all = worker.together;
    const uint64_t rows = first_bits(bundle.rows), own = first_bits(p.T);
    std::fill_n(all.visible.begin(), count, 0);
    Block part;
    for (int64_t h = 0; h < bundle.heads; ++h) {
        Place at = bundle.at;
        at.head += h;
        const bool some = lay_out(p, kernels, at, begin, count, seen, worker.veil, part);
        for (int64_t i = 0; i < count; ++i) {
            const uint64_t bits = !some ? 0 : part.visible ? part.visible[i] & own : own;
            all.visible[i] |= bits << (h * p.T);
        }
        if (!part.bias) continue;
        const Real* bias = static_cast<const Real*>(part.bias);
        for (int64_t i = 0; i < count; ++i) {
            std::copy_n(bias + i * kPanel, p.T, all.bias.data() + i * kPanel + h * p.T);
        }
        block.bias = all.bias.data();
    }
    uint64_t every = rows, some = 0;
    for (int64_t i = 0; i < count; ++i) {
        every &= all.visible[i];
        some |= all.visible[i];
    }
    if (every != rows) block.visible = all.visible.data();
    return some != 0;
}

// Calls f(block) for every block of `keys` keys in [begin, end) that some row of the bundle sees.
template <class Real, class F>
void for_bundle_blocks(const Problem& p, const Kernels& kernels, const Bundle& bundle,
                       int64_t begin, int64_t end, int64_t keys, DecodeWorker<Real>& worker, F f) {
    Block block;
    const auto walk = [&](int64_t stop, Seen seen) {
        for (; seen != Seen::none && begin < stop; begin += keys) {
            const int64_t count = std::min(keys, stop - begin);
            if (lay_out_bundle(p, kernels, bundle, begin, count, seen, worker, block)) f(block);
        }
        begin = stop;
    };
    if (!p.mask) return walk(end, Seen::all);
    if (worker.batch != bundle.at.batch) {
        worker.runs = &worker.veil.mask->runs(bundle.at);
        worker.batch = bundle.at.batch;
    }
    auto run = std::upper_bound(worker.runs->begin(), worker.runs->end(), begin,
                                [](int64_t key, const Run& r) { return key < r.end; });
    for (; begin < end; ++run) walk(std::min(run->end, end), run->seen);
}

template <class Real>
void load_queries(const Problem& p, const Kernels& kernels, const Bundle& bundle, Real* q) {
    for (int64_t h = 0; h < bundle.heads; ++h) {
        kernels.copy_rows[sizeof(Real) == 8](matrix(p, p.q, bundle.at, bundle.at.head + h, 0), p.T,
                                             p.D, q + h * p.T * padded(p.D));
    }
}

// Keys of a strip's block: its keys and values take two thirds of the first cache, and what is
// asked for meanwhile takes the place of what has been at work.
int64_t strip_keys(const Problem& p) {
    const int64_t room = first_level_bytes() * 2 / 3 / ((p.D + p.E) * bytes(p.k.dtype));
    return std::clamp<int64_t>(room / 16 * 16, 16, kBlock);
}

// The states of a bundle's rows over the keys [begin, end) into the worker's, by a strip.
template <class Real>
void strip_states(const Problem& p, const Kernels& kernels, const Bundle& bundle, int64_t begin,
                  int64_t end, DecodeWorker<Real>& worker, int64_t rows) {
    constexpr int precision = sizeof(Real) == 8;
    Real* const state = worker.state;
    Strip& strip = worker.strip;
    strip.rows = bundle.rows;
    strip.D = p.D;
    strip.E = p.E;
    strip.end = end;
    strip.k = matrix(p, p.k, bundle.at, bundle.group, 0);
    strip.v = matrix(p, p.v, bundle.at, bundle.group, 0);
    strip.s_factor = p.q_factor();
    strip.cap_factor = p.softcap * kLog2e;
    strip.q = worker.q;
    strip.m = state;
    strip.l = state + rows;
    strip.o = state + 2 * rows;
    std::fill_n(state, rows, -std::numeric_limits<Real>::infinity());
    std::fill_n(state + rows, rows * (1 + padded(p.E)), Real(0));
    for_bundle_blocks(p, kernels, bundle, begin, end, strip_keys(p), worker,
                      [&](const Block& block) { kernels.strip_attend[precision](strip, block); });
}

// The same by a panel, for more rows.
template <class Real>
void panel_states(const Problem& p, const Kernels& kernels, const Bundle& bundle, int64_t begin,
                  int64_t end, DecodeWorker<Real>& worker, int64_t rows) {
    constexpr int precision = sizeof(Real) == 8;
    Real* const state = worker.state;
    constexpr DType real = precision ? DType::f64 : DType::f32;
    Panel& panel = worker.panel;
    panel.rows = bundle.rows;
    panel.D = p.D;
    panel.E = p.E;
    panel.q = {worker.q, padded(p.D), 1, real};
    panel.k = matrix(p, p.k, bundle.at, bundle.group, 0);
    panel.v = matrix(p, p.v, bundle.at, bundle.group, 0);
    panel.q_factor = 1;
    panel.s_factor = p.q_factor();
    panel.cap_factor = p.softcap * kLog2e;
    panel.sink = -INFINITY;  // takes part when states are merged
    kernels.begin[precision](panel);
    for_bundle_blocks(p, kernels, bundle, begin, end, kBlock, worker,
                      [&](const Block& block) { kernels.attend[precision](panel, block); });
    std::copy_n(static_cast<const Real*>(panel.m), bundle.rows, state);
    std::copy_n(static_cast<const Real*>(panel.l), bundle.rows, state + rows);
    kernels.transpose_out[precision](panel.ot, bundle.rows, p.E, worker.ones,
                                     {state + 2 * rows, padded(p.E), 1, real});
}

// Of states that strips and panels hold: whether no sum or output is NaN or infinite, and, where
// values are in parts, no row's outputs are so small that the last parts of values may be lost.
bool can_be_right(const float* state, const Bundle& bundle, int64_t rows, int64_t E,
                  const StripDots& by) {
    constexpr float kLeastOutput = 0x1p-80f;
    const float* const l = state + rows;
    for (int64_t row = 0; row < bundle.rows; ++row) {
        const float* const o = state + 2 * rows + row * padded(E);
        float most = 0;
        bool finite = std::isfinite(l[row]);
        for (int64_t e = 0; e < E; ++e) {
            finite &= std::isfinite(o[e]);
            most = std::max(most, std::abs(o[e]));
        }
        if (!finite || (by.parts > 1 && l[row] > 0 && most < kLeastOutput * l[row])) return false;
    }
    return true;
}

void load_bfloats(const Problem& p, const Bundle& bundle, uint16_t* to) {
    for (int64_t row = 0; row < bundle.rows; ++row, to += tiles(p.D, 32) * 32) {
        const Matrix q = matrix(p, p.q, bundle.at, bundle.at.head + row / p.T, row % p.T);
        const uint16_t* from = static_cast<const uint16_t*>(q.data);
        for (int64_t d = 0; d < p.D; ++d) to[d] = from[d * q.col];
    }
}

// The same by dot products, for any number of rows. False if they cannot say: a value that is not
// finite reaches others too, and scores may leave their range.
bool dot_states(const Problem& p, const Kernels& kernels, const Bundle& bundle, int64_t begin,
                int64_t end, DecodeWorker<float>& worker, int64_t rows) {
    DotStrip& strip = worker.dots->strip;
    const StripDots& by = worker.dots->by;
    strip.rows = bundle.rows;
    strip.D = p.D;
    strip.E = p.E;
    strip.end = end;
    strip.k = matrix(p, p.k, bundle.at, bundle.group, 0);
    strip.v = matrix(p, p.v, bundle.at, bundle.group, 0);
    strip.s_factor = p.q_factor();
    strip.cap_factor = p.softcap * kLog2e;
    if (by.parts == 1) {
        load_bfloats(p, bundle, worker.dots->q_rows);
        strip.q_rows = {worker.dots->q_rows, tiles(p.D, 32) * 32, 1, DType::bf16};
    } else {
        load_queries(p, kernels, bundle, worker.q);
        strip.q_rows = {worker.q, padded(p.D), 1, DType::f32};
    }
    if (!by.begin(strip)) return false;
    for_bundle_blocks(p, kernels, bundle, begin, end, kBlock, worker,
                      [&](const Block& block) { by.attend(strip, block); });
    by.finish(strip, rows, worker.state);
    return can_be_right(worker.state, bundle, rows, p.E, by);
}

template <class Real>
void states_of(const Problem& p, const Kernels& kernels, const Bundle& bundle, int64_t begin,
               int64_t end, DecodeWorker<Real>& worker, int64_t rows) {
    if constexpr (sizeof(Real) == 4) {
        if (worker.dots && dot_states(p, kernels, bundle, begin, end, worker, rows)) return;
    }
    load_queries(p, kernels, bundle, worker.q);
    if (bundle.rows <= kernels.strip_rows[sizeof(Real) == 8]) {
        strip_states<Real>(p, kernels, bundle, begin, end, worker, rows);
    } else {
        panel_states<Real>(p, kernels, bundle, begin, end, worker, rows);
    }
}

template <class Real>
void merge_bundle(const Problem& p, const Kernels& kernels, const Bundle& bundle,
                  const RowStates& states) {
    Real* lse = static_cast<Real*>(const_cast<void*>(p.lse.data));
    for (int64_t row = 0; row < bundle.rows; ++row) {
        Place at = bundle.at;
        at.head += row / p.T;
        const int64_t t = row % p.T;
        Real total[2];
        kernels.merge_row[sizeof(Real) == 8](states, row, in_log2<Real>(p.sink_at(at)),
                                             matrix(p, p.out, at, at.head, t), total);
        if (!lse) continue;
        lse[p.offset(p.lse, at, at.head) + t * p.lse.row] =
            static_cast<Real>(lse_of(total[0], total[1]));
    }
}

template <class Real>
bool decode_in(const Problem& p, const Kernels& kernels, const std::function<bool()>& interrupted) {
    const Plan plan(p);
    const int64_t bundles = plan.bundles(), tasks = bundles * plan.shards, rows = plan.rows();
    const int count = workers_for(tasks, plan.operations());
    std::vector<DecodeWorker<Real>> workers;
    workers.reserve(count);
    const StripDots* by_dots = dots_of(plan, kernels);
    for (int i = 0; i < count; ++i) workers.emplace_back(plan, by_dots);
    const int64_t size = plan.states(nullptr).size();
    Scratch<Real> scratch({tasks * size});
    Real* const states = scratch.take(tasks * size);
    std::vector<std::atomic<int64_t>> left(bundles);
    for (auto& n : left) n.store(plan.shards, std::memory_order_relaxed);
    return parallel_for(
        tasks, count,
        [&](int64_t task, int number) {
            const int64_t index = task / plan.shards, shard = task % plan.shards;
            const int64_t begin = shard * plan.keys, end = std::min(p.S, begin + plan.keys);
            const Bundle bundle = plan.bundle(index);
            DecodeWorker<Real>& worker = workers[number];
            states_of<Real>(p, kernels, bundle, begin, end, worker, rows);
            std::copy_n(worker.state, size, states + task * size);
            // Whoever brings the last shard merges them all, in their order.
            if (left[index].fetch_sub(1, std::memory_order_acq_rel) == 1) {
                merge_bundle<Real>(p, kernels, bundle,
                                   plan.states(states + index * plan.shards * size));
            }
        },
        interrupted);
}

}  // namespace

bool is_decode(const Problem& p) {
    return p.T <= kPanel / 2;
}

bool decode(const Problem& p, const Kernels& kernels, const std::function<bool()>& interrupted) {
    return p.q.dtype == DType::f64 ? decode_in<double>(p, kernels, interrupted)
                                   : decode_in<float>(p, kernels, interrupted);
}

}  // namespace clearhead
