// The forward pass of one panel: online softmax with lazy rescaling.
// Milakov & Gimelshein 2018 (one pass), FlashAttention (tiles); the scores are computed transposed,
// S^T = K Q^T, so that maximum and sum run down the lanes and nothing is ever reduced across one.
//
// Traffic of a panel: each key and value is read once for 64 queries; Q, P and O stay in cache.
#pragma once
#include "tile.inl.hpp"

namespace clearhead {
namespace {

// The reference maximum of a row may lag behind the true one by this much (in log2 units): weights
// then reach 2^8 at most, and the state is rescaled almost never after the first tile.
constexpr int kSlack = 8;

template <class Real>
constexpr Real kLowest = -__builtin_inff();

// The scratch of a panel, typed, from one column of lanes on.
template <class Real>
struct State {
    Real *m, *l, *l_block, *p, *ot;

    State(const Panel& panel, int64_t column)
        : m(static_cast<Real*>(panel.m) + column),
          l(static_cast<Real*>(panel.l) + column),
          l_block(static_cast<Real*>(panel.l) + kPanel + column),
          p(static_cast<Real*>(panel.p) + column),
          ot(static_cast<Real*>(panel.ot) + column) {}
};

template <class Real>
void begin(Panel& panel) {
    using S = Simd<Real>;
    transpose_in<Real>(panel.q, panel.rows, panel.D, Real(panel.q_factor),
                       static_cast<Real*>(panel.qt));
    const State<Real> state(panel, 0);
    // An infinite sink would divide inf by inf: NaN, as of any score.
    const Real sink = panel.sink == -kLowest<Real> ? __builtin_nanf("") : Real(panel.sink);
    const bool has_sink = !(sink == kLowest<Real>);
    for (int64_t r = 0; r < kPanel; ++r) {
        // Lanes without a row count as having seen a key, so that they never hold the others up.
        state.m[r] = r < panel.rows ? sink : 0;
        state.l[r] = has_sink ? 1 : 0;
    }
    for (int64_t at = 0; at < panel.E * kPanel; at += S::kLanes)
        S::store(state.ot + at, S::set1(0));
    panel.all_seen = has_sink;
}

// Moves the reference of some rows from m to `to`, and rescales what they have gathered by
// `factor`.
template <class Real>
void move_reference(const State<Real>& state, int64_t E, int64_t key, Vec<Real> to,
                    Vec<Real> factor) {
    using S = Simd<Real>;
    const auto scale = [&](Real* x) { S::store(x, S::mul(S::load(x), factor)); };
    S::store(state.m, to);
    scale(state.l);
    scale(state.l_block);
    for (int64_t i = 0; i < key; ++i) scale(state.p + i * kPanel);
    for (int64_t e = 0; e < E; ++e) scale(state.ot + e * kPanel);
}

// Rows whose scores in P, taken relative to a reference, pass it by more than the slack: moves
// their reference up. Such scores have lost the digits below the old reference's last one, so the
// tile is to be scored again: returns whether it must be.
template <class Real>
bool lift(const State<Real>& state, int64_t E, int64_t key, int64_t keys) {
    using S = Simd<Real>;
    const Vec<Real> lowest = S::set1(kLowest<Real>), zero = S::set1(0);
    Vec<Real> top = lowest;
    for (int64_t i = key; i < key + keys; ++i) top = S::max(S::load(state.p + i * kPanel), top);
    const Vec<Real> m = S::load(state.m);
    const auto rises = S::both(S::greater(m, lowest), S::greater(top, S::set1(kSlack)));
    if (!S::any(rises)) return false;
    const Vec<Real> rise = S::select(rises, top, zero);
    move_reference(state, E, key, S::add(m, rise), exp2<Real>(S::sub(zero, rise)));
    return true;
}

// A tile of scores relative to the reference lies in P (rows [key, key + rows)), and some row's
// reference must move: raise it to the tile's maximum, rescale what the row has gathered so far,
// and shift the tile. A row that has seen no key yet (m = -inf, nothing gathered) takes the tile's
// maximum whatever it is. NaN moves nothing: it reaches l and o through the weights.
template <class Real>
void raise_reference(const State<Real>& state, int64_t E, int64_t key, int64_t rows) {
    using S = Simd<Real>;
    const Vec<Real> lowest = S::set1(kLowest<Real>), zero = S::set1(0);
    Vec<Real> top = lowest;
    for (int64_t i = key; i < key + rows; ++i) top = S::max(S::load(state.p + i * kPanel), top);
    const Vec<Real> old = S::load(state.m);
    const auto fresh = S::both(S::equal(old, lowest), S::greater(top, lowest));
    const auto grows = S::either(fresh, S::greater(top, S::set1(kSlack)));
    if (!S::any(grows)) return;
    const Vec<Real> rise = S::select(grows, top, zero);
    const Vec<Real> factor = S::select(fresh, S::set1(1), exp2<Real>(S::sub(zero, rise)));
    move_reference(state, E, key, S::select(fresh, top, S::add(old, rise)), factor);
    for (int64_t i = key; i < key + rows; ++i) {
        S::store(state.p + i * kPanel, S::sub(S::load(state.p + i * kPanel), rise));
    }
}

// Scores that the product alone does not give, in P: softcap, bias, reference and mask.
template <class Real>
void adjust(const Panel& panel, const Block& block, int64_t key, int64_t keys, int64_t column) {
    using S = Simd<Real>;
    const State<Real> state(panel, column);
    const Vec<Real> lowest = S::set1(kLowest<Real>), m = S::load(state.m);
    const Vec<Real> shift = S::select(S::equal(m, lowest), S::set1(0), m);
    const Real* bias = static_cast<const Real*>(block.bias);
    for (int64_t i = key; i < key + keys; ++i) {
        Vec<Real> s = S::load(state.p + i * kPanel);
        s = S::mul(s, S::set1(Real(panel.s_factor)));
        if (panel.cap_factor != 0) s = S::mul(tanh<Real>(s), S::set1(Real(panel.cap_factor)));
        if (bias) s = S::add(s, S::load(bias + i * kPanel + column));
        s = S::sub(s, shift);
        if (block.visible) s = S::select(S::bits(block.visible[i] >> column), s, lowest);
        S::store(state.p + i * kPanel, s);
    }
}

// The rare way from scores to weights, in memory. Returns whether the references have moved so far
// that the tile must be scored again, which happens once at the most.
template <class Real>
__attribute__((noinline)) bool settle(const Panel& panel, const Block& block, int64_t key,
                                      int64_t keys, int64_t column, int64_t vecs, bool plain,
                                      bool again) {
    using S = Simd<Real>;
    const int64_t end = column + vecs * S::kLanes;
    bool lifted = false;
    for (int64_t lane = column; lane < end; lane += S::kLanes) {
        if (!plain) adjust<Real>(panel, block, key, keys, lane);
        if (!again) lifted |= lift(State<Real>(panel, lane), panel.E, key, keys);
    }
    if (lifted) return true;
    for (int64_t lane = column; lane < end; lane += S::kLanes) {
        const State<Real> state(panel, lane);
        raise_reference(state, panel.E, key, keys);
        Vec<Real> sum = S::load(state.l_block);
        for (int64_t i = key; i < key + keys; ++i) {
            const Vec<Real> p = exp2<Real>(S::load(state.p + i * kPanel));
            S::store(state.p + i * kPanel, p);
            sum = S::add(sum, p);
        }
        S::store(state.l_block, sum);
    }
    return false;
}

// Weights of the block's keys [key, key + Keys) for Vecs vectors of rows from `column` on, into P.
// The accumulators start at 0 and are scaled behind the sum, so that a score is the same to the bit
// as in the backward pass: delta, made of these weights, is then that of its weights too. They
// never leave the registers unless the rare way is needed: nothing here may take their address, and
// the loops over them are unrolled before the compiler decides where they live.
template <class Real, int Keys, int Vecs>
void weigh(const Panel& panel, const Block& block, const Source<Real>& k, int64_t key,
           int64_t column, bool again = false) {
    using S = Simd<Real>;
    constexpr int L = S::kLanes;
    const State<Real> state(panel, column);
    const Vec<Real> zero = S::set1(0), lowest = S::set1(kLowest<Real>);
    const bool plain = panel.cap_factor == 0 && !block.bias;

    Vec<Real> x[Keys][Vecs];
#pragma GCC unroll 8
    for (int j = 0; j < Vecs; ++j) {
#pragma GCC unroll 8
        for (int i = 0; i < Keys; ++i) x[i][j] = zero;
    }
    multiply<Real, Keys, Vecs>(k.data + key * k.row, k.row, k.col, panel.D,
                               static_cast<const Real*>(panel.qt) + column, x);
    bool settled = false;
    if (plain) {
        const Vec<Real> factor = S::set1(Real(panel.s_factor));
#pragma GCC unroll 8
        for (int j = 0; j < Vecs; ++j) {
            const Vec<Real> m = S::load(state.m + j * L);
            const Vec<Real> shift = S::select(S::equal(m, lowest), zero, m);
            // Not in one step: the score that is the reference must differ from it by 0.
#pragma GCC unroll 8
            for (int i = 0; i < Keys; ++i) x[i][j] = S::sub(S::mul(x[i][j], factor), shift);
        }
        if (block.visible) {
#pragma GCC unroll 8
            for (int i = 0; i < Keys; ++i) {
                const uint64_t seen = block.visible[key + i] >> column;
#pragma GCC unroll 8
                for (int j = 0; j < Vecs; ++j) {
                    x[i][j] = S::select(S::bits(seen >> (j * L)), x[i][j], lowest);
                }
            }
        }
        Vec<Real> top = lowest;  // max() keeps its second operand beside a NaN: top is never one
#pragma GCC unroll 8
        for (int i = 0; i < Keys; ++i) {
#pragma GCC unroll 8
            for (int j = 0; j < Vecs; ++j) top = S::max(x[i][j], top);
        }
        settled = panel.all_seen && !S::any(S::greater(top, S::set1(kSlack)));
    }
    if (__builtin_expect(!settled, 0)) {
#pragma GCC unroll 8
        for (int i = 0; i < Keys; ++i) {
#pragma GCC unroll 8
            for (int j = 0; j < Vecs; ++j) S::store(state.p + (key + i) * kPanel + j * L, x[i][j]);
        }
        if (settle<Real>(panel, block, key, Keys, column, Vecs, plain, again)) {
            weigh<Real, Keys, Vecs>(panel, block, k, key, column, true);
        }
        return;
    }
#pragma GCC unroll 8
    for (int j = 0; j < Vecs; ++j) {
        Vec<Real> sum = S::load(state.l_block + j * L);
#pragma GCC unroll 8
        for (int i = 0; i < Keys; ++i) {
            const Vec<Real> p = exp2<Real>(x[i][j]);
            S::store(state.p + (key + i) * kPanel + j * L, p);
            sum = S::add(sum, p);
        }
        S::store(state.l_block + j * L, sum);
    }
}

template <class Real, int Vecs>
void weigh_block(const Panel& panel, const Block& block, const Source<Real>& k, int64_t column) {
    constexpr int Keys = Simd<Real>::kTileRows;
    int64_t key = 0;
    for (; key + Keys <= block.count; key += Keys) {
        weigh<Real, Keys, Vecs>(panel, block, k, key, column);
    }
    for (; key < block.count; ++key) weigh<Real, 1, Vecs>(panel, block, k, key, column);
}

template <class Real>
void attend(Panel& panel, const Block& block) {
    using S = Simd<Real>;
    const auto k =
        source<Real>(panel.k, block.begin, block.count, panel.D, static_cast<Real*>(panel.k_rows));
    const auto v =
        source<Real>(panel.v, block.begin, block.count, panel.E, static_cast<Real*>(panel.v_rows));
    const State<Real> state(panel, 0);
    for (int64_t r = 0; r < kPanel; r += S::kLanes) S::store(state.l_block + r, S::set1(0));

    for_columns<Real>(panel.rows, [&]<int Vecs>(int64_t column) {
        weigh_block<Real, Vecs>(panel, block, k, column);
    });
    mix(v, block, panel.E, panel.rows, state.p, state.ot);

    bool all_seen = true;
    for (int64_t r = 0; r < kPanel; r += S::kLanes) {
        S::store(state.l + r, S::add(S::load(state.l + r), S::load(state.l_block + r)));
        if (!panel.all_seen) {
            all_seen &= !S::any(S::equal(S::load(state.m + r), S::set1(kLowest<Real>)));
        }
    }
    panel.all_seen = all_seen;
}

template <class Real>
void finish(Panel& panel, const Matrix& out) {
    using S = Simd<Real>;
    const State<Real> state(panel, 0);
    for (int64_t r = 0; r < kPanel; r += S::kLanes) {
        const Vec<Real> l = S::load(state.l + r), zero = S::set1(0);
        S::store(state.l_block + r, S::select(S::equal(l, zero), zero, S::div(S::set1(1), l)));
    }
    transpose_out<Real>(state.ot, panel.rows, panel.E, state.l_block, out);
}

}  // namespace
}  // namespace clearhead
