// Products of bfloat16 tiles by AMX: eight registers of 16 rows of 64 bytes.
// Written in assembly: the compilers' own loads do not say that they read memory.
#pragma once
#include <cstdint>

#include "dots.hpp"

namespace clearhead {
namespace {

struct Tiles {
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

    // S[g][c] = K[g] Q[c] for the block's groups g and the panel's columns c.
    static void scores(const uint16_t* k, int64_t groups, const uint16_t* q, int64_t steps,
                       int64_t columns, float* s) {
        if (steps <= 2) {
            for (int64_t c = 0; c < columns; ++c) {
                narrow_scores(k, groups, q + c * kSize, steps, s + c * 2 * kFloats);
            }
            return;
        }
        for (int64_t g = 0; g < groups; ++g) {
            for (int64_t c = 0; c < columns; c += 2) {
                wide_scores(k + g * 2 * steps * kSize, q + c * kSize, steps,
                            s + (g * kColumns + c) * 2 * kFloats);
            }
        }
    }

    // O[e][c] += V[.][e] P[.][c], summed over the block's groups. V[g][e] is at v + g * stride[e].
    static void mix(const uint16_t* const* v, const int64_t* stride, int64_t rows, const float* p,
                    int64_t groups, int64_t columns, float* o) {
        for (int64_t c = 0; c < columns; c += 2) {
            int64_t e = 0;
            for (; e + 2 <= rows; e += 2) {
                mix_tiles<2>(v + e, stride + e, p + c * 2 * kFloats, groups,
                             o + (e * kColumns + c) * kFloats);
            }
            if (e < rows) {
                mix_tiles<1>(v + e, stride + e, p + c * 2 * kFloats, groups,
                             o + (e * kColumns + c) * kFloats);
            }
        }
    }

    static int64_t multiply_adds(int64_t n) {
        begin();
        zero<0>(), zero<1>(), zero<2>(), zero<3>();
        zero<4>(), zero<5>(), zero<6>(), zero<7>();
        for (int64_t round = 0; round < n; ++round) {
            dot<0, 4, 6>(), dot<1, 4, 7>(), dot<2, 5, 6>(), dot<3, 5, 7>();
        }
        end();
        return n * 4 * 2 * kTile * kTile * kGroup;
    }

  private:
    static constexpr int64_t kSize = kTile * 32;       // bfloat16 of a tile
    static constexpr int64_t kFloats = kTile * kTile;  // floats of one

    template <int T>
    static void zero() {
        asm volatile("tilezero %%tmm%c0" ::"i"(T));
    }
    template <int T>
    static void load(const void* from) {
        asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(from), "r"(int64_t{64})
                     : "memory");
    }
    template <int T>
    static void store(void* to) {
        asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(to), "r"(int64_t{64})
                     : "memory");
    }
    template <int C, int A, int B>
    static void dot() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    }

    template <int C>
    static void chain(const uint16_t* k, int64_t steps) {
        zero<C>();
        load<6>(k);
        dot<C, 6, 4>();
        if (steps == 1) return;
        load<7>(k + kSize);
        dot<C, 7, 5>();
    }

    // D <= 64: the queries stay in two registers. A tile is stored while the next two are at work,
    // because a store waits for its tile and holds up what follows.
    static void narrow_scores(const uint16_t* k, int64_t groups, const uint16_t* q, int64_t steps,
                              float* s) {
        constexpr int64_t kNext = kColumns * 2 * kFloats;
        load<4>(q);
        if (steps == 2) load<5>(q + kColumns * kSize);
        float* waiting = nullptr;
        const int64_t size = steps * kSize;
        for (int64_t g = 0; g < groups; g += 2, s += 2 * kNext, k += 4 * size) {
            chain<0>(k, steps);
            if (waiting) store<2>(waiting);
            chain<1>(k + size, steps);
            if (waiting) store<3>(waiting + kFloats);
            waiting = nullptr;
            if (g + 1 == groups) {
                store<0>(s);
                store<1>(s + kFloats);
                return;
            }
            chain<2>(k + 2 * size, steps);
            store<0>(s);
            chain<3>(k + 3 * size, steps);
            store<1>(s + kFloats);
            waiting = s + kNext;
        }
        store<2>(waiting);
        store<3>(waiting + kFloats);
    }

    // A group's two tiles of keys by two of queries: four loads for four products.
    static void wide_scores(const uint16_t* k, const uint16_t* q, int64_t steps, float* s) {
        zero<0>(), zero<1>(), zero<2>(), zero<3>();
        for (int64_t step = 0; step < steps; ++step, k += kSize, q += kColumns * kSize) {
            load<4>(k);
            load<6>(q);
            dot<0, 4, 6>();
            load<7>(q + kSize);
            dot<1, 4, 7>();
            load<5>(k + steps * kSize);
            dot<2, 5, 6>();
            dot<3, 5, 7>();
        }
        store<0>(s);
        store<1>(s + 2 * kFloats);
        store<2>(s + kFloats);
        store<3>(s + 3 * kFloats);
    }

    template <int Rows>
    static void mix_tiles(const uint16_t* const* v, const int64_t* stride, const float* p,
                          int64_t groups, float* o) {
        constexpr int64_t kDown = kColumns * kFloats;
        load<0>(o);
        load<1>(o + kFloats);
        if constexpr (Rows == 2) load<2>(o + kDown), load<3>(o + kDown + kFloats);
        for (int64_t g = 0; g < groups; ++g, p += kColumns * 2 * kFloats) {
            load<4>(v[0] + g * stride[0]);
            load<6>(p);
            dot<0, 4, 6>();
            load<7>(p + 2 * kFloats);
            dot<1, 4, 7>();
            if constexpr (Rows == 2) {
                load<5>(v[1] + g * stride[1]);
                dot<2, 5, 6>();
                dot<3, 5, 7>();
            }
        }
        store<0>(o);
        store<1>(o + kFloats);
        if constexpr (Rows == 2) store<2>(o + kDown), store<3>(o + kDown + kFloats);
    }
};

}  // namespace
}  // namespace clearhead
