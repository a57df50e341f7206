// Vectors of 32 bfloat16, or 16 pairs of them, and weights that become such: what a unit for
// dot-product instructions needs beside simd_avx512.hpp.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "dots.hpp"

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

  private:
    static __mmask32 first(int64_t n) { return n >= 32 ? ~__mmask32{0} : (__mmask32{1} << n) - 1; }
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
        constexpr int kFloor = 9;
        constexpr float c[] = {0.0018852976f, 0.008973375f, 0.055835906f, 0.2401528f, 0.6931525f};
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) {
            x[i] = _mm512_fmsub_ps(_mm512_loadu_ps(s + i * kTile), factor, shift);
        }
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
        const Pairs::Vec low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
        return _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_castps_si512(odd));
    }
};

}  // namespace
}  // namespace clearhead
