// The forward pass of one panel in bfloat16, the products by dot-product instructions, everything
// between them in float32: S^T = K Q^T, weights, O^T += V^T P, 128 keys at a time. What float32 and
// float16 share with it (sums.inl.hpp) takes a Form: how a number becomes bfloat16.
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
    return tiles(panel.rows, kTile);
}

inline float* output_row(const DotPanel& panel, int64_t e, int64_t column) {
    return panel.o + ((e / kTile) * kColumns + column) * kSquare + e % kTile * kTile;
}

// -- packing

// NaN as infinite.
inline float greater_of(float most, float x) {
    return x <= most ? most : x == x ? x : __builtin_inff();
}

template <class Form>
inline void pack_keys(const Matrix& k, int64_t count, int64_t D, uint16_t* out,
                      float& square_length) {
    const int64_t steps = tiles(D, 32);
    float most = 0;
    for (int64_t i = 0; i < kGroup; ++i) {
        Floats squares = Lanes::set1(0);
        for (int64_t step = 0; step < steps; ++step) {
            Pairs::Vec x[Form::kParts] = {};
            if (i < count) Form::row(k, i, step * 32, D - step * 32, x, squares);
            for (int part = 0; part < Form::kParts; ++part) {
                const int64_t tile = (i / kTile * Form::kParts + part) * steps + step;
                Pairs::store(out + tile * kTileSize + i % kTile * 32, x[part]);
            }
        }
        most = greater_of(most, Pairs::sum(squares));
    }
    square_length = most;
}

template <class Form>
inline void pack_values(const Matrix& v, int64_t count, int64_t E, uint16_t* out,
                        float& magnitude) {
    Pairs::Vec most = Pairs::none();
    for (int64_t e = 0; e < E; e += kTile) {
        const int64_t left = E - e < kTile ? E - e : kTile;
        Floats square[Form::kParts][kTile];
        for (int64_t i = 0; i < kTile; ++i) {
            Pairs::Vec x[Form::kParts];
            Form::two_rows(v, 2 * i, 2 * i + 1, count, e, left, x, most);
            for (int part = 0; part < Form::kParts; ++part) {
                square[part][i] = _mm512_castsi512_ps(x[part]);
            }
        }
        for (int part = 0; part < Form::kParts; ++part, out += kTileSize) {
            Lanes::transpose(square[part]);
            for (int64_t i = 0; i < kTile; ++i) {
                Pairs::store(out + i * 32, _mm512_castps_si512(square[part][i]));
            }
            // Values end inside this tile: the row of ones follows them.
            if (part == 0 && left < kTile) Pairs::store(out + left * 32, _mm512_set1_epi16(0x3f80));
        }
    }
    magnitude = Form::largest(most);
}

template <class Form>
void pack(const Matrix& k, const Matrix& v, int64_t S, int64_t D, int64_t E, int64_t group,
          const Packed& out) {
    const int64_t begin = group * kGroup, count = S - begin < kGroup ? S - begin : kGroup;
    const int64_t size = Form::kParts * kTileSize;
    const auto from = [&](const Matrix& m) {
        const int64_t bytes = m.dtype == DType::f32 ? 4 : 2;
        return Matrix{static_cast<const char*>(m.data) + begin * m.row * bytes, m.row, m.col,
                      m.dtype};
    };
    pack_keys<Form>(from(k), count, D, out.k + group * 2 * tiles(D, 32) * size, out.length[group]);
    pack_values<Form>(from(v), count, E, out.v + group * tiles(E, kTile) * size,
                      out.magnitude[group]);
}

// -- the panel

// Packs up to 64 rows as the lanes of a product along them, [parts][D / 32][4][16 pairs][16][2];
// returns the square of the longest one's norm, infinite where one is not finite.
template <class Form>
inline float pack_lanes(const Matrix& m, int64_t rows, int64_t D, uint16_t* to) {
    const int64_t steps = tiles(D, 32);
    float most = 0;
    for (int64_t column = 0; column < kColumns; ++column) {
        Floats squares[kTile];
        for (Floats& x : squares) x = Lanes::set1(0);
        for (int64_t step = 0; step < steps; ++step) {
            Floats square[Form::kParts][kTile];
            for (int64_t i = 0; i < kTile; ++i) {
                const int64_t row = column * kTile + i;
                Pairs::Vec x[Form::kParts] = {};
                if (row < rows) Form::row(m, row, step * 32, D - step * 32, x, squares[i]);
                for (int part = 0; part < Form::kParts; ++part) {
                    square[part][i] = _mm512_castsi512_ps(x[part]);
                }
            }
            for (int part = 0; part < Form::kParts; ++part) {
                Lanes::transpose(square[part]);
                uint16_t* out = to + ((part * steps + step) * kColumns + column) * kTileSize;
                for (int64_t i = 0; i < kTile; ++i) {
                    Pairs::store(out + i * 32, _mm512_castps_si512(square[part][i]));
                }
            }
        }
        for (const Floats x : squares) most = greater_of(most, Pairs::sum(x));
    }
    return most;
}

template <class Form>
inline float pack_queries(const DotPanel& panel) {
    return pack_lanes<Form>(panel.q, panel.rows, panel.D, panel.qt);
}

struct Sizes {
    float query = 0, key = 0, value = 0;  // squares of the longest norms; the largest magnitude
};

// Of n numbers that are not negative.
inline float largest(const float* x, int64_t n) {
    Floats most = Lanes::set1(0);
    for (int64_t i = 0; i < n; i += kTile) most = Lanes::max(most, Lanes::load(x + i, n - i));
    return _mm512_reduce_max_ps(most);
}

inline Sizes sizes_of(const DotPanel& panel, float query) {
    return {query, largest(panel.kv.length + panel.first, panel.groups),
            largest(panel.kv.magnitude + panel.first, panel.groups)};
}

// Whether |scores|, in log2 units, are at most kBound, by Cauchy and Schwarz, and values neither so
// large nor so small that weights of that size would carry them out of range.
inline bool is_bounded(const DotPanel& panel, const Sizes& sizes) {
    if (panel.cap_factor != 0 || panel.biased) return false;
    if (!(panel.sink == kFarDown) && !(__builtin_fabs(panel.sink) <= kBound)) return false;
    const double factor = panel.s_factor, square = factor * factor * sizes.query * sizes.key;
    return square <= kBound * kBound && sizes.value >= 0x1p-40f && sizes.value <= 0x1p60f;
}

// Clears the state.
inline void begin_state(DotPanel& panel) {
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

bool begin(DotPanel& panel) {
    panel.bounded = is_bounded(panel, sizes_of(panel, pack_queries<Whole>(panel)));
    begin_state(panel);
    return true;
}

// Weights of a group's keys for a tile of queries, in pairs of keys. `seen` hides keys after the
// scores, so that they need not be finite.
constexpr int kAtOnce = 2;  // pairs of keys
template <bool kLse>
inline void weigh(const float* s, uint16_t* p, Floats factor, Floats shift, const uint64_t* seen,
                  int64_t lane, Floats& sum) {
    for (int64_t i = 0; i < kTile; i += kAtOnce) {
        const Weights<2 * kAtOnce> weights(s + 2 * i * kTile, factor, shift);
#pragma GCC unroll 4
        for (int j = 0; j < 2 * kAtOnce; j += 2) {
            const uint64_t* row = seen ? seen + 2 * i + j : nullptr;
            const __mmask16 first = row ? __mmask16(row[0] >> lane) : __mmask16(0xffff);
            const __mmask16 second = row ? __mmask16(row[1] >> lane) : __mmask16(0xffff);
            if constexpr (kLse) sum = Lanes::add(sum, weights.exact(j, first));
            if constexpr (kLse) sum = Lanes::add(sum, weights.exact(j + 1, second));
            const auto pair =
                weights.pair(weights.to_be_cut(j, first), weights.to_be_cut(j + 1, second));
            Pairs::store(p + (i + j / 2) * 32, pair);
        }
    }
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

// Scores of a group of keys for a tile of queries: [16][16] twice.
inline float* scores_of(const DotPanel& panel, int64_t group, int64_t column) {
    return panel.s + (group % kGroupsOfScores * kColumns + column) * kGroup * kTile;
}

// Adjusts the scores of some groups for one tile of queries, and moves references up that they pass
// by more than the slack; calls before() before anything is scaled to the new ones. A row that has
// seen no key yet takes the maximum whatever it is, and has nothing to scale. NaN moves nothing: it
// reaches l and o through the weights.
template <class Before>
inline void settle(const DotPanel& panel, const DotBlock& block, int64_t begin, int64_t end,
                   int64_t column, Before&& before) {
    const int64_t lane = column * kTile;
    const Floats lowest = Lanes::set1(kFarDown), zero = Lanes::set1(0);
    Floats top = lowest;
    for (int64_t key = begin * kGroup; key < end * kGroup; ++key) {
        float* s = scores_of(panel, key / kGroup, column) + key % kGroup * kTile;
        const Floats x = adjusted(panel, block, Lanes::load(s), key, lane);
        Lanes::store(s, x);
        top = Lanes::max(x, top);
    }
    const Floats m = Lanes::load(panel.m + lane);
    const auto fresh = Lanes::both(Lanes::equal(m, lowest), Lanes::greater(top, lowest));
    const auto grows =
        Lanes::either(fresh, Lanes::greater(Lanes::sub(top, m), Lanes::set1(kSlackOfDots)));
    if (!Lanes::any(grows)) return;
    Lanes::store(panel.m + lane, Lanes::select(grows, top, m));
    if (!Lanes::any(Lanes::both(grows, Lanes::greater(m, lowest)))) return;
    before();
    const Floats fall = Lanes::select(grows, Lanes::sub(m, top), zero);
    const Floats factor = Lanes::select(fresh, Lanes::set1(1), exp2<float>(fall));
    const auto scale = [&](float* x) { Lanes::store(x, Lanes::mul(Lanes::load(x), factor)); };
    scale(panel.l + lane);
    for (int64_t e = 0; e <= panel.E; ++e) scale(output_row(panel, e, column));
}

template <bool kLse>
void weigh_groups(const DotPanel& panel, const DotBlock& block, int64_t begin, int64_t end,
                  int64_t column) {
    const Floats zero = Lanes::set1(0), lowest = Lanes::set1(kFarDown);
    const int64_t lane = column * kTile;
    Floats factor = Lanes::set1(float(panel.s_factor)), shift = zero;
    if (!panel.bounded) {
        settle(panel, block, begin, end, column, [] {});
        factor = Lanes::set1(1);
        const Floats m = Lanes::load(panel.m + lane);
        shift = Lanes::select(Lanes::equal(m, lowest), zero, m);
    }
    Floats sum = zero;
    for (int64_t g = begin; g < end; ++g) {
        const float* s = scores_of(panel, g, column);
        uint16_t* p = panel.p + (g * kColumns + column) * kTileSize;
        if (block.visible) {  // again: beside a NaN for a reference, -inf is no hiding place
            weigh<kLse>(s, p, factor, shift, block.visible + g * kGroup, lane, sum);
        } else {
            weigh<kLse>(s, p, factor, shift, nullptr, lane, sum);
        }
    }
    if constexpr (kLse) {
        Lanes::store(panel.l + lane, Lanes::add(Lanes::load(panel.l + lane), sum));
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
                const uint16_t* p = panel.p + (g * kColumns + column) * kTileSize + i / 2 * 32;
                const Pairs::Vec pairs = _mm512_loadu_si512(p);
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
    const int64_t packed = tiles(panel.E, kTile), stride = packed * kTileSize;
    const uint16_t* v = panel.kv.v + block.begin * stride;
    for (int64_t e = 0; e < packed; ++e) {
        Tiles::mix(v + e * kTileSize, stride, panel.p, block.groups,
                   output_row(panel, e * kTile, 0));
    }
    if (panel.E % kTile == 0) {
        Tiles::mix(kOnes.row, 0, panel.p, block.groups, output_row(panel, panel.E, 0));
    }
}

void attend_groups(const DotPanel& panel, const DotBlock& block) {
    const int64_t steps = tiles(panel.D, 32), size = 2 * steps * kTileSize;
    for (int64_t begin = 0; begin < block.groups; begin += kGroupsOfScores) {
        const int64_t left = block.groups - begin;
        const int64_t end = begin + (left < kGroupsOfScores ? left : kGroupsOfScores);
        Tiles::scores(panel.kv.k + (block.begin + begin) * size, end - begin, panel.qt, steps,
                      panel.s);
        for (int64_t column = 0; column < columns_of(panel); ++column) {
            if (panel.wants_lse) {
                weigh_groups<true>(panel, block, begin, end, column);
            } else {
                weigh_groups<false>(panel, block, begin, end, column);
            }
        }
    }
    mix(panel, block);
}

void attend(DotPanel& panel, const DotBlock& block) {
    Tiles::begin();
    if (panel.bounded) return attend_groups(panel, block);
    // References may move with each set of scores: the weights before must have met their values.
    for (int64_t begin = 0; begin < block.groups; begin += kGroupsOfScores) {
        const int64_t left = block.groups - begin, keys = begin * kGroup;
        attend_groups(panel, {block.begin + begin, left < kGroupsOfScores ? left : kGroupsOfScores,
                              block.visible ? block.visible + keys : nullptr,
                              block.bias ? block.bias + keys * kPanel : nullptr});
    }
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

}  // namespace
}  // namespace clearhead
