// The gradient of a panel of 64 keys by instructions for bfloat16. Queries are the rows of a tile,
// keys its lanes:
//
//     S = q k^T    P = 2^(S - lse)    dP = dout v^T    dS = P * (dP - delta)
//     dv^T += dout^T P    dk^T += q^T dS    dq += dS k
//
// dP follows S, 32 by 32 at a time; P and dS of one such square are made while the tiles are at
// work on the next. P is laid out for a sum over queries, dS for sums over queries and over keys:
// the same registers, joined to pairs along the one or along the other. Included after
// sums.inl.hpp.
#pragma once
#include "dots_backward.hpp"
#include "sums.inl.hpp"

namespace clearhead {
namespace {

template <int N>
struct FormOf {
    using Type = Sum<N>;
};
template <>
struct FormOf<1> {
    using Type = Whole;
};

inline float largest(const Matrix& m, int64_t rows, int64_t cols) {
    Pairs::Vec most = Pairs::none();
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < cols; j += kTile) {
            most = Sum<1>::larger(most, load_row<float>(m, i, j, cols - j));
        }
    }
    return Sum<1>::largest(most);
}

template <int N>
void lay_rows(const Matrix& m, int64_t n, int64_t cols, int64_t group, const Laid& out) {
    const int64_t begin = group * kGroup, count = n - begin < kGroup ? n - begin : kGroup;
    const int64_t size = N * kTileSize, bytes = m.dtype == DType::f32 ? 4 : 2;
    const Matrix from = {static_cast<const char*>(m.data) + begin * m.row * bytes, m.row, m.col,
                         m.dtype};
    float unused = 0;
    using Form = typename FormOf<N>::Type;
    pack_keys<Form>(from, count, cols, out.rows + group * 2 * tiles(cols, 32) * size, unused);
    pack_values<Form>(from, count, cols, out.columns + group * tiles(cols, kTile) * size, unused);
}

// Keys j and j + 16 of a group in pairs.
template <class Form>
inline void pack_pairs(const Matrix& k, int64_t keys, int64_t D, uint16_t* to) {
    const int64_t across = 2 * tiles(D, 32);
    Pairs::Vec unused = Pairs::none();
    for (int64_t group = 0; group < tiles(keys, kGroup); ++group) {
        for (int64_t i = 0; i < kTile; ++i) {
            for (int64_t tile = 0; tile < across; ++tile) {
                const int64_t key = group * kGroup + i, d = tile * kTile;
                Pairs::Vec x[Form::kParts] = {};
                if (d < D) Form::two_rows(k, key, key + kTile, keys, d, D - d, x, unused);
                for (int part = 0; part < Form::kParts; ++part) {
                    const int64_t at = (group * Form::kParts + part) * across + tile;
                    Pairs::store(to + at * kTileSize + i * 32, x[part]);
                }
            }
        }
    }
}

template <int N>
void begin_keys(KeyPanel& panel) {
    using Form = typename FormOf<N>::Type;
    pack_lanes<Form>(panel.k, panel.keys, panel.D, panel.kt);
    pack_lanes<Form>(panel.v, panel.keys, panel.E, panel.vt);
    pack_pairs<Form>(panel.k, panel.keys, panel.D, panel.k_pairs);
    const auto clear = [](float* x, int64_t n) {
        for (int64_t i = 0; i < n; i += kTile) Lanes::store(x + i, Lanes::set1(0));
    };
    clear(panel.dkt, panel.D * kPanel);
    clear(panel.dvt, panel.E * kPanel);
    Tiles::begin();
}

// Makes P and dS of a square of 32 queries and 32 keys, a `slots`-th of it at each call.
template <int N>
class Grading {
  public:
    Grading(const KeyPanel& panel, const QueryBlock& block, int64_t slots)
        : panel_(panel),
          block_(block),
          factor_(Lanes::set1(float(panel.s_factor))),
          plain_(panel.cap_factor == 0 && !block.bias),
          keys_there_(panel.keys < kPanel ? (uint64_t{1} << panel.keys) - 1 : ~uint64_t{0}),
          slots_(slots) {}

    void start(int64_t queries, int64_t keys, const float* s, const float* dp) {
        queries_ = queries;
        keys_ = keys;
        s_ = s;
        dp_ = dp;
        pace_.start(0, kPieces);
        pace_.spread(slots_);
    }
    inline __attribute__((always_inline)) void operator()() {
        pace_.some([this](int64_t at) __attribute__((always_inline)) { piece(at); });
    }
    void finish() {
        pace_.rest([this](int64_t at) { piece(at); });
    }

  private:
    static constexpr int64_t kPieces = kTile;  // pairs of queries

    // Two queries and two tiles of keys.
    inline __attribute__((always_inline)) void piece(int64_t at) {
        const int64_t first = 2 * at, lane = keys_ * kGroup;
        Floats x[4], slope[4], w[4];
        __mmask16 seen[4];
        float delta[2], factor[2];
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            const int64_t row = queries_ * kGroup + first + i;
            const int64_t there = row < block_.rows ? row : block_.rows - 1;
            const uint64_t bits = row >= block_.rows ? 0
                                  : block_.visible   ? block_.visible[row] >> lane
                                                     : keys_there_ >> lane;
            delta[i] = block_.delta[there];
            factor[i] = block_.factor[there];
#pragma GCC unroll 2
            for (int b = 0; b < 2; ++b) {
                const Floats s = Lanes::load(s_ + b * 2 * kSquare + (first + i) * kTile);
                const Floats shift = Lanes::set1(block_.shift[there]);
                seen[2 * i + b] = __mmask16(bits >> (b * kTile));
                x[2 * i + b] = plain_
                                   ? Lanes::sub(Lanes::mul(s, factor_), shift)
                                   : adjusted(s, shift, there, lane + b * kTile, slope[2 * i + b]);
            }
        }
        const Weights<4> weights(x);
        Pairs::Vec p[4][N], ds[4][N];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            const int i = j / 2, b = j % 2;
            w[j] = Lanes::mul(weights.exact(j, seen[j]), Lanes::set1(factor[i]));
            const Floats dp = Lanes::load(dp_ + b * 2 * kSquare + (first + i) * kTile);
            // Last: where a statistic is NaN, what the row does not see must still be 0.
            Floats d = Lanes::mul(w[j], Lanes::sub(dp, Lanes::set1(delta[i])));
            if (!plain_ && panel_.cap_factor != 0) d = Lanes::mul(d, slope[j]);
            const Floats zero = Lanes::set1(0);
            Pairs::split_weight(Lanes::select(seen[j], w[j], zero), p[j]);
            Pairs::split(Lanes::select(seen[j], d, zero), ds[j]);
        }
#pragma GCC unroll 3
        for (int part = 0; part < N; ++part) {
#pragma GCC unroll 2
            for (int b = 0; b < 2; ++b) {
                const int64_t tile = (queries_ * N + part) * kColumns + keys_ * 2 + b;
                const int64_t to = tile * kTileSize + at * 32;
                Pairs::store(panel_.p + to, Pairs::join(p[b][part], p[2 + b][part]));
                Pairs::store(panel_.ds + to, Pairs::join(ds[b][part], ds[2 + b][part]));
            }
#pragma GCC unroll 2
            for (int i = 0; i < 2; ++i) {
                const int64_t row = queries_ * kGroup + first + i;
                const int64_t tile = (row / kTile * 2 + keys_) * N + part;
                Pairs::store(panel_.ds_rows + tile * kTileSize + row % kTile * 32,
                             Pairs::join(ds[2 * i][part], ds[2 * i + 1][part]));
            }
        }
    }

    // Scores in log2 units less the shift, where softcap (with its slope) or bias take part.
    Floats adjusted(Floats s, Floats shift, int64_t row, int64_t lane, Floats& slope) const {
        s = Lanes::mul(s, factor_);
        if (panel_.cap_factor != 0) {
            s = tanh<float>(s);
            slope = Lanes::sub(Lanes::set1(1), Lanes::mul(s, s));
            s = Lanes::mul(s, Lanes::set1(float(panel_.cap_factor)));
        }
        if (block_.bias) s = Lanes::add(s, Lanes::load(block_.bias + row * kPanel + lane));
        return Lanes::sub(s, shift);
    }

    const KeyPanel& panel_;
    const QueryBlock& block_;
    Floats factor_;
    bool plain_;
    // Beside a row far below 0, the score 0 of a key that is not there would weigh infinitely much.
    uint64_t keys_there_;
    const int64_t slots_;
    Pace pace_;
    int64_t queries_ = 0, keys_ = 0;
    const float *s_ = nullptr, *dp_ = nullptr;
};

// sums[..][kPanel] += A^T B over the block's queries: A a matrix laid by columns, B P or dS.
template <int N>
inline void add_products(const KeyPanel& panel, const uint16_t* columns, int64_t cols,
                         const uint16_t* weights, int64_t groups, float* sums) {
    const int64_t packed = tiles(cols, kTile);
    auto nothing = [] {};
    using Kept = Order<N, N - 1>;
    for (int64_t pair = 0; pair < tiles(panel.keys, kGroup); ++pair) {
        const Tiles::Factor lanes = {weights + 2 * pair * kTileSize, kTileSize,
                                     kColumns * kTileSize, N * kColumns * kTileSize};
        for (int64_t e = 0; e < packed; e += 2) {
            const Tiles::Factor rows = {columns + e * N * kTileSize, N * kTileSize, kTileSize,
                                        packed * N * kTileSize};
            if (e + 1 < packed) {
                Tiles::multiply<Kept, true>(rows, lanes, groups, panel.fresh, 2 * kSquare, nothing);
            } else {
                Tiles::multiply<Kept, false>(rows, lanes, groups, panel.fresh, 2 * kSquare,
                                             nothing);
            }
            const int64_t left = cols - e * kTile, n = left < 2 * kTile ? left : 2 * kTile;
            float* to = sums + e * kTile * kPanel + 2 * pair * kTile;
            for (int64_t i = 0; i < n; ++i, to += kPanel) {
                add(to, panel.fresh + i * kTile, kTile);
                add(to + kTile, panel.fresh + 2 * kSquare + i * kTile, kTile);
            }
        }
    }
}

template <int N>
void gradient_of_block(KeyPanel& panel, const QueryBlock& block) {
    const int64_t steps = tiles(panel.D, 32), value_steps = tiles(panel.E, 32);
    Grading<N> grading(panel, block, (steps + value_steps) * Order<N, 2>::count());
    const auto multiply = [&](const uint16_t* rows, const uint16_t* lanes, int64_t along,
                              int64_t queries, int64_t keys, float* out) {
        const int64_t size = N * along * kTileSize;
        // Scores are those of the forward pass to the bit: the lse goes with no others where they
        // are large.
        Tiles::multiply<Swapped<Order<N, 2>>, true>(
            {rows + queries * 2 * size, size, along * kTileSize, kTileSize},
            {lanes + 2 * keys * kTileSize, kTileSize, along * kColumns * kTileSize,
             kColumns * kTileSize},
            along, out, 2 * kSquare, grading);
    };
    const int64_t groups = tiles(block.rows, kGroup);
    int64_t turn = 0;
    for (int64_t queries = 0; queries < groups; ++queries) {
        for (int64_t keys = 0; keys < tiles(panel.keys, kGroup); ++keys, ++turn) {
            float* const s = panel.s + turn % 2 * 4 * kSquare;
            float* const dp = panel.dp + turn % 2 * 4 * kSquare;
            multiply(block.q.rows, panel.kt, steps, queries, keys, s);
            multiply(block.dout.rows, panel.vt, value_steps, queries, keys, dp);
            grading.finish();
            grading.start(queries, keys, s, dp);
        }
    }
    grading.finish();
    add_products<N>(panel, block.dout.columns, panel.E, panel.p, groups, panel.dvt);
    add_products<N>(panel, block.q.columns, panel.D, panel.ds, groups, panel.dkt);
}

template <int N>
void gradient_to_rows(const KeyPanel& panel, int64_t rows, float* dq) {
    const int64_t across = 2 * tiles(panel.D, 32), stride = padded(panel.D);
    auto nothing = [] {};
    for (int64_t pair = 0; pair < tiles(rows, kGroup); ++pair) {
        const Tiles::Factor ds = {panel.ds_rows + pair * 4 * N * kTileSize, 2 * N * kTileSize,
                                  kTileSize, N * kTileSize};
        for (int64_t d = 0; d < across; d += 2) {
            const Tiles::Factor k = {panel.k_pairs + d * kTileSize, kTileSize, across * kTileSize,
                                     N * across * kTileSize};
            Tiles::multiply<Order<N, N - 1>, true>(ds, k, tiles(panel.keys, kGroup), panel.fresh,
                                                   2 * kSquare, nothing);
            const int64_t left = rows - pair * kGroup, n = left < kGroup ? left : kGroup;
            float* to = dq + pair * kGroup * stride + d * kTile;
            for (int64_t i = 0; i < n; ++i, to += stride) {
                add(to, panel.fresh + i * kTile, kTile);
                if ((d + 1) * kTile >= stride) continue;
                add(to + kTile, panel.fresh + 2 * kSquare + i * kTile, kTile);
            }
        }
    }
}

template <int N>
constexpr DotsBackward dots_backward() {
    return {.parts = N,
            .largest = largest,
            .lay_rows = lay_rows<N>,
            .begin = begin_keys<N>,
            .block = gradient_of_block<N>,
            .rows = gradient_to_rows<N>,
            .end = Tiles::end};
}

}  // namespace
}  // namespace clearhead
