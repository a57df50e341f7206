// Width 1, plain C++: what any CPU runs, and the readable meaning of the other two files.
#pragma once
#include <cstdint>

namespace clearhead {
namespace {

float from_bits(uint32_t u) {
    return __builtin_bit_cast(float, u);
}

// IEEE half to float: move the 15 bits into place and mend the exponent by a multiplication, which
// also makes subnormals right; infinities and NaNs get the full exponent back.
float half_to_float(uint16_t h) {
    const float magnitude = from_bits(uint32_t(h & 0x7fff) << 13) * 0x1p112f;
    uint32_t u = __builtin_bit_cast(uint32_t, magnitude);
    if ((h & 0x7c00) == 0x7c00) u |= 0x7f800000u;
    return from_bits(u | uint32_t(h & 0x8000) << 16);
}

// Round to nearest even. Above the largest half: infinity. A subnormal is rounded by adding 0.5,
// whose last mantissa bit is worth 2^-24, the smallest half.
uint16_t float_to_half(float x) {
    const uint32_t u = __builtin_bit_cast(uint32_t, x);
    const uint16_t sign = uint16_t(u >> 16 & 0x8000);
    const uint32_t magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00 | (u >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);
    if (magnitude < 0x38800000) {
        const float shifted = from_bits(magnitude) + 0.5f;
        return uint16_t(sign | (__builtin_bit_cast(uint32_t, shifted) - 0x3f000000));
    }
    return uint16_t(sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

uint16_t float_to_bfloat(float x) {
    const uint32_t u = __builtin_bit_cast(uint32_t, x);
    if ((u & 0x7fffffff) > 0x7f800000) return uint16_t(u >> 16 | 0x40);
    return uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

template <class Real>
struct Simd {
    using Vec = Real;
    using Mask = bool;
    static constexpr int kLanes = 1, kTileRows = 3, kTileVecs = 4;

    static Vec set1(Real x) { return x; }
    static Vec load(const Real* p) { return *p; }
    static Vec load(const Real* p, int64_t n) { return n > 0 ? *p : 0; }
    static Vec load_half(const uint16_t* p, int64_t n) { return n > 0 ? half_to_float(*p) : 0; }
    static Vec load_bfloat(const uint16_t* p, int64_t n) {
        return n > 0 ? from_bits(uint32_t(*p) << 16) : 0;
    }
    static void store(Real* p, Vec x) { *p = x; }
    static void store(Real* p, int64_t n, Vec x) {
        if (n > 0) *p = x;
    }
    static void store_half(uint16_t* p, int64_t n, Vec x) {
        if (n > 0) *p = float_to_half(x);
    }
    static void store_bfloat(uint16_t* p, int64_t n, Vec x) {
        if (n > 0) *p = float_to_bfloat(x);
    }
    static Vec add(Vec a, Vec b) { return a + b; }
    static Vec sub(Vec a, Vec b) { return a - b; }
    static Vec mul(Vec a, Vec b) { return a * b; }
    static Vec div(Vec a, Vec b) { return a / b; }
    static Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
    // The second operand where either is NaN: max(limit, x) lets a NaN in x through.
    static Vec max(Vec limit, Vec x) { return limit > x ? limit : x; }
    static Vec min(Vec limit, Vec x) { return limit < x ? limit : x; }
    static Mask greater(Vec a, Vec b) { return a > b; }
    static Mask equal(Vec a, Vec b) { return a == b; }
    static Mask bits(uint64_t b) { return b & 1; }
    static bool any(Mask m) { return m; }
    static bool all(Mask m) { return m; }
    static uint64_t to_bits(Mask m) { return m; }
    static Mask both(Mask a, Mask b) { return a && b; }
    static Mask either(Mask a, Mask b) { return a || b; }
    static Vec select(Mask m, Vec yes, Vec no) { return m ? yes : no; }
    // 2^n from the bits of n + bias: the integer sits in the low mantissa bits of `n`.
    static Vec pow2(Vec n) {
        if constexpr (sizeof(Real) == 4) {
            return from_bits(__builtin_bit_cast(uint32_t, n) << 23);
        } else {
            return __builtin_bit_cast(double, __builtin_bit_cast(uint64_t, n) << 52);
        }
    }
    static void transpose(Vec*) {}
    template <Vec (*Fold)(Vec, Vec)>
    static Vec fold_each(const Vec* x) {  // lane i: the lanes of x[i] folded, add or max
        return *x;
    }
    // Writes the lanes of x that m has side by side, and perhaps anything up to kLanes; their
    // number.
    static int64_t compress(Real* out, Mask m, Vec x) {
        *out = x;
        return m;
    }
};

}  // namespace
}  // namespace clearhead
