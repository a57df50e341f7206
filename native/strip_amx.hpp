// Tile products of bfloat16 for few query rows, keys and values straight from memory: rows of 64
// bytes, a stride apart.
#pragma once
#include <cstdint>

#include "strip_dots.hpp"
#include "tiles_amx.hpp"

namespace clearhead {
namespace {

struct StripTiles : TileRegisters {
    // S[c][i] = K[i] Q[c] for two tiles of keys, i < 2, and N of queries. Keys are `stride` bytes
    // apart, tiles of queries one step on `columns` tiles.
    // Calls between() after some products, as `mix` does.
    template <int N, class Between>
    static inline __attribute__((always_inline)) void scores(const uint16_t* k, int64_t stride,
                                                             const uint16_t* q, int64_t columns,
                                                             int64_t steps, float* s,
                                                             const Between& between) {
        const char* low = reinterpret_cast<const char*>(k);
        const char* high = low + kTile * stride;
        zero<0>(), zero<1>();
        if constexpr (N > 1) zero<2>(), zero<3>();
        for (int64_t step = 0; step < steps; ++step, q += columns * kSize) {
            load<4>(low + step * 64, stride), load<5>(high + step * 64, stride);
            load<6>(q), dot<0, 4, 6>(), dot<1, 5, 6>();
            if constexpr (N > 1) load<7>(q + kSize), dot<2, 4, 7>(), dot<3, 5, 7>();
            between();
        }
        store<0>(s), store<1>(s + kFloats);
        s += kPiece * kTile;
        if constexpr (N > 1) store<2>(s), store<3>(s + kFloats);
    }

    // O[e] += P V[e], summed over tiles of 16 keys, for N tiles of 32 value columns each. A weight
    // is one half of a pair whose other half is 0, so that the product sees the values' even
    // columns only, or the odd ones. Values are `stride` bytes apart.
    template <int N, class Between>
    static inline __attribute__((always_inline)) void mix(const uint32_t* p, const uint16_t* v,
                                                          int64_t stride, int64_t keys, float* o,
                                                          const Between& between) {
        const char* at = reinterpret_cast<const char*>(v);
        load<0>(o);
        if constexpr (N > 1) load<1>(o + kFloats);
        if constexpr (N > 2) load<2>(o + 2 * kFloats);
        if constexpr (N > 3) load<3>(o + 3 * kFloats);
        for (int64_t key = 0; key < keys; key += kTile, p += kFloats, at += kTile * stride) {
            load<4>(p);
            load<5>(at, stride), dot<0, 4, 5>(), between();
            if constexpr (N > 1) load<6>(at + 64, stride), dot<1, 4, 6>(), between();
            if constexpr (N > 2) load<7>(at + 128, stride), dot<2, 4, 7>(), between();
            if constexpr (N > 3) load<5>(at + 192, stride), dot<3, 4, 5>(), between();
        }
        store<0>(o);
        if constexpr (N > 1) store<1>(o + kFloats);
        if constexpr (N > 2) store<2>(o + 2 * kFloats);
        if constexpr (N > 3) store<3>(o + 3 * kFloats);
    }

    // Two tiles of numbers that are sums of parts, `second` apart.
    struct Parts {
        const uint16_t *first, *others;  // part i > 0 is at others + (i - 1) * part
        int64_t second, part;

        const uint16_t* at(int i) const { return i == 0 ? first : others + (i - 1) * part; }
    };

    // C[a][b] += A[a] B[b] for two tiles of either or one (`kA`, `kB`: two). Of the products of
    // parts those of Order but that of the first parts: all of them belong before the first of
    // those, or what is rounded off C is rounded off more often. Calls between() after each, for
    // what the processor may do meanwhile.
    static void clear() { zero<0>(), zero<1>(), zero<2>(), zero<3>(); }
    template <class Order, bool kA, bool kB, int I = 0, class Between>
    static inline __attribute__((always_inline)) void small_products(const Parts& a, const Parts& b,
                                                                     Between& between) {
        if constexpr (I < Order::kSmall) {
            constexpr auto now = Order::pair(I), before = Order::pair(I ? I - 1 : 0);
            if constexpr (I == 0 || now.a != before.a) load_first<kA>(a, now.a);
            if constexpr (I == 0 || now.b != before.b) load_second<kB>(b, now.b);
            square<kA, kB>();
            between();
            small_products<Order, kA, kB, I + 1>(a, b, between);
        }
    }
    template <bool kA, bool kB>
    static void large_product(const Parts& a, const Parts& b) {
        load_first<kA>(a, 0), load_second<kB>(b, 0);
        square<kA, kB>();
    }
    // C[a][b] to out + a * down + b * across.
    template <bool kA, bool kB>
    static void put(float* out, int64_t down, int64_t across) {
        store<0>(out);
        if constexpr (kB) store<1>(out + across);
        if constexpr (kA) store<2>(out + down);
        if constexpr (kA && kB) store<3>(out + down + across);
    }

  private:
    template <bool kBoth>
    static void load_first(const Parts& a, int part) {
        load<4>(a.at(part));
        if constexpr (kBoth) load<5>(a.at(part) + a.second);
    }
    template <bool kBoth>
    static void load_second(const Parts& b, int part) {
        load<6>(b.at(part));
        if constexpr (kBoth) load<7>(b.at(part) + b.second);
    }
    template <bool kA, bool kB>
    static void square() {
        dot<0, 4, 6>();
        if constexpr (kB) dot<1, 4, 7>();
        if constexpr (kA) dot<2, 5, 6>();
        if constexpr (kA && kB) dot<3, 5, 7>();
    }
};

}  // namespace
}  // namespace clearhead
