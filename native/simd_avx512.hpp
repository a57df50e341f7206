// AVX-512 (F, BW, DQ, VL): 16 floats or 8 doubles.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace clearhead {
namespace {

template <class Real>
struct Simd;

template <>
struct Simd<float> {
    using Vec = __m512;
    using Mask = __mmask16;
    static constexpr int kLanes = 16, kTileRows = 6, kTileVecs = 4;

    static Vec set1(float x) { return _mm512_set1_ps(x); }
    static Vec load(const float* p) { return _mm512_loadu_ps(p); }
    static Vec load(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
    static Vec load_half(const uint16_t* p, int64_t n) {
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p));
    }
    static Vec load_bfloat(const uint16_t* p, int64_t n) {
        const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(n), p));
        return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    }
    static void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
    static void store(float* p, int64_t n, Vec x) { _mm512_mask_storeu_ps(p, first(n), x); }
    static void store_half(uint16_t* p, int64_t n, Vec x) {
        _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }
    // Round to nearest even by adding just under half; a NaN only has its quiet bit set.
    static void store_bfloat(uint16_t* p, int64_t n, Vec x) {
        const __m512i u = _mm512_castps_si512(x);
        const __m512i odd = _mm512_and_epi32(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
        __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u,
                                 _mm512_set1_epi32(0x400000));
        _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
    }
    static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
    static Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
    static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
    static Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
    static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
    // The second operand where either is NaN: max(limit, x) lets a NaN in x through.
    static Vec max(Vec limit, Vec x) { return _mm512_max_ps(limit, x); }
    static Vec min(Vec limit, Vec x) { return _mm512_min_ps(limit, x); }
    static Mask greater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
    static Mask equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
    static Mask bits(uint64_t b) { return static_cast<Mask>(b); }
    static bool any(Mask m) { return m != 0; }
    static bool all(Mask m) { return m == 0xffff; }
    static uint64_t to_bits(Mask m) { return m; }
    static Mask both(Mask a, Mask b) { return a & b; }
    static Mask either(Mask a, Mask b) { return a | b; }
    static Vec select(Mask m, Vec yes, Vec no) { return _mm512_mask_blend_ps(m, no, yes); }
    // x less the nearest integer, and x 2^n for an integral n: right at infinities, saturating.
    static Vec fraction(Vec x) { return _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT); }
    static Vec scale(Vec x, Vec n) { return _mm512_scalef_ps(x, n); }
    // 2^n from the bits of n + bias: the integer sits in the low mantissa bits of `n`.
    static Vec pow2(Vec n) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(n), 23));
    }
    // In a register and then stored: compressing into memory is microcode on some CPUs.
    static int64_t compress(float* out, Mask m, Vec x) {
        _mm512_storeu_ps(out, _mm512_maskz_compress_ps(m, x));
        return __builtin_popcount(m);
    }
    static void transpose(Vec r[16]) {
        Vec t[16];
        for (int i = 0; i < 16; i += 2) {
            t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
            t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
        }
        for (int i = 0; i < 16; i += 4) {
            r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
            r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
            r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
            r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
        }
        // r[4g + c] holds rows 4g..4g+3 of columns c, c + 4, c + 8, c + 12, 128 bits each.
        for (int c = 0; c < 4; ++c) {
            const Vec a = _mm512_shuffle_f32x4(r[c], r[c + 4], 0x88);
            const Vec b = _mm512_shuffle_f32x4(r[c], r[c + 4], 0xdd);
            const Vec d = _mm512_shuffle_f32x4(r[c + 8], r[c + 12], 0x88);
            const Vec e = _mm512_shuffle_f32x4(r[c + 8], r[c + 12], 0xdd);
            t[c] = _mm512_shuffle_f32x4(a, d, 0x88);
            t[c + 8] = _mm512_shuffle_f32x4(a, d, 0xdd);
            t[c + 4] = _mm512_shuffle_f32x4(b, e, 0x88);
            t[c + 12] = _mm512_shuffle_f32x4(b, e, 0xdd);
        }
        for (int i = 0; i < 16; ++i) r[i] = t[i];
    }
    // Lane i: the lanes of x[i] folded, add or max, 16 of them in 15 steps.
    template <Vec (*Fold)(Vec, Vec)>
    static Vec fold_each(const Vec x[16]) {
        Vec z[4];
        for (int i = 0; i < 4; ++i) {
            const Vec a = halves<Fold>(x[i], x[i + 4]), b = halves<Fold>(x[i + 8], x[i + 12]);
            // x[i], x[i + 4], x[i + 8], x[i + 12], four lanes each
            z[i] = Fold(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
        }
        const Vec a = pairs<Fold>(z[0], z[1]), b = pairs<Fold>(z[2], z[3]);
        return Fold(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
    }

  private:
    // a in eight lanes, then b: each half two that are folded.
    template <Vec (*Fold)(Vec, Vec)>
    static Vec halves(Vec a, Vec b) {
        return Fold(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
    // In every four lanes two of a and two of b, each two that are folded.
    template <Vec (*Fold)(Vec, Vec)>
    static Vec pairs(Vec a, Vec b) {
        const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
        return Fold(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                    _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    static Mask first(int64_t n) { return n >= 16 ? Mask(0xffff) : Mask((1u << n) - 1); }
};

template <>
struct Simd<double> {
    using Vec = __m512d;
    using Mask = __mmask8;
    static constexpr int kLanes = 8, kTileRows = 6, kTileVecs = 4;

    static Vec set1(double x) { return _mm512_set1_pd(x); }
    static Vec load(const double* p) { return _mm512_loadu_pd(p); }
    static Vec load(const double* p, int64_t n) { return _mm512_maskz_loadu_pd(first(n), p); }
    static void store(double* p, Vec x) { _mm512_storeu_pd(p, x); }
    static void store(double* p, int64_t n, Vec x) { _mm512_mask_storeu_pd(p, first(n), x); }
    static Vec add(Vec a, Vec b) { return _mm512_add_pd(a, b); }
    static Vec sub(Vec a, Vec b) { return _mm512_sub_pd(a, b); }
    static Vec mul(Vec a, Vec b) { return _mm512_mul_pd(a, b); }
    static Vec div(Vec a, Vec b) { return _mm512_div_pd(a, b); }
    static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_pd(a, b, c); }
    static Vec max(Vec limit, Vec x) { return _mm512_max_pd(limit, x); }
    static Vec min(Vec limit, Vec x) { return _mm512_min_pd(limit, x); }
    static Mask greater(Vec a, Vec b) { return _mm512_cmp_pd_mask(a, b, _CMP_GT_OQ); }
    static Mask equal(Vec a, Vec b) { return _mm512_cmp_pd_mask(a, b, _CMP_EQ_OQ); }
    static Mask bits(uint64_t b) { return static_cast<Mask>(b); }
    static bool any(Mask m) { return m != 0; }
    static bool all(Mask m) { return m == 0xff; }
    static uint64_t to_bits(Mask m) { return m; }
    static Mask both(Mask a, Mask b) { return a & b; }
    static Mask either(Mask a, Mask b) { return a | b; }
    static Vec select(Mask m, Vec yes, Vec no) { return _mm512_mask_blend_pd(m, no, yes); }
    static Vec fraction(Vec x) { return _mm512_reduce_pd(x, _MM_FROUND_TO_NEAREST_INT); }
    static Vec scale(Vec x, Vec n) { return _mm512_scalef_pd(x, n); }
    static Vec pow2(Vec n) {
        return _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_castpd_si512(n), 52));
    }
    static int64_t compress(double* out, Mask m, Vec x) {
        _mm512_storeu_pd(out, _mm512_maskz_compress_pd(m, x));
        return __builtin_popcount(m);
    }
    static void transpose(Vec r[8]) {
        Vec t[8];
        for (int i = 0; i < 8; i += 2) {
            t[i] = _mm512_unpacklo_pd(r[i], r[i + 1]);
            t[i + 1] = _mm512_unpackhi_pd(r[i], r[i + 1]);
        }
        // t[2g + c] holds rows 2g, 2g + 1 of columns c, c + 2, c + 4, c + 6, 128 bits each.
        for (int c = 0; c < 2; ++c) {
            const Vec a = _mm512_shuffle_f64x2(t[c], t[c + 2], 0x88);
            const Vec b = _mm512_shuffle_f64x2(t[c], t[c + 2], 0xdd);
            const Vec d = _mm512_shuffle_f64x2(t[c + 4], t[c + 6], 0x88);
            const Vec e = _mm512_shuffle_f64x2(t[c + 4], t[c + 6], 0xdd);
            r[c] = _mm512_shuffle_f64x2(a, d, 0x88);
            r[c + 4] = _mm512_shuffle_f64x2(a, d, 0xdd);
            r[c + 2] = _mm512_shuffle_f64x2(b, e, 0x88);
            r[c + 6] = _mm512_shuffle_f64x2(b, e, 0xdd);
        }
    }

    template <Vec (*Fold)(Vec, Vec)>
    static Vec fold_each(const Vec x[8]) {
        Vec z[2];
        for (int i = 0; i < 2; ++i) {
            const Vec a = halves<Fold>(x[i], x[i + 2]), b = halves<Fold>(x[i + 4], x[i + 6]);
            z[i] = Fold(_mm512_shuffle_f64x2(a, b, 0x88), _mm512_shuffle_f64x2(a, b, 0xdd));
        }
        return Fold(_mm512_unpacklo_pd(z[0], z[1]), _mm512_unpackhi_pd(z[0], z[1]));
    }

  private:
    template <Vec (*Fold)(Vec, Vec)>
    static Vec halves(Vec a, Vec b) {
        return Fold(_mm512_shuffle_f64x2(a, b, 0x44), _mm512_shuffle_f64x2(a, b, 0xee));
    }
    static Mask first(int64_t n) { return n >= 8 ? Mask(0xff) : Mask((1u << n) - 1); }
};

}  // namespace
}  // namespace clearhead
