// What every algorithm here is made of: the register tile, 2^x, and rows in and out of a panel.
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

}  // namespace
}  // namespace clearhead
