// The backward pass of one panel. With P = 2^(s - lse), dP = dout v^T, delta = sum(dout * out) and
// dS = P * (dP - delta):
//
//     dq = scale * dS k        dk = scale * dS^T q        dv = P^T dout
//
// A panel holds 64 keys in its lanes and walks the queries in blocks: of each it takes weights P
// and their gradient dS, tiles that serve all three. dk and dv gather in the panel; what a block
// adds to dq leaves it, and the driver sees to the order. P is recomputed, so memory stays linear
// (FlashAttention, Dao et al. 2022, algorithm 4): five products, 5/2 times the forward pass.
#pragma once
#include "mix.inl.hpp"

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
template <class Real, bool ByLane>
inline __attribute__((always_inline)) Vec<Real> statistic(const void* lanes, const void* rows,
                                                          int64_t i, int64_t lane) {
    using S = Simd<Real>;
    return ByLane ? S::load(real<Real>(lanes) + lane) : S::set1(real<Real>(rows)[i]);
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

// x = 0 where a lane does not see a row.
template <class Real, int Rows, int Vecs>
inline __attribute__((always_inline)) void hide(const Block& block, int64_t row, int64_t lane,
                                                Vec<Real> (&x)[Rows][Vecs]) {
    using S = Simd<Real>;
    if (!block.visible) return;
    const Vec<Real> zero = S::set1(0);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
        const uint64_t seen = block.visible[row + i] >> lane;
#pragma GCC unroll 8
        for (int j = 0; j < Vecs; ++j) {
            x[i][j] = S::select(S::bits(seen >> (j * S::kLanes)), x[i][j], zero);
        }
    }
}

// sums += the sum of x over its rows.
template <class Real, int Rows, int Vecs>
inline __attribute__((always_inline)) void add_rows(const Vec<Real> (&x)[Rows][Vecs], Real* sums) {
    using S = Simd<Real>;
#pragma GCC unroll 8
    for (int j = 0; j < Vecs; ++j) {
        Vec<Real> sum = x[0][j];
#pragma GCC unroll 8
        for (int i = 1; i < Rows; ++i) sum = S::add(sum, x[i][j]);
        S::store(sums + j * S::kLanes, S::add(S::load(sums + j * S::kLanes), sum));
    }
}

template <class Real, int Rows, int Vecs>
inline __attribute__((always_inline)) void store_tile(const Vec<Real> (&x)[Rows][Vecs], Real* p) {
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < Vecs; ++j) {
            Simd<Real>::store(p + i * kPanel + j * Simd<Real>::kLanes, x[i][j]);
        }
    }
}

// P of rows [row, row + Rows) into p; by lane, their sums too.
template <class Real, int Rows, int Vecs, bool ByLane>
void weights_tile(const GradientPanel& panel, const GradientBlock& block, const Source<Real>& a,
                  int64_t row, int64_t lane) {
    using S = Simd<Real>;
    constexpr int L = S::kLanes;
    Vec<Real> x[Rows][Vecs];
    // From 0, not from -shift: an lse of 8 would cost a score of 0.1 six of its bits at every step.
    clear<Real>(x);
    multiply<Real, Rows, Vecs>(a.data + row * a.row, a.row, a.col, panel.D,
                               real<Real>(panel.xt) + lane, x);
    const bool plain = panel.cap_factor == 0 && !block.bias;
    const Vec<Real> s_factor = S::set1(Real(panel.s_factor));
    if (plain) {
#pragma GCC unroll 8
        for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
            for (int j = 0; j < Vecs; ++j) {
                x[i][j] = S::sub(
                    S::mul(x[i][j], s_factor),
                    statistic<Real, ByLane>(panel.shift, block.shift, row + i, lane + j * L));
            }
        }
    } else {
#pragma GCC unroll 8
        for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
            for (int j = 0; j < Vecs; ++j) {
                const Vec<Real> shift =
                    statistic<Real, ByLane>(panel.shift, block.shift, row + i, lane + j * L);
                x[i][j] = adjusted<Real>(panel, block, x[i][j], shift, row + i, lane + j * L);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < Vecs; ++j) {
            x[i][j] = exp2_of_any<Real>(x[i][j]);
            if (!ByLane) x[i][j] = S::mul(x[i][j], S::set1(real<Real>(block.factor)[row + i]));
        }
    }
    // Last: where shift or factor are NaN, what the row does not see must still be 0.
    hide<Real>(block, row, lane, x);
    store_tile<Real>(x, real<Real>(panel.p) + row * kPanel + lane);
    if (ByLane) add_rows<Real>(x, real<Real>(panel.sums) + lane);
}

// dS of the same rows in the place of P; or, for Step::sums, P * dP added to the second sums.
template <class Real, int Rows, int Vecs, bool ByLane>
void gradient_tile(const GradientPanel& panel, const GradientBlock& block, const Source<Real>& b,
                   GradientStep step, int64_t row, int64_t lane) {
    using S = Simd<Real>;
    constexpr int L = S::kLanes;
    const bool wants_sums = ByLane && step == GradientStep::sums;
    Vec<Real> x[Rows][Vecs];
    clear<Real>(x);
    multiply<Real, Rows, Vecs>(b.data + row * b.row, b.row, b.col, panel.E,
                               real<Real>(panel.yt) + lane, x);
    Real* const p = real<Real>(panel.p) + row * kPanel + lane;
    if (!wants_sums) {
#pragma GCC unroll 8
        for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
            for (int j = 0; j < Vecs; ++j) {
                x[i][j] = S::sub(x[i][j], statistic<Real, ByLane>(panel.delta, block.delta, row + i,
                                                                  lane + j * L));
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < Vecs; ++j) {
            x[i][j] = S::mul(S::load(p + i * kPanel + j * L), x[i][j]);
        }
    }
    // The bias is added behind the softcap: its gradient is dS before the softcap's slope.
    if (panel.cap_factor != 0 && step == GradientStep::keys) {
        const Real* slope = real<Real>(panel.slope) + row * kPanel + lane;
#pragma GCC unroll 8
        for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
            for (int j = 0; j < Vecs; ++j) {
                x[i][j] = S::mul(x[i][j], S::load(slope + i * kPanel + j * L));
            }
        }
    }
    hide<Real>(block, row, lane, x);
    if (wants_sums) {
        add_rows<Real>(x, real<Real>(panel.sums) + kPanel + lane);
    } else {
        store_tile<Real>(x, p);
    }
}

// x by rows, for dq: lanes are its columns there. What is beyond D is 0.
template <class Real>
void lay_out_rows(GradientPanel& panel) {
    using S = Simd<Real>;
    const Vec<Real> zero = S::set1(0);
    Vec<Real> check = zero;
    for (int64_t d = 0; d < panel.D; d += S::kLanes) {
        Real* out = real<Real>(panel.x_rows) + d / kPanel * kPanel * kPanel + d % kPanel;
        for (int64_t i = 0; i < panel.lanes; ++i) {
            const Vec<Real> x = load_row<Real>(panel.x, i, d, panel.D - d);
            S::store(out + i * kPanel, x);
            check = S::fma(x, zero, check);
        }
    }
    panel.x_finite = S::all(S::equal(check, zero));
}

template <class Real>
void gradient_begin(GradientPanel& panel) {
    using S = Simd<Real>;
    const auto set_to_0 = [](void* p, int64_t n) {
        for (int64_t i = 0; i < n; i += S::kLanes) S::store(real<Real>(p) + i, S::set1(0));
    };
    transpose_in<Real>(panel.x, panel.lanes, panel.D, 1, real<Real>(panel.xt));
    transpose_in<Real>(panel.y, panel.lanes, panel.E, 1, real<Real>(panel.yt));
    set_to_0(panel.sums, 2 * kPanel);
    if (panel.by_lane) return;
    lay_out_rows<Real>(panel);
    set_to_0(panel.dxt, panel.D * kPanel);
    set_to_0(panel.dyt, panel.E * kPanel);
}

template <class Real, bool ByLane>
void gradient_steps(GradientPanel& panel, const GradientBlock& block, const Source<Real>& a,
                    const Source<Real>& b, GradientStep step, const Stretch& at) {
    const auto tiles = [&](auto tile) {
        for_columns<Real>(at.begin, at.end, [&]<int Vecs>(int64_t lane) {
            for_rows<Real>(at.to - at.from, [&]<int Rows>(int64_t row) {
                tile.template operator()<Rows, Vecs>(at.from + row, lane);
            });
        });
    };
    const auto mix_rows = [&](const Source<Real>& rows, int64_t columns, void* sums) {
        const Block part = {block.begin + at.from, at.to - at.from,
                            block.visible ? block.visible + at.from : nullptr, nullptr};
        mix<Real>({rows.data + at.from * rows.row, rows.row, rows.col}, part, columns, at.begin,
                  at.end, real<Real>(panel.p) + at.from * kPanel, real<Real>(sums));
    };
    tiles([&]<int Rows, int Vecs>(int64_t row, int64_t lane) {
        weights_tile<Real, Rows, Vecs, ByLane>(panel, block, a, row, lane);
    });
    if (step == GradientStep::weights) return;
    if (!ByLane) mix_rows(b, panel.E, panel.dyt);
    tiles([&]<int Rows, int Vecs>(int64_t row, int64_t lane) {
        gradient_tile<Real, Rows, Vecs, ByLane>(panel, block, b, step, row, lane);
    });
    if (!ByLane) mix_rows(a, panel.D, panel.dxt);
}

template <class Real>
void gradient_block(GradientPanel& panel, const GradientBlock& block, GradientStep step) {
    const auto a =
        source<Real>(panel.a, block.begin, block.count, panel.D, real<Real>(panel.a_rows));
    const auto b = step == GradientStep::weights ? Source<Real>{}
                                                 : source<Real>(panel.b, block.begin, block.count,
                                                                panel.E, real<Real>(panel.b_rows));
    for_stretches<Real>(block, panel.lanes, [&](const Stretch& at) {
        if (panel.by_lane) {
            gradient_steps<Real, true>(panel, block, a, b, step, at);
        } else {
            gradient_steps<Real, false>(panel, block, a, b, step, at);
        }
    });
}

// The same where a NaN or an infinity stands in a key that some row does not see.
template <class Real>
void visible_rows(const GradientPanel& panel, const Block& block, Real* da) {
    using S = Simd<Real>;
    const int64_t stride = padded(panel.D);
    for (int64_t i = 0; i < block.count; ++i) {
        for (int64_t lane = 0; lane < panel.lanes; ++lane) {
            if (!(block.visible[i] >> lane & 1)) continue;
            const Vec<Real> ds = S::set1(real<Real>(panel.p)[i * kPanel + lane]);
            for (int64_t d = 0; d < panel.D; d += S::kLanes) {
                const Real* x =
                    real<Real>(panel.x_rows) + (d / kPanel * kPanel + lane) * kPanel + d % kPanel;
                Real* out = da + i * stride + d;
                S::store(out, S::fma(ds, S::load(x), S::load(out)));
            }
        }
    }
}

// da += p x, for `lanes` rows of x.
template <class Real, int Rows, int Vecs>
void rows_tile(const Real* p, int64_t lanes, const Real* x, Real* da, int64_t stride) {
    using S = Simd<Real>;
    Vec<Real> sum[Rows][Vecs];
    clear<Real>(sum);
    multiply<Real, Rows, Vecs>(p, kPanel, 1, lanes, x, sum);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < Vecs; ++j) {
            Real* const out = da + i * stride + j * S::kLanes;
            S::store(out, S::add(S::load(out), sum[i][j]));
        }
    }
}

template <class Real>
void gradient_rows(const GradientPanel& panel, const Block& block, void* da) {
    const int64_t stride = padded(panel.D);
    if (block.visible && !panel.x_finite) {
        visible_rows(panel, block, real<Real>(da));
        return;
    }
    for_stretches<Real>(block, panel.lanes, [&](const Stretch& at) {
        for (int64_t d = 0; d < panel.D && at.begin < at.end; d += kPanel) {
            const Real* const x = real<Real>(panel.x_rows) + (d + at.begin) * kPanel;
            const int64_t columns = panel.D - d < kPanel ? panel.D - d : kPanel;
            for_columns<Real>(columns, [&]<int Vecs>(int64_t c) {
                for_rows<Real>(at.to - at.from, [&]<int Rows>(int64_t row) {
                    const int64_t i = at.from + row;
                    rows_tile<Real, Rows, Vecs>(real<Real>(panel.p) + i * kPanel + at.begin,
                                                at.end - at.begin, x + c,
                                                real<Real>(da) + i * stride + d + c, stride);
                });
            });
        }
    });
}

template <class Real>
void rows_out(const void* a, int64_t rows, int64_t cols, double factor, const Matrix& out) {
    using S = Simd<Real>;
    const Vec<Real> f = S::set1(Real(factor));
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < cols; j += S::kLanes) {
            const Vec<Real> x = S::load(real<Real>(a) + i * padded(cols) + j);
            store_row<Real>(out, i, j, cols - j, S::mul(x, f));
        }
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
