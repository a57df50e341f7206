// The forward pass of one panel in float32 or float16 by instructions for bfloat16: each number is
// the sum of its parts, and of the products of parts those are formed that float32 would not round
// away. With three parts a product of sums is six products, each with an error below 2^-24 of what
// it stands for.
//
// Weights are made of one group's scores while the tiles are at work on the scores of the next: six
// products leave time for both. Sums of a block stand by themselves, as everywhere, and are then
// added to those before it.
// Included after dots.inl.hpp.
#pragma once
#include "dots.inl.hpp"

namespace clearhead {
namespace {

// The numbers that parts hold to their last bit, or lose below 2^-126 of what counts in sums.
constexpr float kMostSquare = 0x1p120f, kMostValue = 0x1p100f, kLeastValue = 0x1p-80f;
constexpr double kMostFactor = 0x1p30;

inline bool fits(const DotPanel& panel, const Sizes& sizes) {
    return sizes.query <= kMostSquare && sizes.key <= kMostSquare && sizes.value <= kMostValue &&
           (sizes.value >= kLeastValue || sizes.value == 0) &&
           __builtin_fabs(panel.s_factor) <= kMostFactor;
}

template <int N>
bool begin_sums(DotPanel& panel) {
    const Sizes sizes = sizes_of(panel, pack_queries<Sum<N>>(panel));
    if (!fits(panel, sizes)) return false;
    panel.bounded = false;  // a reference costs nothing here
    begin_state(panel);
    for (int64_t r = 0; r < 2 * kPanel; r += kTile) Lanes::store(panel.sums + r, Lanes::set1(0));
    return true;
}

// to += x, over n floats.
inline void add(float* to, const float* x, int64_t n) {
    for (int64_t i = 0; i < n; i += kTile) {
        Lanes::store(to + i, Lanes::add(Lanes::load(to + i), Lanes::load(x + i)));
    }
}

// The sums of weights of a block's groups that have been weighed, and of the group at hand.
inline float* block_sums(const DotPanel& panel) {
    return panel.sums;
}
inline float* group_sums(const DotPanel& panel) {
    return panel.sums + kPanel;
}

// Moves a panel's row of sums to that of a longer stretch of keys.
inline void move_sums(float* from, float* to) {
    add(to, from, kPanel);
    for (int64_t r = 0; r < kPanel; r += kTile) Lanes::store(from + r, Lanes::set1(0));
}

// Work in pieces that is done between products.
class Pace {
  public:
    void start(int64_t begin, int64_t end) {
        at_ = begin;
        end_ = end;
    }
    // What there is still is done in that many calls of some(), a share at each.
    void spread(int64_t slots) {
        pieces_ = end_ - at_;
        slots_ = slots;
        due_ = 0;
    }
    template <class Piece>
    inline __attribute__((always_inline)) void some(Piece piece) {
        for (due_ += pieces_; due_ >= slots_ && at_ < end_; due_ -= slots_) piece(at_++);
    }
    template <class Piece>
    inline __attribute__((always_inline)) void rest(Piece piece) {
        while (at_ < end_) piece(at_++);
    }

  private:
    int64_t at_ = 0, end_ = 0, pieces_ = 0, slots_ = 1, due_ = 0;
};

// Two tiles of queries go together, or all that are there.
constexpr int64_t kPair = 2 * kTile;
inline int64_t pairs_of_columns(const DotPanel& panel) {
    return tiles(panel.rows, kPair);
}

// Pairs of tiles of queries [begin, end): those of a panel from the first that sees some key of a
// group to the last. The others are left out of its products, and have no weights.
struct SeenBy {
    int64_t begin, end;

    bool has(int64_t pair) const { return begin <= pair && pair < end; }
};

inline SeenBy seen_by(const DotPanel& panel, const DotBlock& block, int64_t group) {
    SeenBy by = {0, pairs_of_columns(panel)};
    if (!block.visible) return by;
    uint64_t rows = 0;
    for (int64_t i = 0; i < kGroup; ++i) rows |= block.visible[group * kGroup + i];
    const auto sees = [&](int64_t pair) { return uint32_t(rows >> pair * kPair) != 0; };
    while (by.begin < by.end && !sees(by.begin)) ++by.begin;
    while (by.begin < by.end && !sees(by.end - 1)) --by.end;
    return by;
}

// Makes a group's scores into parts of weights, a share of them at each call.
template <int N>
class Weighing {
  public:
    Weighing(const DotPanel& panel, const DotBlock& block) : panel_(panel), block_(block) {}

    // `factor` and `bias` (or null): what the scores still lack.
    void start(int64_t group, const SeenBy& by, double factor, const float* bias) {
        group_ = group;
        bias_ = bias;
        factor_ = Lanes::set1(float(factor));
        pace_.start(by.begin * kPiecesOfPair, by.end * kPiecesOfPair);
    }
    // How often it will be called before finish().
    void spread(int64_t slots) { pace_.spread(slots); }
    inline __attribute__((always_inline)) void operator()() {
        pace_.some([this](int64_t at) __attribute__((always_inline)) { piece(at); });
    }
    void finish() {
        pace_.rest([this](int64_t at) { piece(at); });
    }

  private:
    static constexpr int64_t kKeys = 4, kPiecesOfPair = kPair / kTile * kGroup / kKeys;

    // Four keys for one tile of queries.
    inline __attribute__((always_inline)) void piece(int64_t at) {
        const int64_t column = at / (kGroup / kKeys), key = at % (kGroup / kKeys) * kKeys;
        const int64_t lane = column * kTile;
        const Floats m = Lanes::load(panel_.m + lane), zero = Lanes::set1(0);
        const Floats shift = Lanes::select(Lanes::equal(m, Lanes::set1(kFarDown)), zero, m);
        const float* scores = scores_of(panel_, group_, column) + key * kTile;
        if (bias_) {  // as settle: the lowest bias swallows a score
            const float* bias = bias_ + (group_ * kGroup + key) * kPanel + lane;
            Floats x[kKeys];
#pragma GCC unroll 4
            for (int i = 0; i < kKeys; ++i) {
                const Floats s = Lanes::load(scores + i * kTile);
                x[i] = Lanes::sub(Lanes::fma(s, factor_, Lanes::load(bias + i * kPanel)), shift);
            }
            split(at, Weights<kKeys>(x));
        } else {
            split(at, Weights<kKeys>(scores, factor_, shift));
        }
    }
    inline __attribute__((always_inline)) void split(int64_t at, const Weights<kKeys>& weights) {
        const int64_t column = at / (kGroup / kKeys), key = at % (kGroup / kKeys) * kKeys;
        const int64_t lane = column * kTile;
        const uint64_t* seen = block_.visible ? block_.visible + group_ * kGroup + key : nullptr;
        uint16_t* out = panel_.p + (group_ * N * kColumns + column) * kTileSize + key / 2 * 32;
        Floats sum = Lanes::load(group_sums(panel_) + lane);
        Pairs::Vec part[kKeys][N];
#pragma GCC unroll 4
        for (int i = 0; i < kKeys; ++i) {
            const Floats w = weights.exact(i, seen ? __mmask16(seen[i] >> lane) : 0xffff);
            sum = Lanes::add(sum, w);
            Pairs::split_weight(w, part[i]);
        }
        Lanes::store(group_sums(panel_) + lane, sum);
#pragma GCC unroll 4
        for (int i = 0; i < kKeys; i += 2) {
#pragma GCC unroll 3
            for (int p = 0; p < N; ++p) {
                Pairs::store(out + p * kColumns * kTileSize + i / 2 * 32,
                             Pairs::join(part[i][p], part[i + 1][p]));
            }
        }
    }

    const DotPanel& panel_;
    const DotBlock& block_;
    Floats factor_;
    const float* bias_ = nullptr;
    Pace pace_;
    int64_t group_ = 0;
};

template <int N, class Between>
inline void score(const DotPanel& panel, const DotBlock& block, int64_t group, const SeenBy& by,
                  Between& between) {
    const int64_t steps = tiles(panel.D, 32), size = N * steps * kTileSize;
    const uint16_t* k = panel.kv.k + (block.begin + group) * 2 * size;
    for (int64_t pair = by.begin; pair < by.end; ++pair) {
        const Tiles::Factor keys = {k, size, steps * kTileSize, kTileSize};
        const Tiles::Factor queries = {panel.qt + 2 * pair * kTileSize, kTileSize,
                                       steps * kColumns * kTileSize, kColumns * kTileSize};
        Tiles::multiply<Order<N, 2>, true>(keys, queries, steps, scores_of(panel, group, 2 * pair),
                                           2 * kSquare, between);
    }
}

// Asks for the next line of what will soon be needed. Done beside the products of weights and
// values, which leave more time than those of queries and keys, beside which the weights are made.
inline void ask(Ahead& ahead) {
    if (ahead.count == 0) return;
    Ahead::Rows& rows = ahead.rows[ahead.count - 1];
    __builtin_prefetch(rows.data + ahead.at, 0, 2);
    ahead.at += 64;
    if (ahead.at < rows.size) return;
    ahead.at = 0;
    rows.data += rows.step;
    if (--rows.count == 0) --ahead.count;
}

// o += what groups [begin, end) of the block give to a pair of tiles of queries.
template <int N>
inline void mix_pair(const DotPanel& panel, const DotBlock& block, int64_t begin, int64_t end,
                     int64_t pair) {
    const int64_t packed = tiles(panel.E, kTile), stride = packed * N * kTileSize;
    const uint16_t* v = panel.kv.v + (block.begin + begin) * stride;
    const Tiles::Factor weights = {panel.p + (begin * N * kColumns + 2 * pair) * kTileSize,
                                   kTileSize, kColumns * kTileSize, N * kColumns * kTileSize};
    auto meanwhile = [ahead = panel.ahead] {
        if (ahead) ask(*ahead);
    };
    for (int64_t e = 0; e < packed; e += 2) {
        const Tiles::Factor values = {v + e * N * kTileSize, N * kTileSize, kTileSize, stride};
        using Kept = Order<N, N - 1>;
        float* out = output_row(panel, e * kTile, 2 * pair);
        if (e + 1 < packed) {
            Tiles::multiply<Kept, true>(values, weights, end - begin, panel.fresh, 2 * kSquare,
                                        meanwhile);
            add(out + kColumns * kSquare, panel.fresh + kSquare, kSquare);
            add(out + (kColumns + 1) * kSquare, panel.fresh + 3 * kSquare, kSquare);
        } else {
            Tiles::multiply<Kept, false>(values, weights, end - begin, panel.fresh, 2 * kSquare,
                                         meanwhile);
        }
        add(out, panel.fresh, kSquare);
        add(out + kSquare, panel.fresh + 2 * kSquare, kSquare);
    }
}

// o and l += what groups [begin, end) of the block give, each to those who see it.
template <int N>
void mix_sums(const DotPanel& panel, const DotBlock& block, const SeenBy* by, int64_t begin,
              int64_t end) {
    for (int64_t pair = 0; pair < pairs_of_columns(panel); ++pair) {
        for (int64_t from = begin, to; from < end; from = to) {
            for (to = from; to < end && by[to].has(pair);) ++to;
            if (from < to) mix_pair<N>(panel, block, from, to, pair);
            while (to < end && !by[to].has(pair)) ++to;
        }
    }
    move_sums(block_sums(panel), panel.l);
}

// Whether some row of those who see a group has no reference yet.
inline bool begins(const DotPanel& panel, const SeenBy& by) {
    bool some = false;
    for (int64_t lane = by.begin * kPair; lane < by.end * kPair; lane += kTile) {
        some |= Lanes::any(Lanes::equal(Lanes::load(panel.m + lane), Lanes::set1(kFarDown)));
    }
    return some;
}

// Whether the reference of some row must move before the weights of the group at hand can stay:
// they are large. Asked of their sums, it costs nothing for each score.
inline bool outgrown(const DotPanel& panel) {
    const Floats most = Lanes::set1(kGroup << int(kSlackOfDots));
    bool some = false;
    for (int64_t lane = 0; lane < panel.rows; lane += kTile) {
        some |= Lanes::any(Lanes::greater(Lanes::load(group_sums(panel) + lane), most));
    }
    return some;
}

template <int N>
void attend_sums(DotPanel& panel, const DotBlock& block) {
    Tiles::begin();
    const int64_t products = tiles(panel.D, 32) * Order<N, 2>::count();
    SeenBy by[kGroupsOfBlock];
    Weighing<N> weighing(panel, block);
    bool settled = false;  // the scores that are being weighed
    int64_t begin = 0;     // of the groups whose weights have not met their values
    // Weights meet their values under the reference that they were made with.
    const auto settle_group = [&](int64_t group) {
        const auto before = [&] {
            if (begin < group) mix_sums<N>(panel, block, by, begin, group);
            begin = group;
        };
        for (int64_t column = 2 * by[group].begin;
             column < 2 * by[group].end && column < columns_of(panel); ++column) {
            settle(panel, block, group, group + 1, column, before);
        }
        settled = true;
        weighing.start(group, by[group], 1, nullptr);
    };
    const auto finish_group = [&](int64_t group) {
        weighing.finish();
        if (!settled && outgrown(panel)) {
            for (int64_t r = 0; r < kPanel; r += kTile) {
                Lanes::store(group_sums(panel) + r, Lanes::set1(0));
            }
            settle_group(group);
            weighing.finish();
        }
        move_sums(group_sums(panel), block_sums(panel));
    };
    for (int64_t group = 0; group < block.groups; ++group) {
        by[group] = seen_by(panel, block, group);
        weighing.spread((by[group].end - by[group].begin) * products);
        score<N>(panel, block, group, by[group], weighing);
        if (group > 0) finish_group(group - 1);
        if (panel.cap_factor != 0 || begins(panel, by[group])) {
            settle_group(group);
        } else {
            settled = false;
            weighing.start(group, by[group], panel.s_factor, block.bias);
        }
    }
    finish_group(block.groups - 1);
    mix_sums<N>(panel, block, by, begin, block.groups);
}

void finish_sums(DotPanel& panel, const Matrix& out) {
    for (int64_t column = 0; column < kColumns; ++column) {
        Lanes::store(output_row(panel, panel.E, column), Lanes::load(panel.l + column * kTile));
    }
    finish(panel, out);
}

}  // namespace
}  // namespace clearhead
