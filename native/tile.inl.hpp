// What every algorithm here is made of: the register tile, 2^x, rows in and out of a panel, and
// weighted sums of rows.
// Included after a simd_<isa>.hpp; everything has internal linkage.
#pragma once
#include "kernels.hpp"

namespace clearhead {
namespace {

template <class Real>
using Vec = typename Simd<Real>::Vec;

template <class Real, int Rows, int Vecs>
inline __attribute__((always_inline)) void clear(Vec<Real> (&sum)[Rows][Vecs]) {
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < Vecs; ++j) sum[i][j] = Simd<Real>::set1(0);
    }
}

// sum[i][j] += sum over n < count of a[i * outer + n * inner] * panel[n][column j]: an outer
// product at each n. 6 x 4 vectors of AVX-512 fill 24 of 32 registers and read 10 values for 24
// fused multiply-adds, well under the two loads a cycle that would make loads the limit; 6 x 2 of
// AVX2 fill 12 of 16 and read 8 for 12 (3 x 4 would read 7, and have no register left for them).
//
// The sums stay in registers from here to their last use only if all loops over them are unrolled
// before the compiler decides where they live: hence the pragmas, here and at the callers.
template <class Real, int Rows, int Vecs>
inline __attribute__((always_inline)) void multiply(const Real* a, int64_t outer, int64_t inner,
                                                    int64_t count, const Real* panel,
                                                    Vec<Real> (&sum)[Rows][Vecs]) {
    using S = Simd<Real>;
    const Real* row[Rows];
    row[0] = a;
#pragma GCC unroll 8
    for (int i = 1; i < Rows; ++i) row[i] = row[i - 1] + outer;
    // Four steps a turn: the branch predictor then sees the end of a loop over D = 64 coming.
#pragma GCC unroll 4
    for (int64_t n = 0; n < count; ++n) {
        Vec<Real> x[Vecs];
#pragma GCC unroll 8
        for (int j = 0; j < Vecs; ++j) x[j] = S::load(panel + n * kPanel + j * S::kLanes);
#pragma GCC unroll 8
        for (int i = 0; i < Rows; ++i) {
            const Vec<Real> b = S::set1(row[i][n * inner]);
#pragma GCC unroll 8
            for (int j = 0; j < Vecs; ++j) sum[i][j] = S::fma(b, x[j], sum[i][j]);
        }
    }
}

// 2^x = 2^n 2^r with n the nearest integer, r in [-1/2, 1/2] by a minimax polynomial (relative
// error 2.6e-9 in float, 1.8e-17 in double, with 2^0 exactly 1; native/derive_exp2.py). Adding 1.5
// * 2^23 rounds to an integer and leaves n in the low mantissa bits, where pow2 wants it. At and
// below the smallest exponent the result is exactly 0; NaN stays NaN.
template <class Real>
struct Exp2;

template <>
struct Exp2<float> {
    static constexpr float kRound = 0x1.8p23f + 127, kLowest = -127;
    static constexpr float kCoefficients[] = {
        1.0f,           0.69314721496788f, 0.24022652782877f, 0.05550310551207f,
        0.00961769297f, 0.00134066438475f, 0.00015594677015f};
};

template <>
struct Exp2<double> {
    static constexpr double kRound = 0x1.8p52 + 1023, kLowest = -1023;
    static constexpr double kCoefficients[] = {1.0,
                                               0.69314718055994569675,
                                               0.24022650695910098006,
                                               0.055504108664790394528,
                                               0.0096181291076070026171,
                                               0.001333355815343996974,
                                               0.00015403530441571850099,
                                               0.00001525272738518977478,
                                               1.3215442675452855182e-6,
                                               1.0180647660573069343e-7,
                                               7.0725703945407994337e-9,
                                               4.0780717860928704165e-10};
};

// (2^r - 1) / r: for exp2 and, where 1 must not swallow a small x, tanh.
template <class Real>
inline __attribute__((always_inline)) Vec<Real> exp2_tail(Vec<Real> r) {
    using S = Simd<Real>;
    constexpr auto& c = Exp2<Real>::kCoefficients;
    constexpr int degree = sizeof(c) / sizeof(Real) - 1;
    Vec<Real> tail = S::set1(c[degree]);
#pragma GCC unroll 16
    for (int k = degree - 1; k >= 1; --k) tail = S::fma(tail, r, S::set1(c[k]));
    return tail;
}

// r and 2^n of the split above.
template <class Real>
inline __attribute__((always_inline)) void split_exp2(Vec<Real> x, Vec<Real>& r, Vec<Real>& tail,
                                                      Vec<Real>& power) {
    using S = Simd<Real>;
    x = S::max(S::set1(Exp2<Real>::kLowest), x);
    const Vec<Real> n = S::add(x, S::set1(Exp2<Real>::kRound));
    r = S::sub(x, S::sub(n, S::set1(Exp2<Real>::kRound)));
    tail = exp2_tail<Real>(r);
    power = S::pow2(n);
}

// For x up to the largest exponent.
template <class Real>
inline __attribute__((always_inline)) Vec<Real> exp2(Vec<Real> x) {
    using S = Simd<Real>;
    Vec<Real> r, tail, power;
    split_exp2<Real>(x, r, tail, power);
    return S::mul(S::fma(tail, r, S::set1(1)), power);
}

// For any x: what is too large becomes infinite. Where the instruction set splits and scales by
// itself, this costs 9 operations instead of 13; weights below the smallest normal number then come
// out subnormal instead of 0.
template <class Real>
inline __attribute__((always_inline)) Vec<Real> exp2_of_any(Vec<Real> x) {
    using S = Simd<Real>;
    if constexpr (requires { S::fraction(x); }) {
        const Vec<Real> r = S::fraction(x);
        return S::scale(S::fma(exp2_tail<Real>(r), r, S::set1(1)), S::sub(x, r));
    } else {
        return exp2<Real>(S::min(S::set1(1 - Exp2<Real>::kLowest), x));
    }
}

// tanh x = z / (z + 2) with z = e^2x - 1 = 2^n (2^r - 1) + (2^n - 1), accurate near 0 as well.
// Beyond |x| = 32 it is +-1 in both precisions, and e^2x stays finite.
template <class Real>
inline Vec<Real> tanh(Vec<Real> x) {
    using S = Simd<Real>;
    const Vec<Real> far = S::set1(32), minus_far = S::set1(-32);
    x = S::select(S::greater(x, far), far, S::max(minus_far, x));
    Vec<Real> r, tail, power;
    split_exp2<Real>(S::mul(x, S::set1(Real(2 * kLog2e))), r, tail, power);
    const Vec<Real> z = S::fma(S::mul(tail, r), power, S::sub(power, S::set1(1)));
    return S::div(z, S::add(z, S::set1(2)));
}

template <class Real>
inline Vec<Real> load_contiguous(const void* data, DType dtype, int64_t at, int64_t n) {
    using S = Simd<Real>;
    if constexpr (sizeof(Real) == 4) {
        if (dtype == DType::f16) return S::load_half(static_cast<const uint16_t*>(data) + at, n);
        if (dtype == DType::bf16) return S::load_bfloat(static_cast<const uint16_t*>(data) + at, n);
    }
    return S::load(static_cast<const Real*>(data) + at, n);
}

// Elements (i, j), (i, j + 1), ... of a matrix as a vector; lanes from n on are 0.
template <class Real>
inline Vec<Real> load_row(const Matrix& m, int64_t i, int64_t j, int64_t n) {
    using S = Simd<Real>;
    const int64_t at = i * m.row + j * m.col;
    if (m.col == 1) return load_contiguous<Real>(m.data, m.dtype, at, n);
    Real piece[S::kLanes] = {};
    for (int64_t lane = 0; lane < n && lane < S::kLanes; ++lane) {
        S::store(piece + lane, 1, load_contiguous<Real>(m.data, m.dtype, at + lane * m.col, 1));
    }
    return S::load(piece);
}

template <class Real>
inline void store_row(const Matrix& m, int64_t i, int64_t j, int64_t n, Vec<Real> x) {
    using S = Simd<Real>;
    const int64_t at = i * m.row + j;
    void* data = const_cast<void*>(m.data);
    if constexpr (sizeof(Real) == 4) {
        if (m.dtype == DType::f16) return S::store_half(static_cast<uint16_t*>(data) + at, n, x);
        if (m.dtype == DType::bf16) return S::store_bfloat(static_cast<uint16_t*>(data) + at, n, x);
    }
    S::store(static_cast<Real*>(data) + at, n, x);
}

// panel[j][i] = factor * m[i][j] for i < rows, j < cols; lanes from `rows` on are 0.
template <class Real>
inline void transpose_in(const Matrix& m, int64_t rows, int64_t cols, Real factor, Real* panel) {
    using S = Simd<Real>;
    constexpr int L = S::kLanes;
    for (int64_t i = 0; i < rows; i += L) {
        for (int64_t j = 0; j < cols; j += L) {
            Vec<Real> square[L];
            for (int r = 0; r < L; ++r) {
                square[r] = i + r < rows ? load_row<Real>(m, i + r, j, cols - j) : S::set1(0);
            }
            S::transpose(square);
            for (int r = 0; r < L && j + r < cols; ++r) {
                S::store(panel + (j + r) * kPanel + i, S::mul(square[r], S::set1(factor)));
            }
        }
    }
}

// m[i][j] = factor[i] * panel[j][i] for i < rows, j < cols, rounded to m's dtype; m.col is 1.
template <class Real>
inline void transpose_out(const Real* panel, int64_t rows, int64_t cols, const Real* factor,
                          const Matrix& m) {
    using S = Simd<Real>;
    constexpr int L = S::kLanes;
    for (int64_t i = 0; i < rows; i += L) {
        const Vec<Real> f = S::load(factor + i);
        for (int64_t j = 0; j < cols; j += L) {
            Vec<Real> square[L];
            for (int r = 0; r < L; ++r) {
                square[r] =
                    j + r < cols ? S::mul(S::load(panel + (j + r) * kPanel + i), f) : S::set1(0);
            }
            S::transpose(square);
            for (int r = 0; r < L && i + r < rows; ++r) {
                store_row<Real>(m, i + r, j, cols - j, square[r]);
            }
        }
    }
}

template <class Real>
void lay_out_bias(const Matrix& bias, bool swapped, int64_t lanes, int64_t count, void* out,
                  uint64_t* visible) {
    using S = Simd<Real>;
    constexpr Real kMost = sizeof(Real) == 4 ? Real(0x1.fffffep127) : Real(0x1.fffffffffffffp1023);
    Real* tile = static_cast<Real*>(out);
    if (!swapped) {
        transpose_in<Real>(bias, lanes, count, 1, tile);
    }
    const Vec<Real> lowest = S::set1(-__builtin_inff()), highest = S::set1(__builtin_inff());
    const Vec<Real> least = S::set1(-kMost), most = S::set1(kMost);
    for (int64_t j = 0; j < count; ++j) {
        for (int64_t i = 0; i < lanes; i += S::kLanes) {
            const Vec<Real> x =
                swapped ? load_row<Real>(bias, j, i, lanes - i) : S::load(tile + j * kPanel + i);
            const auto hides = S::equal(x, lowest);
            visible[j] &= ~(S::to_bits(hides) << i);
            Vec<Real> y = S::max(least, S::mul(x, S::set1(Real(kLog2e))));
            y = S::select(S::greater(y, most), most, y);
            y = S::select(S::equal(x, highest), highest, y);
            S::store(tile + j * kPanel + i, y);
        }
    }
}

// Where a matrix holds Real, the tile reads it in place, whatever its strides. Otherwise `count`
// rows from `begin` on are converted into `scratch`, once per block.
template <class Real>
struct Source {
    const Real* data;
    int64_t row, col;
};

template <class Real>
inline Source<Real> source(const Matrix& m, int64_t begin, int64_t count, int64_t cols,
                           Real* scratch) {
    using S = Simd<Real>;
    if (m.dtype == (sizeof(Real) == 4 ? DType::f32 : DType::f64)) {
        return {static_cast<const Real*>(m.data) + begin * m.row, m.row, m.col};
    }
    for (int64_t i = 0; i < count; ++i) {
        for (int64_t j = 0; j < cols; j += S::kLanes) {
            S::store(scratch + i * cols + j, cols - j, load_row<Real>(m, begin + i, j, cols - j));
        }
    }
    return {scratch, cols, 1};
}

// Calls f(column, number of vectors as a constant) until the rows [begin, end) of the panel are
// covered; `begin` is a multiple of the lanes.
template <class Real, class F>
inline void for_columns(int64_t begin, int64_t end, F f) {
    constexpr int L = Simd<Real>::kLanes, W = Simd<Real>::kTileVecs;
    static_assert(W == 2 || W == 4);
    for (int64_t column = begin; column < end; column += W * L) {
        const int64_t left = (end - column + L - 1) / L;
        if (left >= W) {
            f.template operator()<W>(column);
            continue;
        }
        if constexpr (W > 2) {
            if (left == 3) f.template operator()<3>(column);
            if (left == 2) f.template operator()<2>(column);
        }
        if (left == 1) f.template operator()<1>(column);
    }
}

template <class Real, class F>
inline void for_columns(int64_t rows, F f) {
    for_columns<Real>(0, rows, f);
}

// Calls f(row, number of rows as a constant) for `count` rows, as many as a tile has at a time.
// What is left goes by 4, 2 and 1: single rows have too few sums at once to keep the multipliers
// busy.
template <class Real, class F>
inline void for_rows(int64_t count, F f) {
    constexpr int Rows = Simd<Real>::kTileRows;
    int64_t row = 0;
    for (; row + Rows <= count; row += Rows) f.template operator()<Rows>(row);
    if constexpr (Rows > 4) {
        for (; row + 4 <= count; row += 4) f.template operator()<4>(row);
    }
    if constexpr (Rows > 2) {
        for (; row + 2 <= count; row += 2) f.template operator()<2>(row);
    }
    for (; row < count; ++row) f.template operator()<1>(row);
}

// Rows [from, to) of a block and the lanes [begin, end), from a whole vector on, outside of which
// none sees any of them.
struct Stretch {
    int64_t from, to, begin, end;
};

// Cuts a block into stretches: along a diagonal half of the pairs are hidden, and these steps leave
// out most of them.
template <class Real, class F>
inline void for_stretches(const Block& block, int64_t lanes, F f) {
    constexpr int64_t kStep = 16;
    constexpr int L = Simd<Real>::kLanes;
    if (!block.visible) return f(Stretch{0, block.count, 0, lanes});
    const auto step = [&](int64_t from) {
        const int64_t to = from + kStep < block.count ? from + kStep : block.count;
        uint64_t seen = 0;
        for (int64_t i = from; i < to; ++i) seen |= block.visible[i];
        const int64_t begin = seen ? __builtin_ctzll(seen) / L * L : 0;
        const int64_t end = seen ? (64 - __builtin_clzll(seen) + L - 1) / L * L : 0;
        return Stretch{from, to, begin, end < lanes ? end : lanes};
    };
    for (Stretch now = step(0); now.from < block.count;) {
        Stretch next = {block.count, block.count, 0, 0};
        while (now.to < block.count) {
            next = step(now.to);
            if (next.begin != now.begin || next.end != now.end) break;
            now.to = next.to;
            next.from = next.to;
        }
        f(now);
        now = next;
    }
}

// sums[c, lanes] += sum over the block's rows i of rows[i, c] * p[i, lanes]. The block is summed on
// its own and then added, so that rounding grows with the number of blocks, not of rows.
template <class Real, int Columns, int Vecs>
void mix_tile(const Source<Real>& rows, int64_t count, int64_t c, const Real* p, Real* sums) {
    using S = Simd<Real>;
    Vec<Real> sum[Columns][Vecs];
    clear<Real>(sum);
    multiply<Real, Columns, Vecs>(rows.data + c * rows.col, rows.col, rows.row, count, p, sum);
#pragma GCC unroll 8
    for (int i = 0; i < Columns; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < Vecs; ++j) {
            Real* out = sums + (c + i) * kPanel + j * S::kLanes;
            S::store(out, S::add(S::load(out), sum[i][j]));
        }
    }
}

template <class Real, int Vecs>
void mix_columns(const Source<Real>& rows, int64_t count, int64_t columns, const Real* p,
                 Real* sums) {
    for_rows<Real>(columns, [&]<int Columns>(int64_t c) {
        mix_tile<Real, Columns, Vecs>(rows, count, c, p, sums);
    });
}

template <class Real>
bool all_finite(const Source<Real>& rows, int64_t count, int64_t columns) {
    using S = Simd<Real>;
    constexpr int L = S::kLanes, kAtOnce = 4;  // sums, so that none waits for its last addition
    const Matrix m = {rows.data, rows.row, rows.col, sizeof(Real) == 4 ? DType::f32 : DType::f64};
    const Vec<Real> zero = S::set1(0);
    Vec<Real> sum[kAtOnce] = {zero, zero, zero, zero};
    for (int64_t i = 0; i < count; i += kAtOnce) {
        for (int64_t c = 0; c < columns; c += L) {
            const bool whole = rows.col == 1 && c + L <= columns;
#pragma GCC unroll 4
            for (int j = 0; j < kAtOnce; ++j) {
                const int64_t row = i + j < count ? i + j : i;
                const Vec<Real> x = whole ? S::load(rows.data + row * rows.row + c)
                                          : load_row<Real>(m, row, c, columns - c);
                sum[j] = S::fma(x, zero, sum[j]);
            }
        }
    }
    return S::all(S::equal(S::add(S::add(sum[0], sum[1]), S::add(sum[2], sum[3])), zero));
}

// The same sums where some lanes must not see some rows: 0 * x is not 0 if x is NaN or infinite.
template <class Real>
void mix_visible(const Source<Real>& rows, const Block& block, int64_t columns, int64_t begin,
                 int64_t end, const Real* p, Real* sums) {
    using S = Simd<Real>;
    for (int64_t lane = begin; lane < end; lane += S::kLanes) {
        for (int64_t c = 0; c < columns; ++c) {
            Vec<Real> sum = S::load(sums + c * kPanel + lane);
            for (int64_t i = 0; i < block.count; ++i) {
                const Vec<Real> x = S::set1(rows.data[i * rows.row + c * rows.col]);
                const Vec<Real> more = S::fma(x, S::load(p + i * kPanel + lane), sum);
                sum = S::select(S::bits(block.visible[i] >> lane), more, sum);
            }
            S::store(sums + c * kPanel + lane, sum);
        }
    }
}

// sums[c, lanes] += sum over the block's rows, for the lanes [begin, end).
template <class Real>
void mix(const Source<Real>& rows, const Block& block, int64_t columns, int64_t begin, int64_t end,
         const Real* p, Real* sums) {
    if (block.visible && !all_finite(rows, block.count, columns)) {
        mix_visible(rows, block, columns, begin, end, p, sums);
        return;
    }
    for_columns<Real>(begin, end, [&]<int Vecs>(int64_t lane) {
        mix_columns<Real, Vecs>(rows, block.count, columns, p + lane, sums + lane);
    });
}

// Uses what a probe has added up, so that the compiler cannot leave the work out.
template <class Vector, int Rows, int Cols>
void keep(const Vector (&sum)[Rows][Cols]) {
    for (const auto& row : sum) {
        for (const Vector& x : row) {
            volatile Vector kept = x;
            (void)kept;
        }
    }
}

template <class Real>
int64_t multiply_adds(int64_t n) {
    using S = Simd<Real>;
    constexpr int R = S::kTileRows, V = S::kTileVecs;
    Vec<Real> sum[R][V];
    for (auto& row : sum) {
        for (auto& x : row) x = S::set1(1);
    }
    // Opaque to the compiler, so that it cannot work the loop out.
    volatile Real half = Real(0.5);
    const Vec<Real> a = S::set1(half), b = S::set1(half);
    for (int64_t round = 0; round < n; ++round) {
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
            for (int j = 0; j < V; ++j) sum[i][j] = S::fma(a, sum[i][j], b);
        }
    }
    keep(sum);
    return 2 * n * R * V * S::kLanes;
}

// What stands between the products, for each score: factor, reference, 2^x, sum. The results feed
// the next round, where they stay between 0 and 1.
template <class Real>
int64_t weights(int64_t n) {
    using S = Simd<Real>;
    constexpr int Vecs = 12, Sums = 4;
    Vec<Real> x[1][Vecs], sum[1][Sums];
    for (Vec<Real>& each : x[0]) each = S::set1(1);
    for (Vec<Real>& each : sum[0]) each = S::set1(0);
    volatile Real half = Real(0.5);
    const Vec<Real> factor = S::set1(half), reference = S::set1(half);
    for (int64_t round = 0; round < n; ++round) {
#pragma GCC unroll 16
        for (int j = 0; j < Vecs; ++j) {
            x[0][j] = exp2_of_any<Real>(S::sub(S::mul(x[0][j], factor), reference));
            sum[0][j % Sums] = S::add(sum[0][j % Sums], x[0][j]);
        }
    }
    keep(sum);
    return n * Vecs * S::kLanes;
}

// One stream: two, four or sixteen at once, with and without prefetch, read no faster.
template <class Real>
int64_t read_all(const void* data, int64_t bytes) {
    using S = Simd<Real>;
    constexpr int Vecs = 8;
    const Real* from = static_cast<const Real*>(data);
    const int64_t count = bytes / static_cast<int64_t>(sizeof(Real));
    Vec<Real> sum[1][Vecs];
    for (Vec<Real>& x : sum[0]) x = S::set1(0);
    int64_t done = 0;
    for (; done + Vecs * S::kLanes <= count; done += Vecs * S::kLanes) {
#pragma GCC unroll 8
        for (int j = 0; j < Vecs; ++j) {
            sum[0][j] = S::add(sum[0][j], S::load(from + done + j * S::kLanes));
        }
    }
    keep(sum);
    return done * static_cast<int64_t>(sizeof(Real));
}

}  // namespace
}  // namespace clearhead
