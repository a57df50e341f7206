// The forward pass of one panel: online softmax with lazy rescaling.
// Milakov & Gimelshein 2018 (one pass), FlashAttention (tiles); the scores are computed transposed,
// S^T = K Q^T, so that maximum and sum run down the lanes and nothing is ever reduced across one.
//
// Traffic of a panel: each key and value is read once for 64 queries; Q, P and O stay in cache.
#pragma once
#include "mix.inl.hpp"

namespace clearhead {
namespace {

// The reference maximum of a row may lag behind the true one by this much (in log2 units): its
// weights then reach 2^4, and the state is rescaled almost never after the first tile.
constexpr int kSlack = 4;

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
    // A little below the largest score, since what is known of it is rounded: above it, all weights
    // could be 0. From there the tile's own scores are told apart exactly.
    constexpr Real kBelow = sizeof(Real) == 4 ? Real(1 - 0x1p-22) : Real(1 - 0x1p-51);
    constexpr Real kLeast =
        sizeof(Real) == 4 ? Real(-0x1.fffffep127) : Real(-0x1.fffffffffffffp1023);
    const Vec<Real> sum = S::add(m, top), above = S::set1(1 / kBelow), below = S::set1(kBelow);
    const Vec<Real> lower = S::mul(sum, S::select(S::greater(sum, zero), below, above));
    const Vec<Real> to = S::select(rises, S::max(S::set1(kLeast), lower), m);
    move_reference(state, E, key, to, exp2<Real>(S::select(rises, S::sub(m, to), zero)));
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

// Scores from products, in P: factor, softcap, bias, reference and mask.
template <class Real>
void adjust(const Panel& panel, const Block& block, int64_t key, int64_t keys, int64_t column) {
    using S = Simd<Real>;
    const State<Real> state(panel, column);
    const Vec<Real> lowest = S::set1(kLowest<Real>), m = S::load(state.m);
    const Vec<Real> shift = S::select(S::equal(m, lowest), S::set1(0), m);
    const Vec<Real> factor = S::set1(Real(panel.s_factor)), cap = S::set1(Real(panel.cap_factor));
    const Real* bias = static_cast<const Real*>(block.bias);
    for (int64_t i = key; i < key + keys; ++i) {
        Vec<Real> s = S::load(state.p + i * kPanel);
        s = S::mul(s, factor);
        if (panel.cap_factor != 0) s = S::mul(tanh<Real>(s), cap);
        if (bias) s = S::add(s, S::load(bias + i * kPanel + column));
        s = S::sub(s, shift);
        if (block.visible) s = S::select(S::bits(block.visible[i] >> column), s, lowest);
        S::store(state.p + i * kPanel, s);
    }
}

// From products to weights, in memory. Returns whether the references have moved so far that the
// tile must be scored again, which happens once at the most.
template <class Real>
bool settle(const Panel& panel, const Block& block, int64_t key, int64_t keys, int64_t column,
            int64_t vecs, bool again) {
    using S = Simd<Real>;
    const int64_t end = column + vecs * S::kLanes;
    bool lifted = false;
    for (int64_t lane = column; lane < end; lane += S::kLanes) {
        adjust<Real>(panel, block, key, keys, lane);
        if (!again) lifted |= lift(State<Real>(panel, lane), panel.E, key, keys);
    }
    if (lifted) return true;
    for (int64_t lane = column; lane < end; lane += S::kLanes) {
        const State<Real> state(panel, lane);
        raise_reference(state, panel.E, key, keys);
        Vec<Real> sum = S::load(state.l_block);
        for (int64_t i = key; i < key + keys; ++i) {
            const Vec<Real> p = exp2_of_any<Real>(S::load(state.p + i * kPanel));
            S::store(state.p + i * kPanel, p);
            sum = S::add(sum, p);
        }
        S::store(state.l_block, sum);
    }
    return false;
}

// q . k of the block's keys [key, key + Keys) for Vecs vectors of rows from `column` on. The sums
// start at 0 and are scaled afterwards, so that a score is the same to the bit as in the backward
// pass: delta, made of these weights, is then that of its weights too. (Calls of few queries, see
// decode.inl.hpp, sum in another order; the backward pass divides by its own sum of weights.)
template <class Real, int Keys, int Vecs>
inline __attribute__((always_inline)) void products(const Panel& panel, const Source<Real>& k,
                                                    int64_t key, int64_t column,
                                                    Vec<Real> (&x)[Keys][Vecs]) {
    clear<Real>(x);
    multiply<Real, Keys, Vecs>(k.data + key * k.row, k.row, k.col, panel.D,
                               static_cast<const Real*>(panel.qt) + column, x);
}

// The rare way to weights: where some row's reference is -inf or must move, and where a score is
// more than a product.
template <class Real, int Keys, int Vecs>
__attribute__((noinline)) void weigh_rarely(const Panel& panel, const Block& block,
                                            const Source<Real>& k, int64_t key, int64_t column) {
    using S = Simd<Real>;
    for (int turn = 0; turn < 2; ++turn) {
        Vec<Real> x[Keys][Vecs];
        products<Real, Keys, Vecs>(panel, k, key, column, x);
#pragma GCC unroll 8
        for (int i = 0; i < Keys; ++i) {
#pragma GCC unroll 8
            for (int j = 0; j < Vecs; ++j) {
                S::store(static_cast<Real*>(panel.p) + (key + i) * kPanel + column + j * S::kLanes,
                         x[i][j]);
            }
        }
        if (!settle<Real>(panel, block, key, Keys, column, Vecs, turn > 0)) return;
    }
}

// Weights of the same keys and rows, into P. Whether a reference must move is asked of the weights'
// sum, which is needed anyway: a maximum over the scores would be one more operation a score. The
// products never leave the registers: nothing here may take their address, and the loops over them
// are unrolled before the compiler decides where they live. Returns false where it is not to be
// done this way; what P holds then means nothing.
template <class Real, int Keys, int Vecs, bool Biased>
inline __attribute__((always_inline)) bool weigh(const Panel& panel, const Block& block,
                                                 const Source<Real>& k, int64_t key,
                                                 int64_t column) {
    using S = Simd<Real>;
    constexpr int L = S::kLanes;
    const State<Real> state(panel, column);
    Vec<Real> x[Keys][Vecs], sum[Vecs];
    products<Real, Keys, Vecs>(panel, k, key, column, x);
    const Vec<Real> factor = S::set1(Real(panel.s_factor));
    [[maybe_unused]] const Real* bias =
        Biased ? static_cast<const Real*>(block.bias) + column : nullptr;
#pragma GCC unroll 8
    for (int j = 0; j < Vecs; ++j) {
        const Vec<Real> shift = S::load(state.m + j * L);
        // Not in one step: the score that is the reference must differ from it by 0.
#pragma GCC unroll 8
        for (int i = 0; i < Keys; ++i) {
            Vec<Real> s = S::mul(x[i][j], factor);
            if constexpr (Biased) s = S::add(s, S::load(bias + (key + i) * kPanel + j * L));
            x[i][j] = S::sub(s, shift);
        }
    }
    if (block.visible) {
        const Vec<Real> lowest = S::set1(kLowest<Real>);
#pragma GCC unroll 8
        for (int i = 0; i < Keys; ++i) {
            const uint64_t seen = block.visible[key + i] >> column;
#pragma GCC unroll 8
            for (int j = 0; j < Vecs; ++j) {
                x[i][j] = S::select(S::bits(seen >> (j * L)), x[i][j], lowest);
            }
        }
    }
#pragma GCC unroll 8
    for (int j = 0; j < Vecs; ++j) {
#pragma GCC unroll 8
        for (int i = 0; i < Keys; ++i) {
            const Vec<Real> p = exp2_of_any<Real>(x[i][j]);
            S::store(state.p + (key + i) * kPanel + j * L, p);
            sum[j] = i == 0 ? p : S::add(sum[j], p);
        }
    }
    // Weights within the slack stay below half of this, others and NaN do not.
    constexpr Real kBound = 2 * Keys * Vecs << kSlack;
    Vec<Real> total = sum[0];
#pragma GCC unroll 8
    for (int j = 1; j < Vecs; ++j) total = S::add(total, sum[j]);
    if (__builtin_expect(!S::all(S::greater(S::set1(kBound), total)), 0)) return false;
#pragma GCC unroll 8
    for (int j = 0; j < Vecs; ++j) {
        S::store(state.l_block + j * L, S::add(S::load(state.l_block + j * L), sum[j]));
    }
    return true;
}

// Whether all rows of these vectors have seen a key, or are beyond the panel's last.
template <class Real>
bool all_seen(const State<Real>& state, int64_t vecs) {
    using S = Simd<Real>;
    bool seen = true;
    for (int64_t j = 0; j < vecs; ++j) {
        seen &= !S::any(S::equal(S::load(state.m + j * S::kLanes), S::set1(kLowest<Real>)));
    }
    return seen;
}

template <class Real, int Vecs, bool Biased>
void weigh_block(const Panel& panel, const Block& block, const Source<Real>& k, int64_t column) {
    const State<Real> state(panel, column);
    const bool plain = panel.cap_factor == 0;
    bool quick = plain && all_seen(state, Vecs);
    for_rows<Real>(block.count, [&]<int Keys>(int64_t key) {
        if (quick && weigh<Real, Keys, Vecs, Biased>(panel, block, k, key, column)) return;
        weigh_rarely<Real, Keys, Vecs>(panel, block, k, key, column);
        quick = plain && all_seen(state, Vecs);
    });
}

// The state of the rows [begin, end) takes up a block of keys.
template <class Real>
void attend_rows(const Panel& panel, const Block& block, int64_t begin, int64_t end) {
    const auto k =
        source<Real>(panel.k, block.begin, block.count, panel.D, static_cast<Real*>(panel.k_rows));
    const auto v =
        source<Real>(panel.v, block.begin, block.count, panel.E, static_cast<Real*>(panel.v_rows));
    for_columns<Real>(begin, end, [&]<int Vecs>(int64_t column) {
        (block.bias ? weigh_block<Real, Vecs, true> : weigh_block<Real, Vecs, false>)(panel, block,
                                                                                      k, column);
    });
    const State<Real> state(panel, 0);
    mix(v, block, panel.E, begin, end, state.p, state.ot);
}

template <class Real>
void attend(Panel& panel, const Block& block) {
    using S = Simd<Real>;
    const State<Real> state(panel, 0);
    for (int64_t r = 0; r < kPanel; r += S::kLanes) S::store(state.l_block + r, S::set1(0));
    const Real* bias = static_cast<const Real*>(block.bias);
    for_stretches<Real>(block, panel.rows, [&](const Stretch& at) {
        const Block part = {block.begin + at.from, at.to - at.from,
                            block.visible ? block.visible + at.from : nullptr,
                            bias ? bias + at.from * kPanel : nullptr};
        attend_rows<Real>(panel, part, at.begin, at.end);
    });
    for (int64_t r = 0; r < kPanel; r += S::kLanes) {
        S::store(state.l + r, S::add(S::load(state.l + r), S::load(state.l_block + r)));
    }
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
