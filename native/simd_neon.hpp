// NEON of 64-bit Arm: 4 floats or 2 doubles, 32 registers. A mask is a vector of all-ones lanes.
#pragma once
#include <arm_neon.h>

#include <cstdint>

namespace clearhead {
namespace {

template <class Real>
struct Simd;

template <>
struct Simd<float> {
    using Vec = float32x4_t;
    using Mask = uint32x4_t;
    static constexpr int kLanes = 4, kTileRows = 6, kTileVecs = 4;

    static Vec set1(float x) { return vdupq_n_f32(x); }
    static Vec load(const float* p) { return vld1q_f32(p); }
    static Vec load(const float* p, int64_t n) {
        if (n >= kLanes) return load(p);
        float piece[kLanes] = {};
        for (int64_t i = 0; i < n; ++i) piece[i] = p[i];
        return load(piece);
    }
    static Vec load_half(const uint16_t* p, int64_t n) {
        return vcvt_f32_f16(vreinterpret_f16_u16(load_16(p, n)));
    }
    static Vec load_bfloat(const uint16_t* p, int64_t n) {
        return vreinterpretq_f32_u32(vshll_n_u16(load_16(p, n), 16));
    }
    static void store(float* p, Vec x) { vst1q_f32(p, x); }
    static void store(float* p, int64_t n, Vec x) {
        if (n >= kLanes) return store(p, x);
        float piece[kLanes];
        store(piece, x);
        for (int64_t i = 0; i < n; ++i) p[i] = piece[i];
    }
    static void store_half(uint16_t* p, int64_t n, Vec x) {
        store_16(p, n, vreinterpret_u16_f16(vcvt_f16_f32(x)));
    }
    // Round to nearest even by adding just under half; a NaN only has its quiet bit set.
    static void store_bfloat(uint16_t* p, int64_t n, Vec x) {
        const uint32x4_t u = vreinterpretq_u32_f32(x);
        const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
        const uint32x4_t rounded = vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
        const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
        const uint32x4_t number = vceqq_f32(x, x);
        store_16(p, n, vshrn_n_u32(vbslq_u32(number, rounded, quiet), 16));
    }
    static Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
    static Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
    static Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
    static Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
    static Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
    // Not vmaxq, which gives NaN where either is one: the second operand is wanted then.
    static Vec max(Vec limit, Vec x) { return vbslq_f32(vcgtq_f32(limit, x), limit, x); }
    static Vec min(Vec limit, Vec x) { return vbslq_f32(vcltq_f32(limit, x), limit, x); }
    static Mask greater(Vec a, Vec b) { return vcgtq_f32(a, b); }
    static Mask equal(Vec a, Vec b) { return vceqq_f32(a, b); }
    static Mask bits(uint64_t b) {
        return vtstq_u32(vdupq_n_u32(static_cast<uint32_t>(b)), lane_bit());
    }
    static bool any(Mask m) { return vmaxvq_u32(m) != 0; }
    static bool all(Mask m) { return vminvq_u32(m) != 0; }
    static uint64_t to_bits(Mask m) { return vaddvq_u32(vandq_u32(m, lane_bit())); }
    static Mask both(Mask a, Mask b) { return vandq_u32(a, b); }
    static Mask either(Mask a, Mask b) { return vorrq_u32(a, b); }
    static Vec select(Mask m, Vec yes, Vec no) { return vbslq_f32(m, yes, no); }
    static Vec pow2(Vec n) {
        return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(n), 23));
    }
    static int64_t compress(float* out, Mask m, Vec x) {
        float lane[kLanes];
        store(lane, x);
        int64_t count = 0;
        for (uint64_t left = to_bits(m); left; left &= left - 1) {
            out[count++] = lane[__builtin_ctzll(left)];
        }
        return count;
    }
    static void transpose(Vec r[4]) {
        const float32x4x2_t a = vtrnq_f32(r[0], r[1]), b = vtrnq_f32(r[2], r[3]);
        r[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
        r[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
        r[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
        r[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
    }
    // Lane i: the lanes of x[i] folded, add or max.
    template <Vec (*Fold)(Vec, Vec)>
    static Vec fold_each(const Vec x[4]) {
        return neighbours<Fold>(neighbours<Fold>(x[0], x[1]), neighbours<Fold>(x[2], x[3]));
    }

  private:
    template <Vec (*Fold)(Vec, Vec)>
    static Vec neighbours(Vec a, Vec b) {
        return Fold(vuzp1q_f32(a, b), vuzp2q_f32(a, b));
    }
    static uint32x4_t lane_bit() {
        const uint32_t bit[kLanes] = {1, 2, 4, 8};
        return vld1q_u32(bit);
    }
    static uint16x4_t load_16(const uint16_t* p, int64_t n) {
        if (n >= kLanes) return vld1_u16(p);
        uint16_t piece[kLanes] = {};
        for (int64_t i = 0; i < n; ++i) piece[i] = p[i];
        return vld1_u16(piece);
    }
    static void store_16(uint16_t* p, int64_t n, uint16x4_t x) {
        if (n >= kLanes) return vst1_u16(p, x);
        uint16_t piece[kLanes];
        vst1_u16(piece, x);
        for (int64_t i = 0; i < n; ++i) p[i] = piece[i];
    }
};

template <>
struct Simd<double> {
    using Vec = float64x2_t;
    using Mask = uint64x2_t;
    static constexpr int kLanes = 2, kTileRows = 6, kTileVecs = 4;

    static Vec set1(double x) { return vdupq_n_f64(x); }
    static Vec load(const double* p) { return vld1q_f64(p); }
    static Vec load(const double* p, int64_t n) {
        if (n >= kLanes) return load(p);
        return vsetq_lane_f64(n > 0 ? *p : 0, vdupq_n_f64(0), 0);
    }
    static void store(double* p, Vec x) { vst1q_f64(p, x); }
    static void store(double* p, int64_t n, Vec x) {
        if (n >= kLanes) return store(p, x);
        if (n > 0) *p = vgetq_lane_f64(x, 0);
    }
    static Vec add(Vec a, Vec b) { return vaddq_f64(a, b); }
    static Vec sub(Vec a, Vec b) { return vsubq_f64(a, b); }
    static Vec mul(Vec a, Vec b) { return vmulq_f64(a, b); }
    static Vec div(Vec a, Vec b) { return vdivq_f64(a, b); }
    static Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f64(c, a, b); }
    static Vec max(Vec limit, Vec x) { return vbslq_f64(vcgtq_f64(limit, x), limit, x); }
    static Vec min(Vec limit, Vec x) { return vbslq_f64(vcltq_f64(limit, x), limit, x); }
    static Mask greater(Vec a, Vec b) { return vcgtq_f64(a, b); }
    static Mask equal(Vec a, Vec b) { return vceqq_f64(a, b); }
    static Mask bits(uint64_t b) { return vtstq_u64(vdupq_n_u64(b), lane_bit()); }
    static bool any(Mask m) { return to_bits(m) != 0; }
    static bool all(Mask m) { return to_bits(m) == 3; }
    static uint64_t to_bits(Mask m) { return vaddvq_u64(vandq_u64(m, lane_bit())); }
    static Mask both(Mask a, Mask b) { return vandq_u64(a, b); }
    static Mask either(Mask a, Mask b) { return vorrq_u64(a, b); }
    static Vec select(Mask m, Vec yes, Vec no) { return vbslq_f64(m, yes, no); }
    static Vec pow2(Vec n) {
        return vreinterpretq_f64_u64(vshlq_n_u64(vreinterpretq_u64_f64(n), 52));
    }
    static int64_t compress(double* out, Mask m, Vec x) {
        int64_t count = 0;
        if (vgetq_lane_u64(m, 0)) out[count++] = vgetq_lane_f64(x, 0);
        if (vgetq_lane_u64(m, 1)) out[count++] = vgetq_lane_f64(x, 1);
        return count;
    }
    static void transpose(Vec r[2]) {
        const Vec first = vtrn1q_f64(r[0], r[1]), second = vtrn2q_f64(r[0], r[1]);
        r[0] = first;
        r[1] = second;
    }
    template <Vec (*Fold)(Vec, Vec)>
    static Vec fold_each(const Vec x[2]) {
        return Fold(vuzp1q_f64(x[0], x[1]), vuzp2q_f64(x[0], x[1]));
    }

  private:
    static uint64x2_t lane_bit() {
        const uint64_t bit[kLanes] = {1, 2};
        return vld1q_u64(bit);
    }
};

}  // namespace
}  // namespace clearhead
