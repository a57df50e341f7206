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
    template <int N>
    static void scores(const uint16_t* k, int64_t stride, const uint16_t* q, int64_t columns,
                       int64_t steps, float* s) {
        const char* low = reinterpret_cast<const char*>(k);
        const char* high = low + kTile * stride;
        zero<0>(), zero<1>();
        if constexpr (N > 1) zero<2>(), zero<3>();
        for (int64_t step = 0; step < steps; ++step, q += columns * kSize) {
            load<4>(low + step * 64, stride), load<5>(high + step * 64, stride);
            load<6>(q), dot<0, 4, 6>(), dot<1, 5, 6>();
            if constexpr (N > 1) load<7>(q + kSize), dot<2, 4, 7>(), dot<3, 5, 7>();
        }
        store<0>(s), store<1>(s + kFloats);
        s += kPiece * kTile;
        if constexpr (N > 1) store<2>(s), store<3>(s + kFloats);
    }

    // O[e] += P V[e], summed over tiles of 16 keys, for N tiles of 32 value columns each. A weight
    // is one half of a pair whose other half is 0, so that the product sees the values' even
    // columns only, or the odd ones. Values are `stride` bytes apart.
    template <int N>
    static void mix(const uint32_t* p, const uint16_t* v, int64_t stride, int64_t keys, float* o) {
        const char* at = reinterpret_cast<const char*>(v);
        load<0>(o);
        if constexpr (N > 1) load<1>(o + kFloats);
        if constexpr (N > 2) load<2>(o + 2 * kFloats);
        if constexpr (N > 3) load<3>(o + 3 * kFloats);
        for (int64_t key = 0; key < keys; key += kTile, p += kFloats, at += kTile * stride) {
            load<4>(p);
            load<5>(at, stride), dot<0, 4, 5>();
            if constexpr (N > 1) load<6>(at + 64, stride), dot<1, 4, 6>();
            if constexpr (N > 2) load<7>(at + 128, stride), dot<2, 4, 7>();
            if constexpr (N > 3) load<5>(at + 192, stride), dot<3, 4, 5>();
        }
        store<0>(o);
        if constexpr (N > 1) store<1>(o + kFloats);
        if constexpr (N > 2) store<2>(o + 2 * kFloats);
        if constexpr (N > 3) store<3>(o + 3 * kFloats);
    }
};

}  // namespace
}  // namespace clearhead
