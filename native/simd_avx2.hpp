// AVX2 with FMA and F16C: 8 floats or 4 doubles. A mask is a vector of all-ones lanes.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace clearhead {
namespace {

template <class Real>
struct Simd;

template <>
struct Simd<float> {
    using Vec = __m256;
    using Mask = __m256;
    static constexpr int kLanes = 8, kTileRows = 6, kTileVecs = 2;

    static Vec set1(float x) { return _mm256_set1_ps(x); }
    static Vec load(const float* p) { return _mm256_loadu_ps(p); }
    static Vec load(const float* p, int64_t n) { return _mm256_maskload_ps(p, first(n)); }
    static Vec load_half(const uint16_t* p, int64_t n) { return _mm256_cvtph_ps(load_16(p, n)); }
    static Vec load_bfloat(const uint16_t* p, int64_t n) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(p, n)), 16));
    }
    static void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
    static void store(float* p, int64_t n, Vec x) { _mm256_maskstore_ps(p, first(n), x); }
    static void store_half(uint16_t* p, int64_t n, Vec x) {
        store_16(p, n, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }
    // Round to nearest even by adding just under half; a NaN only has its quiet bit set.
    static void store_bfloat(uint16_t* p, int64_t n, Vec x) {
        const __m256i u = _mm256_castps_si256(x);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
        const __m256i rounded =
            _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        const __m256i r = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
        store_16(p, n, _mm256_castsi256_si128(packed));
    }
    static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
    static Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
    static Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
    static Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
    static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
    static Vec max(Vec limit, Vec x) { return _mm256_max_ps(limit, x); }
    static Vec min(Vec limit, Vec x) { return _mm256_min_ps(limit, x); }
    static Mask greater(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
    static Mask equal(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
    static Mask bits(uint64_t b) {
        const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        const __m256i own = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(b & 0xff)), lane);
        return _mm256_castsi256_ps(_mm256_cmpeq_epi32(own, lane));
    }
    static bool any(Mask m) { return _mm256_movemask_ps(m) != 0; }
    static bool all(Mask m) { return _mm256_movemask_ps(m) == 0xff; }
    static uint64_t to_bits(Mask m) { return static_cast<uint64_t>(_mm256_movemask_ps(m)); }
    static Mask both(Mask a, Mask b) { return _mm256_and_ps(a, b); }
    static Mask either(Mask a, Mask b) { return _mm256_or_ps(a, b); }
    static Vec select(Mask m, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, m); }
    static Vec pow2(Vec n) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(n), 23));
    }
    static int64_t compress(float* out, Mask m, Vec x) {
        alignas(32) float lane[8];
        _mm256_store_ps(lane, x);
        int64_t count = 0;
        for (int left = _mm256_movemask_ps(m); left; left &= left - 1) {
            out[count++] = lane[__builtin_ctz(left)];
        }
        return count;
    }
    static void transpose(Vec r[8]) {
        Vec t[8];
        for (int i = 0; i < 8; i += 2) {
            t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
            t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
        }
        for (int i = 0; i < 8; i += 4) {
            r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
            r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
            r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
            r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
        }
        for (int i = 0; i < 4; ++i) {
            t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
            t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
        }
        for (int i = 0; i < 8; ++i) r[i] = t[i];
    }
    // Lane i: the lanes of x[i] folded, add or max.
    template <Vec (*Fold)(Vec, Vec)>
    static Vec fold_each(const Vec x[8]) {
        Vec y[4];  // x[i] and x[i + 4], four lanes each
        for (int i = 0; i < 4; ++i) {
            y[i] = Fold(_mm256_permute2f128_ps(x[i], x[i + 4], 0x20),
                        _mm256_permute2f128_ps(x[i], x[i + 4], 0x31));
        }
        return neighbours<Fold>(neighbours<Fold>(y[0], y[1]), neighbours<Fold>(y[2], y[3]));
    }

  private:
    // Lanes 2i and 2i + 1 of a, then of b, in each half.
    template <Vec (*Fold)(Vec, Vec)>
    static Vec neighbours(Vec a, Vec b) {
        return Fold(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
    }
    static __m128i load_16(const uint16_t* p, int64_t n) {
        if (n >= 8) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        alignas(16) uint16_t piece[8] = {};
        for (int64_t i = 0; i < n; ++i) piece[i] = p[i];
        return _mm_load_si128(reinterpret_cast<const __m128i*>(piece));
    }
    static void store_16(uint16_t* p, int64_t n, __m128i x) {
        if (n >= 8) return _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x);
        alignas(16) uint16_t piece[8];
        _mm_store_si128(reinterpret_cast<__m128i*>(piece), x);
        for (int64_t i = 0; i < n; ++i) p[i] = piece[i];
    }
    static __m256i first(int64_t n) {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n < 8 ? n : 8)), lane);
    }
};

template <>
struct Simd<double> {
    using Vec = __m256d;
    using Mask = __m256d;
    static constexpr int kLanes = 4, kTileRows = 6, kTileVecs = 2;

    static Vec set1(double x) { return _mm256_set1_pd(x); }
    static Vec load(const double* p) { return _mm256_loadu_pd(p); }
    static Vec load(const double* p, int64_t n) { return _mm256_maskload_pd(p, first(n)); }
    static void store(double* p, Vec x) { _mm256_storeu_pd(p, x); }
    static void store(double* p, int64_t n, Vec x) { _mm256_maskstore_pd(p, first(n), x); }
    static Vec add(Vec a, Vec b) { return _mm256_add_pd(a, b); }
    static Vec sub(Vec a, Vec b) { return _mm256_sub_pd(a, b); }
    static Vec mul(Vec a, Vec b) { return _mm256_mul_pd(a, b); }
    static Vec div(Vec a, Vec b) { return _mm256_div_pd(a, b); }
    static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_pd(a, b, c); }
    static Vec max(Vec limit, Vec x) { return _mm256_max_pd(limit, x); }
    static Vec min(Vec limit, Vec x) { return _mm256_min_pd(limit, x); }
    static Mask greater(Vec a, Vec b) { return _mm256_cmp_pd(a, b, _CMP_GT_OQ); }
    static Mask equal(Vec a, Vec b) { return _mm256_cmp_pd(a, b, _CMP_EQ_OQ); }
    static Mask bits(uint64_t b) {
        const __m256i lane = _mm256_setr_epi64x(1, 2, 4, 8);
        const __m256i all = _mm256_set1_epi64x(static_cast<int64_t>(b & 0xf));
        return _mm256_castsi256_pd(_mm256_cmpeq_epi64(_mm256_and_si256(all, lane), lane));
    }
    static bool any(Mask m) { return _mm256_movemask_pd(m) != 0; }
    static bool all(Mask m) { return _mm256_movemask_pd(m) == 0xf; }
    static uint64_t to_bits(Mask m) { return static_cast<uint64_t>(_mm256_movemask_pd(m)); }
    static Mask both(Mask a, Mask b) { return _mm256_and_pd(a, b); }
    static Mask either(Mask a, Mask b) { return _mm256_or_pd(a, b); }
    static Vec select(Mask m, Vec yes, Vec no) { return _mm256_blendv_pd(no, yes, m); }
    static Vec pow2(Vec n) {
        return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(n), 52));
    }
    static int64_t compress(double* out, Mask m, Vec x) {
        alignas(32) double lane[4];
        _mm256_store_pd(lane, x);
        int64_t count = 0;
        for (int left = _mm256_movemask_pd(m); left; left &= left - 1) {
            out[count++] = lane[__builtin_ctz(left)];
        }
        return count;
    }
    static void transpose(Vec r[4]) {
        const Vec a = _mm256_unpacklo_pd(r[0], r[1]), b = _mm256_unpackhi_pd(r[0], r[1]);
        const Vec c = _mm256_unpacklo_pd(r[2], r[3]), d = _mm256_unpackhi_pd(r[2], r[3]);
        r[0] = _mm256_permute2f128_pd(a, c, 0x20);
        r[1] = _mm256_permute2f128_pd(b, d, 0x20);
        r[2] = _mm256_permute2f128_pd(a, c, 0x31);
        r[3] = _mm256_permute2f128_pd(b, d, 0x31);
    }
    template <Vec (*Fold)(Vec, Vec)>
    static Vec fold_each(const Vec x[4]) {
        const Vec a = Fold(_mm256_unpacklo_pd(x[0], x[1]), _mm256_unpackhi_pd(x[0], x[1]));
        const Vec b = Fold(_mm256_unpacklo_pd(x[2], x[3]), _mm256_unpackhi_pd(x[2], x[3]));
        return Fold(_mm256_permute2f128_pd(a, b, 0x20), _mm256_permute2f128_pd(a, b, 0x31));
    }

  private:
    static __m256i first(int64_t n) {
        const __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3);
        return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), lane);
    }
};

}  // namespace
}  // namespace clearhead
