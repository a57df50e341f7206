// Products of bfloat16 tiles by AMX, packed.
#pragma once
#include <cstdint>

#include "dots.hpp"
#include "tiles_amx.hpp"

namespace clearhead {
namespace {

// Which products of the parts of two numbers count: those of part i of one and part j of the other
// with i + j <= Limit, the small ones first, each sharing a factor with the one before it.
template <int Parts, int Limit>
struct Order {
    struct Pair {
        int a, b;
    };
    static constexpr int count() {
        int n = 0;
        for (int a = 0; a < Parts; ++a) n += Limit - a + 1 < Parts ? Limit - a + 1 : Parts;
        return n;
    }
    static constexpr int kSmall = count() - 1;  // all but (0, 0)
    static constexpr Pair pair(int i) {
        for (int a = Parts - 1; a >= 0; --a) {
            for (int b = a == 0; b < Parts && a + b <= Limit; ++b) {
                if (i-- == 0) return {a, b};
            }
        }
        return {0, 0};
    }
};

// The same sums, to the bit, where the two factors have changed places.
template <class Of>
struct Swapped {
    static constexpr int kSmall = Of::kSmall;
    static constexpr typename Of::Pair pair(int i) { return {Of::pair(i).b, Of::pair(i).a}; }
};

struct Tiles : TileRegisters {
    // Tile t has 16 rows of 64 bytes, for every t.
    static void begin() {
        struct alignas(64) {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } const shape;
        asm volatile("ldtilecfg %0" ::"m"(shape));
    }
    static void end() { asm volatile("tilerelease"); }

    // S[g][c][.] = K[g] Q[c] for some groups of keys and the panel's four tiles of queries. A tile
    // of keys stays in the registers for all queries, so that it is read once.
    static void scores(const uint16_t* k, int64_t groups, const uint16_t* q, int64_t steps,
                       float* s) {
        if (steps == 1) return short_scores<1>(k, groups, q, s);
        if (steps == 2) return short_scores<2>(k, groups, q, s);
        if (steps == 3) return long_scores<3>(k, groups, q, steps, s);
        long_scores<4>(k, groups, q, steps, s);
    }

    // O[c] += V P[c], summed over the block's groups, for one tile of value columns and the four of
    // queries. V[g] is at v + g * stride.
    static void mix(const uint16_t* v, int64_t stride, const uint16_t* p, int64_t groups,
                    float* o) {
        if (groups == 1) return mix_groups<1>(v, stride, p, o);
        if (groups == 2) return mix_groups<2>(v, stride, p, o);
        if (groups == 3) return mix_groups<3>(v, stride, p, o);
        mix_groups<4>(v, stride, p, o);
    }

    // A factor of a product of sums: two tiles, `second` apart, for each part and each step along
    // what the product sums over.
    struct Factor {
        const uint16_t* data;
        int64_t second, part, step;
    };

    // C = A B for two tiles of A and two of B (`Both` false: one of A), each number a sum of parts.
    // Of the products of parts only those of `Order` are formed, the small ones first: what comes
    // last then is rounded as often as if it were alone. Calls between() after every few products,
    // for what the processor may do meanwhile. C is out[a][b], `across` floats from one b to the
    // next.
    template <class Order, bool Both, class Between>
    static inline __attribute__((always_inline)) void multiply(const Factor& a, const Factor& b,
                                                               int64_t steps, float* out,
                                                               int64_t across, Between& between) {
        zero<0>(), zero<1>(), zero<2>(), zero<3>();
        for (int64_t step = 0; step < steps; ++step) {
            products<Order, Both, 0>(a, b, step, between);
        }
        for (int64_t step = 0; step < steps; ++step) {
            load_first<Both>(a.data + step * a.step, a.second);
            load_second(b.data + step * b.step, b.second);
            square<Both>();
            between();
        }
        store<0>(out), store<1>(out + across);
        if constexpr (Both) store<2>(out + kFloats), store<3>(out + across + kFloats);
    }

    static int64_t multiply_adds(int64_t n) {
        begin();
        zero<0>(), zero<1>(), zero<2>(), zero<3>();
        zero<4>(), zero<5>(), zero<6>(), zero<7>();
        for (int64_t round = 0; round < n; ++round) {
            square<true>();
        }
        end();
        return n * 4 * 2 * kTile * kTile * kGroup;
    }

  private:
    template <bool Both>
    static void load_first(const uint16_t* from, int64_t second) {
        load<4>(from);
        if constexpr (Both) load<5>(from + second);
    }
    static void load_second(const uint16_t* from, int64_t second) {
        load<6>(from), load<7>(from + second);
    }
    template <bool Both>
    static void square() {
        dot<0, 4, 6>(), dot<1, 4, 7>();
        if constexpr (Both) dot<2, 5, 6>(), dot<3, 5, 7>();
    }
    // The products of parts from the I-th on, but for that of the first parts.
    template <class Order, bool Both, int I, class Between>
    static inline __attribute__((always_inline)) void products(const Factor& a, const Factor& b,
                                                               int64_t step, Between& between) {
        if constexpr (I < Order::kSmall) {
            constexpr auto now = Order::pair(I), before = Order::pair(I ? I - 1 : 0);
            if constexpr (I == 0 || now.a != before.a) {
                load_first<Both>(a.data + now.a * a.part + step * a.step, a.second);
            }
            if constexpr (I == 0 || now.b != before.b) {
                load_second(b.data + now.b * b.part + step * b.step, b.second);
            }
            square<Both>();
            between();
            products<Order, Both, I + 1>(a, b, step, between);
        }
    }

    // A tile is stored while the next are at work: a store waits for its tile, and holds up what
    // follows.
    template <int Steps>
    static void short_scores(const uint16_t* k, int64_t groups, const uint16_t* q, float* s) {
        float* waiting = nullptr;
        for (int64_t i = 0; i < 2 * groups; ++i, k += Steps * kSize) {
            load<4>(k);
            if constexpr (Steps > 1) load<5>(k + kSize);
            float* to = s + (i / 2 * 2 * kColumns + i % 2) * kFloats;
            short_chain<0, Steps>(q);
            if (waiting) store<2>(waiting);
            short_chain<1, Steps>(q + kSize);
            if (waiting) store<3>(waiting + 2 * kFloats);
            short_chain<2, Steps>(q + 2 * kSize);
            store<0>(to);
            short_chain<3, Steps>(q + 3 * kSize);
            store<1>(to + 2 * kFloats);
            waiting = to + 4 * kFloats;
        }
        store<2>(waiting);
        store<3>(waiting + 2 * kFloats);
    }
    template <int C, int Steps>
    static void short_chain(const uint16_t* q) {
        zero<C>();
        load<6>(q), dot<C, 4, 6>();
        if constexpr (Steps > 1) load<7>(q + kColumns * kSize), dot<C, 5, 7>();
    }

    template <int Steps>
    static void long_scores(const uint16_t* k, int64_t groups, const uint16_t* q, int64_t steps,
                            float* s) {
        float* waiting = nullptr;
        for (int64_t i = 0; i < 2 * groups; ++i, k += steps * kSize) {
            load<2>(k), load<3>(k + kSize), load<4>(k + 2 * kSize);
            if constexpr (Steps > 3) load<5>(k + 3 * kSize);
            float* to = s + (i / 2 * 2 * kColumns + i % 2) * kFloats;
            for (int64_t c = 0; c < kColumns; c += 2, to += 4 * kFloats) {
                long_chain<0, Steps>(k, q + c * kSize, steps);
                if (waiting) store<1>(waiting);
                long_chain<1, Steps>(k, q + (c + 1) * kSize, steps);
                store<0>(to);
                waiting = to + 2 * kFloats;
            }
        }
        store<1>(waiting);
    }
    // Beyond D = 128 the last register of keys is loaded again.
    template <int C, int Steps>
    static void long_chain(const uint16_t* k, const uint16_t* q, int64_t steps) {
        constexpr int64_t next = kColumns * kSize;
        zero<C>();
        load<6>(q), dot<C, 2, 6>();
        load<7>(q + next), dot<C, 3, 7>();
        load<6>(q + 2 * next), dot<C, 4, 6>();
        if constexpr (Steps > 3) {
            load<7>(q + 3 * next), dot<C, 5, 7>();
            if (steps == 4) return;
            for (int64_t step = 4; step < steps; ++step) {
                load<5>(k + step * kSize), load<6>(q + step * next), dot<C, 5, 6>();
            }
            load<5>(k + 3 * kSize);
        }
    }

    template <int Groups>
    static void mix_groups(const uint16_t* v, int64_t stride, const uint16_t* p, float* o) {
        load<2>(v);
        if constexpr (Groups > 1) load<3>(v + stride);
        if constexpr (Groups > 2) load<4>(v + 2 * stride);
        if constexpr (Groups > 3) load<5>(v + 3 * stride);
        mix_chain<0, Groups>(p, o);
        mix_chain<1, Groups>(p + kSize, o + kFloats);
        store<0>(o);
        mix_chain<0, Groups>(p + 2 * kSize, o + 2 * kFloats);
        store<1>(o + kFloats);
        mix_chain<1, Groups>(p + 3 * kSize, o + 3 * kFloats);
        store<0>(o + 2 * kFloats);
        store<1>(o + 3 * kFloats);
    }
    template <int C, int Groups>
    static void mix_chain(const uint16_t* p, const float* o) {
        constexpr int64_t next = kColumns * kSize;
        load<C>(o);
        load<6>(p), dot<C, 2, 6>();
        if constexpr (Groups > 1) load<7>(p + next), dot<C, 3, 7>();
        if constexpr (Groups > 2) load<6>(p + 2 * next), dot<C, 4, 6>();
        if constexpr (Groups > 3) load<7>(p + 3 * next), dot<C, 5, 7>();
    }
};

}  // namespace
}  // namespace clearhead
