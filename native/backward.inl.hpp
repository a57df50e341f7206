// The backward pass of one panel. With P = 2^(s - lse), dP = dout v^T, delta = sum(dout * out) and
// dS = P * (dP - delta):
//
//     dq = scale * dS k          panels of queries: lanes are queries, rows are keys
//     dk = scale * dS^T q        panels of keys: lanes are keys, rows are queries
//     dv = P^T dout              the same panels
//
// Both kinds of panel take the same steps on a block of rows: weights P, their gradient dS, sums of
// rows weighted by either. P is recomputed, so memory stays linear (FlashAttention, Dao et al.
// 2022, algorithm 4). Four products of which two are shared by dq and dk: 5/2 times the forward
// pass, and the recomputation.
#pragma once
#include "tile.inl.hpp"

namespace clearhead {
namespace {

template <class Real>
Real* real(void* p) {
    return static_cast<Real*>(p);
}

template <class Real>
const Real* real(const void* p) {
    return static_cast<const Real*>(p);
}

// A query's statistic for row `i` of the block and the lanes from `lane` on.
template <class Real>
inline Vec<Real> statistic(bool by_lane, const void* lanes, const void* rows, int64_t i,
                           int64_t lane) {
    using S = Simd<Real>;
    return by_lane ? S::load(real<Real>(lanes) + lane) : S::set1(real<Real>(rows)[i]);
}

// Scores in log2 units less the shift, where softcap (its slope is kept) or bias take part.
template <class Real>
Vec<Real> adjusted(const GradientPanel& panel, const GradientBlock& block, Vec<Real> s,
                   Vec<Real> shift, int64_t i, int64_t lane) {
    using S = Simd<Real>;
    const int64_t at = i * kPanel + lane;
    s = S::mul(s, S::set1(Real(panel.s_factor)));
    if (panel.cap_factor != 0) {
        s = tanh<Real>(s);
        S::store(real<Real>(panel.slope) + at, S::sub(S::set1(1), S::mul(s, s)));
        s = S::mul(s, S::set1(Real(panel.cap_factor)));
    }
    if (block.bias) s = S::add(s, S::load(real<Real>(block.bias) + at));
    return S::sub(s, shift);
}

// P of rows [row, row + Rows) into p; by lane, their sums too.
template <class Real, int Rows, int Vecs>
void weights_tile(const GradientPanel& panel, const GradientBlock& block, const Source<Real>& a,
                  int64_t row, int64_t lane) {
    using S = Simd<Real>;
    constexpr int L = S::kLanes;
    const Vec<Real> zero = S::set1(0);
    const bool plain = panel.cap_factor == 0 && !block.bias;
    Vec<Real> x[Rows][Vecs];
    // From 0, not from -shift: an lse of 8 would cost a score of 0.1 six of its bits at every step.
    clear<Real>(x);
    multiply<Real, Rows, Vecs>(a.data + row * a.row, a.row, a.col, panel.D,
                               real<Real>(panel.xt) + lane, x);
    for (int j = 0; j < Vecs; ++j) {
        Vec<Real> sum = zero;
        for (int i = 0; i < Rows; ++i) {
            const int64_t at = lane + j * L;
            const Vec<Real> shift =
                statistic<Real>(panel.by_lane, panel.shift, block.shift, row + i, at);
            const Vec<Real> s = plain
                                    ? S::sub(S::mul(x[i][j], S::set1(Real(panel.s_factor))), shift)
                                    : adjusted<Real>(panel, block, x[i][j], shift, row + i, at);
            Vec<Real> p = exp2<Real>(s);
            if (!panel.by_lane) p = S::mul(p, S::set1(real<Real>(block.factor)[row + i]));
            // Last: where shift or factor are NaN, what the row does not see must still be 0.
            if (block.visible) p = S::select(S::bits(block.visible[row + i] >> at), p, zero);
            S::store(real<Real>(panel.p) + (row + i) * kPanel + at, p);
            sum = S::add(sum, p);
        }
        if (panel.by_lane) {
            Real* sums = real<Real>(panel.sums) + lane + j * L;
            S::store(sums, S::add(S::load(sums), sum));
        }
    }
}

// dS of the same rows in the place of P; or, for Step::sums, P * dP added to the second sums.
template <class Real, int Rows, int Vecs>
void gradient_tile(const GradientPanel& panel, const GradientBlock& block, const Source<Real>& b,
                   GradientStep step, int64_t row, int64_t lane) {
    using S = Simd<Real>;
    constexpr int L = S::kLanes;
    const Vec<Real> zero = S::set1(0);
    const bool wants_sums = step == GradientStep::sums;
    // The bias is added behind the softcap: its gradient is dS before the softcap's slope.
    const bool has_slope =
        panel.cap_factor != 0 && (step == GradientStep::queries || step == GradientStep::keys);
    Vec<Real> x[Rows][Vecs];
    clear<Real>(x);
    multiply<Real, Rows, Vecs>(b.data + row * b.row, b.row, b.col, panel.E,
                               real<Real>(panel.yt) + lane, x);
    for (int j = 0; j < Vecs; ++j) {
        Vec<Real> sum = zero;
        for (int i = 0; i < Rows; ++i) {
            const int64_t at = (row + i) * kPanel + lane + j * L;
            Real* p = real<Real>(panel.p) + at;
            Vec<Real> ds = x[i][j];
            if (!wants_sums) {
                ds = S::sub(ds, statistic<Real>(panel.by_lane, panel.delta, block.delta, row + i,
                                                lane + j * L));
            }
            ds = S::mul(S::load(p), ds);
            if (has_slope) {
                ds = S::mul(ds, S::load(real<Real>(panel.slope) + at));
            }
            if (block.visible) {
                ds = S::select(S::bits(block.visible[row + i] >> (lane + j * L)), ds, zero);
            }
            if (!wants_sums) S::store(p, ds);
            sum = S::add(sum, ds);
        }
        if (wants_sums) {
            Real* sums = real<Real>(panel.sums) + kPanel + lane + j * L;
            S::store(sums, S::add(S::load(sums), sum));
        }
    }
}

template <class Real>
void gradient_begin(GradientPanel& panel) {
    using S = Simd<Real>;
    const auto clear = [](void* p, int64_t n) {
        for (int64_t i = 0; i < n; i += S::kLanes) S::store(real<Real>(p) + i, S::set1(0));
    };
    transpose_in<Real>(panel.x, panel.lanes, panel.D, 1, real<Real>(panel.xt));
    transpose_in<Real>(panel.y, panel.lanes, panel.E, 1, real<Real>(panel.yt));
    clear(panel.dxt, panel.D * kPanel);
    if (!panel.by_lane) clear(panel.dyt, panel.E * kPanel);
    clear(panel.sums, 2 * kPanel);
}

template <class Real>
void gradient_block(GradientPanel& panel, const GradientBlock& block, GradientStep step) {
    const auto a =
        source<Real>(panel.a, block.begin, block.count, panel.D, real<Real>(panel.a_rows));
    const auto b =
        source<Real>(panel.b, block.begin, block.count, panel.E, real<Real>(panel.b_rows));
    for_columns<Real>(panel.lanes, [&]<int Vecs>(int64_t lane) {
        for_rows<Real>(block.count, [&]<int Rows>(int64_t row) {
            weights_tile<Real, Rows, Vecs>(panel, block, a, row, lane);
        });
    });
    Real* p = real<Real>(panel.p);
    if (step == GradientStep::keys) {
        mix(b, block, panel.E, panel.lanes, p, real<Real>(panel.dyt));
    }
    for_columns<Real>(panel.lanes, [&]<int Vecs>(int64_t lane) {
        for_rows<Real>(block.count, [&]<int Rows>(int64_t row) {
            gradient_tile<Real, Rows, Vecs>(panel, block, b, step, row, lane);
        });
    });
    if (step == GradientStep::queries || step == GradientStep::keys) {
        mix(a, block, panel.D, panel.lanes, p, real<Real>(panel.dxt));
    }
}

template <class Real>
void transpose_out(const void* panel, int64_t rows, int64_t cols, const void* factor,
                   const Matrix& out) {
    transpose_out<Real>(real<Real>(panel), rows, cols, real<Real>(factor), out);
}

template <class Real>
void row_products(const Matrix& a, const Matrix& b, int64_t rows, int64_t cols, void* sums) {
    using S = Simd<Real>;
    for (int64_t i = 0; i < rows; ++i) {
        Vec<Real> sum = S::set1(0);
        for (int64_t j = 0; j < cols; j += S::kLanes) {
            const Vec<Real> x = load_row<Real>(a, i, j, cols - j);
            sum = S::fma(x, load_row<Real>(b, i, j, cols - j), sum);
        }
        Real lanes[S::kLanes], total = 0;
        S::store(lanes, sum);
        for (const Real x : lanes) total += x;
        real<Real>(sums)[i] = total;
    }
}

}  // namespace
}  // namespace clearhead
