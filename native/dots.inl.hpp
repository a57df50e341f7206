// The forward pass of one panel in bfloat16, the products by dot-product instructions, everything
// between them in float32: S^T = K Q^T, weights, O^T += V^T P, 128 keys at a time.
//
// Weights are rounded to bfloat16 for their product, and the output is divided by the sum of the
// rounded ones: it is a row of ones below the values, so that the product sums them itself. The lse
// has its own sum.
//
// Traffic of a panel: each packed key and value is read once for 64 queries.
// Included after simd_avx512.hpp and a header with `Tiles`.
#pragma once
#include "dots.hpp"
#include "pairs_avx512.hpp"
#include "tile.inl.hpp"

namespace clearhead {
namespace {

using Lanes = Simd<float>;
using Floats = Lanes::Vec;

constexpr float kFarDown = -__builtin_inff();
constexpr float kSlackOfDots = 8;  // as kSlack in forward.inl.hpp
constexpr float kBound = 30;       // weights within 2^-30 and 2^30 need no reference
constexpr int64_t kTileSize = kTile * 32;
constexpr int64_t kSquare = kTile * kTile;

struct Ones {
    alignas(64) uint16_t row[kTileSize] = {};
    constexpr Ones() {
        for (int i = 0; i < 32; ++i) row[i] = 0x3f80;
    }
};
constexpr Ones kOnes;

inline int64_t columns_of(const DotPanel& panel) {
    return 2 * tiles(panel.rows, 2 * kTile);
}

inline float* output_row(const DotPanel& panel, int64_t e, int64_t column) {
    return panel.o + ((e / kTile) * kColumns + column) * kSquare + e % kTile * kTile;
}

// -- packing

inline void pack_keys(const Matrix& k, int64_t count, int64_t D, uint16_t* out,
                      float& square_length) {
    const int64_t steps = tiles(D, 32);
    float most = 0;
    for (int64_t i = 0; i < kGroup; ++i) {
        Floats squares = Lanes::set1(0);
        for (int64_t step = 0; step < steps; ++step) {
            const Pairs::Vec x =
                i < count ? Pairs::load_row(k, i, step * 32, D - step * 32) : Pairs::none();
            squares = Pairs::add_squares(squares, x);
            Pairs::store(out + ((i / kTile) * steps + step) * kTileSize + i % kTile * 32, x);
        }
        const float sum = Pairs::sum(squares);
        if (!(sum <= most)) most = sum == sum ? sum : __builtin_inff();
    }
    square_length = most;
}

inline void pack_values(const Matrix& v, int64_t count, int64_t E, uint16_t* out,
                        float& magnitude) {
    Pairs::Vec most = Pairs::none();
    for (int64_t e = 0; e < E; e += kTile, out += kTileSize) {
        const int64_t left = E - e < kTile ? E - e : kTile;
        const auto row = [&](int64_t i) {
            const Pairs::Vec x = i < count ? Pairs::load_row(v, i, e, left) : Pairs::none();
            most = Pairs::larger(most, x);
            return x;
        };
        Floats square[kTile];
        for (int64_t i = 0; i < kTile; ++i) {
            const Pairs::Vec even = row(2 * i), odd = row(2 * i + 1);
            square[i] = _mm512_castsi512_ps(Pairs::interleave(even, odd));
        }
        Lanes::transpose(square);
        for (int64_t i = 0; i < kTile; ++i) {
            Pairs::store(out + i * 32, _mm512_castps_si512(square[i]));
        }
        // Values end inside this tile: the row of ones follows them.
        if (left < kTile) Pairs::store(out + left * 32, _mm512_set1_epi16(0x3f80));
    }
    magnitude = Pairs::largest(most);
}

void pack(const Matrix& k, const Matrix& v, int64_t S, int64_t D, int64_t E, int64_t group,
          const Packed& out) {
    const int64_t begin = group * kGroup, count = S - begin < kGroup ? S - begin : kGroup;
    const auto from = [&](const Matrix& m) {
        const uint16_t* data = static_cast<const uint16_t*>(m.data) + begin * m.row;
        return Matrix{data, m.row, m.col, m.dtype};
    };
    pack_keys(from(k), count, D, out.k + group * 2 * tiles(D, 32) * kTileSize, out.length[group]);
    pack_values(from(v), count, E, out.v + group * tiles(E, kTile) * kTileSize,
                out.magnitude[group]);
}

// -- the panel

// Packs q; returns the square of the longest query's norm, infinite where one is not finite.
inline float pack_queries(const DotPanel& panel) {
    float most = 0;
    for (int64_t column = 0; column < columns_of(panel); ++column) {
        Floats squares = Lanes::set1(0);
        for (int64_t step = 0; step < tiles(panel.D, 32); ++step) {
            Floats square[kTile];
            for (int64_t i = 0; i < kTile; ++i) {
                const int64_t row = column * kTile + i;
                const Pairs::Vec x =
                    row < panel.rows ? Pairs::load_row(panel.q, row, step * 32, panel.D - step * 32)
                                     : Pairs::none();
                square[i] = _mm512_castsi512_ps(x);
            }
            Lanes::transpose(square);
            uint16_t* out = panel.qt + (step * kColumns + column) * kTileSize;
            for (int64_t i = 0; i < kTile; ++i) {
                const Pairs::Vec x = _mm512_castps_si512(square[i]);
                squares = Pairs::add_squares(squares, x);
                Pairs::store(out + i * 32, x);
            }
        }
        float sums[kTile];
        Lanes::store(sums, squares);
        for (const float sum : sums) {
            if (!(sum <= most)) most = sum == sum ? sum : __builtin_inff();
        }
    }
    return most;
}

// Whether |scores|, in log2 units, are at most kBound, by Cauchy and Schwarz, and values neither so
// large nor so small that weights of that size would carry them out of range.
inline bool is_bounded(const DotPanel& panel, float query_length) {
    if (panel.cap_factor != 0 || panel.biased) return false;
    if (!(panel.sink == kFarDown) && !(__builtin_fabs(panel.sink) <= kBound)) return false;
    float length = 0, magnitude = 0;
    for (int64_t g = 0; g < tiles(panel.S, kGroup); ++g) {
        length = panel.kv.length[g] > length ? panel.kv.length[g] : length;
        magnitude = panel.kv.magnitude[g] > magnitude ? panel.kv.magnitude[g] : magnitude;
    }
    const double factor = panel.s_factor, square = factor * factor * query_length * length;
    return square <= kBound * kBound && magnitude >= 0x1p-40f && magnitude <= 0x1p60f;
}

void begin(DotPanel& panel) {
    Tiles::begin();
    panel.bounded = is_bounded(panel, pack_queries(panel));
    // An infinite sink would divide inf by inf: NaN, as of any score.
    const float sink = panel.sink == -kFarDown ? __builtin_nanf("") : float(panel.sink);
    const bool has_sink = !(sink == kFarDown);
    float weight = has_sink ? 1 : 0;
    if (has_sink && panel.bounded) Lanes::store(&weight, 1, exp2<float>(Lanes::set1(sink)));
    for (int64_t r = 0; r < kPanel; ++r) {
        panel.m[r] = panel.bounded || r >= panel.rows ? 0 : sink;
        panel.l[r] = weight;
    }
    for (int64_t at = 0; at < tiles(panel.E + 1, kTile) * kColumns * kSquare; at += kTile) {
        Lanes::store(panel.o + at, Lanes::set1(0));
    }
    for (int64_t column = 0; column < kColumns; ++column) {
        Lanes::store(output_row(panel, panel.E, column), Lanes::set1(weight));
    }
}

// Weights of a group's keys for a tile of queries, in place of their scores. `seen` hides keys
// after the scores, so that they need not be finite.
template <bool kLse>
inline void weigh(float* s, Floats factor, Floats shift, const uint64_t* seen, int64_t lane,
                  float* l) {
    Floats sum = Lanes::load(l);
#pragma GCC unroll 4
    for (int64_t i = 0; i < kTile; ++i) {
        const __mmask16 even_seen = seen ? __mmask16(seen[2 * i] >> lane) : __mmask16(0xffff);
        const __mmask16 odd_seen = seen ? __mmask16(seen[2 * i + 1] >> lane) : __mmask16(0xffff);
        const Weight even(_mm512_fmsub_ps(Lanes::load(s + 2 * i * kTile), factor, shift));
        const Weight odd(_mm512_fmsub_ps(Lanes::load(s + (2 * i + 1) * kTile), factor, shift));
        if constexpr (kLse) sum = Lanes::add(sum, even.exact(even_seen));
        if constexpr (kLse) sum = Lanes::add(sum, odd.exact(odd_seen));
        Pairs::store(s + i * kTile,
                     Weight::pair(even.to_be_cut(even_seen), odd.to_be_cut(odd_seen)));
    }
    if constexpr (kLse) Lanes::store(l, sum);
}

// Scores that the product alone does not give: softcap, bias and mask, in log2 units.
inline Floats adjusted(const DotPanel& panel, const DotBlock& block, Floats s, int64_t key,
                       int64_t lane) {
    s = Lanes::mul(s, Lanes::set1(float(panel.s_factor)));
    if (panel.cap_factor != 0) {
        s = Lanes::mul(tanh<float>(s), Lanes::set1(float(panel.cap_factor)));
    }
    if (block.bias) s = Lanes::add(s, Lanes::load(block.bias + key * kPanel + lane));
    if (!block.visible) return s;
    return Lanes::select(Lanes::bits(block.visible[key] >> lane), s, Lanes::set1(kFarDown));
}

// Adjusts the block's scores of one tile of queries, and moves references up that they pass by more
// than the slack. A row that has seen no key yet takes their maximum whatever it is. NaN moves
// nothing: it reaches l and o through the weights.
inline void settle(const DotPanel& panel, const DotBlock& block, int64_t column) {
    const int64_t lane = column * kTile;
    const Floats lowest = Lanes::set1(kFarDown), zero = Lanes::set1(0);
    Floats top = lowest;
    for (int64_t key = 0; key < block.groups * kGroup; ++key) {
        float* at = panel.s + ((key / kGroup * kColumns + column) * kGroup + key % kGroup) * kTile;
        const Floats s = adjusted(panel, block, Lanes::load(at), key, lane);
        Lanes::store(at, s);
        top = Lanes::max(s, top);
    }
    const Floats m = Lanes::load(panel.m + lane);
    const auto fresh = Lanes::both(Lanes::equal(m, lowest), Lanes::greater(top, lowest));
    const auto grows =
        Lanes::either(fresh, Lanes::greater(Lanes::sub(top, m), Lanes::set1(kSlackOfDots)));
    if (!Lanes::any(grows)) return;
    const Floats to = Lanes::select(grows, top, m);
    const Floats fall = Lanes::select(grows, Lanes::sub(m, top), zero);
    const Floats factor = Lanes::select(fresh, Lanes::set1(1), exp2<float>(fall));
    const auto scale = [&](float* x) { Lanes::store(x, Lanes::mul(Lanes::load(x), factor)); };
    Lanes::store(panel.m + lane, to);
    scale(panel.l + lane);
    for (int64_t e = 0; e <= panel.E; ++e) scale(output_row(panel, e, column));
}

template <bool kLse>
void weigh_block(const DotPanel& panel, const DotBlock& block) {
    const Floats zero = Lanes::set1(0), lowest = Lanes::set1(kFarDown);
    for (int64_t column = 0; column < columns_of(panel); ++column) {
        const int64_t lane = column * kTile;
        Floats factor = Lanes::set1(float(panel.s_factor)), shift = zero;
        if (!panel.bounded) {
            settle(panel, block, column);
            factor = Lanes::set1(1);
            const Floats m = Lanes::load(panel.m + lane);
            shift = Lanes::select(Lanes::equal(m, lowest), zero, m);
        }
        for (int64_t g = 0; g < block.groups; ++g) {
            const uint64_t* seen =
                panel.bounded && block.visible ? block.visible + g * kGroup : nullptr;
            float* s = panel.s + (g * kColumns + column) * kGroup * kTile;
            if (seen) {
                weigh<kLse>(s, factor, shift, seen, lane, panel.l_block + lane);
            } else {
                weigh<kLse>(s, factor, shift, nullptr, lane, panel.l_block + lane);
            }
        }
    }
}

// The product of weights and values where some lanes must not see some keys: 0 * x is not 0 if x is
// NaN or infinite.
inline void mix_visible(const DotPanel& panel, const DotBlock& block) {
    const int64_t size = tiles(panel.E, kTile) * kTileSize;
    for (int64_t column = 0; column < columns_of(panel); ++column) {
        for (int64_t e = 0; e <= panel.E; ++e) {
            float* out = output_row(panel, e, column);
            Floats sum = Lanes::load(out);
            for (int64_t key = 0; key < block.groups * kGroup; ++key) {
                const int64_t g = key / kGroup, i = key % kGroup;
                const uint16_t* v = panel.kv.v + (block.begin + g) * size;
                const uint32_t bits =
                    e == panel.E ? 0x3f80 : v[e / kTile * kTileSize + e % kTile * 32 + i];
                const float* p = panel.s + (g * kColumns + column) * kGroup * kTile;
                const Pairs::Vec pairs = _mm512_loadu_si512(p + i / 2 * kTile);
                const Floats weight = i % 2 ? Pairs::odd(pairs) : Pairs::even(pairs);
                const Floats x = Lanes::set1(__builtin_bit_cast(float, bits << 16));
                sum = Lanes::select(Lanes::bits(block.visible[key] >> column * kTile),
                                    Lanes::fma(x, weight, sum), sum);
            }
            Lanes::store(out, sum);
        }
    }
}

inline bool finite_values(const DotPanel& panel, const DotBlock& block) {
    for (int64_t g = 0; g < block.groups; ++g) {
        if (panel.kv.magnitude[block.begin + g] == __builtin_inff()) return false;
    }
    return true;
}

inline void mix(const DotPanel& panel, const DotBlock& block) {
    if (block.visible && !finite_values(panel, block)) return mix_visible(panel, block);
    constexpr int64_t kMost = 8;  // rows of tiles at a time
    const int64_t packed = tiles(panel.E, kTile), rows = tiles(panel.E + 1, kTile);
    for (int64_t e = 0; e < rows; e += kMost) {
        const uint16_t* v[kMost];
        int64_t stride[kMost], n = rows - e < kMost ? rows - e : kMost;
        for (int64_t i = 0; i < n; ++i) {
            const bool values = e + i < packed;
            v[i] = values ? panel.kv.v + (block.begin * packed + e + i) * kTileSize : kOnes.row;
            stride[i] = values ? packed * kTileSize : 0;
        }
        Tiles::mix(v, stride, n, panel.s, block.groups, columns_of(panel),
                   panel.o + e * kColumns * kSquare);
    }
}

void attend(DotPanel& panel, const DotBlock& block) {
    const int64_t steps = tiles(panel.D, 32);
    Tiles::scores(panel.kv.k + block.begin * 2 * steps * kTileSize, block.groups, panel.qt, steps,
                  columns_of(panel), panel.s);
    if (!panel.wants_lse) {
        weigh_block<false>(panel, block);
    } else {
        for (int64_t r = 0; r < kPanel; r += kTile) {
            Lanes::store(panel.l_block + r, Lanes::set1(0));
        }
        weigh_block<true>(panel, block);
        for (int64_t r = 0; r < kPanel; r += kTile) {
            Lanes::store(panel.l + r,
                         Lanes::add(Lanes::load(panel.l + r), Lanes::load(panel.l_block + r)));
        }
    }
    mix(panel, block);
}

void finish(DotPanel& panel, const Matrix& out) {
    Tiles::end();
    const Floats zero = Lanes::set1(0);
    for (int64_t column = 0; column * kTile < panel.rows; ++column) {
        const Floats l = Lanes::load(output_row(panel, panel.E, column));
        const Floats factor =
            Lanes::select(Lanes::equal(l, zero), zero, Lanes::div(Lanes::set1(1), l));
        for (int64_t e = 0; e < panel.E; e += kTile) {
            Floats square[kTile];
            for (int64_t i = 0; i < kTile; ++i) {
                square[i] = Lanes::mul(Lanes::load(output_row(panel, e + i, column)), factor);
            }
            Lanes::transpose(square);
            for (int64_t i = 0; i < kTile && column * kTile + i < panel.rows; ++i) {
                store_row<float>(out, column * kTile + i, e, panel.E - e, square[i]);
            }
        }
    }
}

constexpr Dots dots() {
    return {.pack = pack,
            .begin = begin,
            .attend = attend,
            .finish = finish,
            .multiply_adds = Tiles::multiply_adds};
}

}  // namespace
}  // namespace clearhead
