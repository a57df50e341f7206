// Vectors of 32 bfloat16, or 16 pairs of them; numbers and weights that become such, or sums of
// such: what a unit for dot-product instructions needs beside simd_avx512.hpp.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "dots.hpp"
#include "tile.inl.hpp"

namespace clearhead {
namespace {

struct Pairs {
    using Vec = __m512i;
    using Floats = __m512;

    static void store(void* p, Vec x) { _mm512_storeu_si512(p, x); }

    // Elements j, j + 1, ... of row i; from n on, and beyond 32, they are 0.
    static Vec load_row(const Matrix& m, int64_t i, int64_t j, int64_t n) {
        const uint16_t* from = static_cast<const uint16_t*>(m.data) + i * m.row + j * m.col;
        if (m.col == 1) return _mm512_maskz_loadu_epi16(first(n), from);
        alignas(64) uint16_t piece[32] = {};
        for (int64_t lane = 0; lane < n && lane < 32; ++lane) piece[lane] = from[lane * m.col];
        return _mm512_load_si512(piece);
    }
    // The first halves of two rows of 32 as 16 pairs.
    static Vec interleave(Vec a, Vec b) {
        const Vec low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(a));
        const Vec high = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(b));
        return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    }
    static Floats even(Vec x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
    static Floats odd(Vec x) {
        return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(int(0xffff0000))));
    }
    static Floats add_squares(Floats sum, Vec x) {
        return _mm512_fmadd_ps(odd(x), odd(x), _mm512_fmadd_ps(even(x), even(x), sum));
    }
    static float sum(Floats x) { return _mm512_reduce_add_ps(x); }
    static Vec none() { return _mm512_setzero_si512(); }
    // The larger magnitude of each; the bits of a bfloat16 without its sign are in their order.
    static Vec larger(Vec a, Vec x) {
        return _mm512_max_epu16(a, _mm512_and_si512(x, _mm512_set1_epi16(0x7fff)));
    }
    // A NaN counts as infinite.
    static float largest(Vec magnitudes) {
        alignas(64) uint16_t all[32];
        _mm512_store_si512(all, magnitudes);
        uint32_t most = 0;
        for (const uint16_t x : all) most = x > most ? x : most;
        return __builtin_bit_cast(float, (most < 0x7f80 ? most : 0x7f80) << 16);
    }

    // 16 pairs of which `even` and `odd` hold the halves, each in the upper half of its lanes.
    static Vec join(Vec even, Vec odd) {
        return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(even, 16), odd);
    }
    // x as a sum of N bfloat16, each the nearest to what those before it leave, in the upper half
    // of its lanes. Three hold any float of at least 2^-110, two any float16.
    template <int N>
    static void split(Floats x, Vec (&part)[N]) {
        for (Vec& p : part) x = leave(x, p = add_half(x));
    }
    // The same of a weight, which is not negative: its first part is cut off, which is quicker.
    // What follows is rounded, or the sum of products would lose a little of every weight.
    static void split_weight(Floats x, Vec (&part)[3]) {
        const Floats rest = leave(x, part[0] = _mm512_castps_si512(x));
        part[2] = _mm512_castps_si512(leave(rest, part[1] = add_half(rest)));
    }
    static void split_weight(Floats x, Vec (&part)[1]) { split(x, part); }
    static void split_weight(Floats x, Vec (&part)[2]) {
        part[1] = add_half(leave(x, part[0] = _mm512_castps_si512(x)));
    }

  private:
    static Vec add_half(Floats x) {
        return _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    }
    static Floats leave(Floats x, Vec part) { return _mm512_sub_ps(x, odd(part)); }
    static __mmask32 first(int64_t n) { return n >= 32 ? ~__mmask32{0} : (__mmask32{1} << n) - 1; }
};

// How the numbers of a dtype become bfloat16: each as itself.
struct Whole {
    static constexpr int kParts = 1;
    using Vec = Pairs::Vec;

    // Elements j, j + 1, ... of row i, 32 in all, those from n on 0; adds their squares.
    static void row(const Matrix& m, int64_t i, int64_t j, int64_t n, Vec (&out)[1],
                    Pairs::Floats& squares) {
        out[0] = Pairs::load_row(m, i, j, n);
        squares = Pairs::add_squares(squares, out[0]);
    }
    // Elements j, ..., 16 in all, of rows a and b in pairs; `count` rows are there.
    static void two_rows(const Matrix& m, int64_t a, int64_t b, int64_t count, int64_t j, int64_t n,
                         Vec (&out)[1], Vec& most) {
        const auto row = [&](int64_t r) {
            const Vec x = r < count ? Pairs::load_row(m, r, j, n) : Pairs::none();
            most = Pairs::larger(most, x);
            return x;
        };
        const Vec even = row(a), odd = row(b);
        out[0] = Pairs::interleave(even, odd);
    }
    static float largest(Vec most) { return Pairs::largest(most); }
};

// Or as a sum of N. In pairs along a row, element j goes with j + 16.
template <int N>
struct Sum {
    static constexpr int kParts = N;
    using Vec = Pairs::Vec;

    static void row(const Matrix& m, int64_t i, int64_t j, int64_t n, Vec (&out)[N],
                    Pairs::Floats& squares) {
        const auto load = [&](int64_t from) {
            const Pairs::Floats x =
                from < n ? load_row<float>(m, i, j + from, n - from) : _mm512_setzero_ps();
            squares = _mm512_fmadd_ps(x, x, squares);
            return x;
        };
        const Pairs::Floats first = load(0), second = load(kTile);
        join(first, second, out);
    }
    static void two_rows(const Matrix& m, int64_t a, int64_t b, int64_t count, int64_t j, int64_t n,
                         Vec (&out)[N], Vec& most) {
        const auto load = [&](int64_t r) {
            const Pairs::Floats x = r < count ? load_row<float>(m, r, j, n) : _mm512_setzero_ps();
            most = larger(most, x);
            return x;
        };
        const Pairs::Floats even = load(a), odd = load(b);
        join(even, odd, out);
    }
    // The larger magnitude of each, as bits, which are in its order.
    static Vec larger(Vec a, Pairs::Floats x) {
        const Vec magnitude =
            _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
        return _mm512_max_epi32(a, magnitude);
    }
    static float largest(Vec most) {
        constexpr int kInfinity = 0x7f800000;
        const int bits = _mm512_reduce_max_epi32(most);
        return __builtin_bit_cast(float, bits < kInfinity ? bits : kInfinity);
    }

  private:
    static void join(Pairs::Floats even, Pairs::Floats odd, Vec (&out)[N]) {
        Vec a[N], b[N];
        Pairs::split(even, a);
        Pairs::split(odd, b);
        for (int part = 0; part < N; ++part) out[part] = Pairs::join(a[part], b[part]);
    }
};

// 2^x = 2^n 2^r with n = floor(x) and r in [0, 1): 2^r by a polynomial of least largest error
// (1.3e-7), with 2^0 exactly 1; with the roundings of its evaluation within 1.8 units in the last
// place of a float (tests/test_dots.py).
// Both instructions split x at the same integer, give 0 for -inf and very negative x, inf where 2^x
// is, and NaN for NaN.
//
// N of them at a time, step by step: one alone is a chain of 40 cycles, and the processor does not
// look far enough ahead to keep busy with what follows.
template <int N>
struct Weights {
    using Floats = Pairs::Floats;
    Floats x[N], r[N], tail[N];

    // What the scores at s[0], s[16], ... give: s * factor - shift.
    inline __attribute__((always_inline)) Weights(const float* s, Floats factor, Floats shift) {
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) {
            x[i] = _mm512_fmsub_ps(_mm512_loadu_ps(s + i * kTile), factor, shift);
        }
        raise();
    }
    // What these give.
    explicit inline __attribute__((always_inline)) Weights(const Floats (&given)[N]) {
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) x[i] = given[i];
        raise();
    }
    Floats exact(int i, __mmask16 seen) const {
        return _mm512_maskz_scalef_ps(seen, _mm512_fmadd_ps(tail[i], r[i], _mm512_set1_ps(1)),
                                      x[i]);
    }
    // Half of the last bit of a bfloat16 in [1, 2) is added to 2^r: cut off behind that bit, the
    // weight is rounded to the nearest.
    Floats to_be_cut(int i, __mmask16 seen) const {
        const Floats y = _mm512_fmadd_ps(tail[i], r[i], _mm512_set1_ps(1 + 0x1p-8f));
        return _mm512_maskz_scalef_ps(seen, y, x[i]);
    }
    static Pairs::Vec pair(Floats even, Floats odd) {
        return Pairs::join(_mm512_castps_si512(even), _mm512_castps_si512(odd));
    }

  private:
    inline __attribute__((always_inline)) void raise() {
        constexpr int kFloor = 9;
        constexpr float c[] = {0.0018852976f, 0.008973375f, 0.055835906f, 0.2401528f, 0.6931525f};
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) r[i] = _mm512_reduce_ps(x[i], kFloor);
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) {
            tail[i] = _mm512_fmadd_ps(_mm512_set1_ps(c[0]), r[i], _mm512_set1_ps(c[1]));
        }
#pragma GCC unroll 8
        for (int k = 2; k < 5; ++k) {
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) {
                tail[i] = _mm512_fmadd_ps(tail[i], r[i], _mm512_set1_ps(c[k]));
            }
        }
    }
};

}  // namespace
}  // namespace clearhead
