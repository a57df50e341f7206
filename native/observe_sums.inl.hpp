// Observation of one panel whose scores are products of tiles. While the tiles are at work on one
// group's scores, the weights of the group before it are made and summed: of a key against 64
// queries, D = 64, the tiles take some 55 cycles and everything else is done beside them.
// Included after simd_avx512.hpp and a header with `Tiles`.
#pragma once
#include "largest.inl.hpp"
#include "statistics.inl.hpp"
#include "sums.inl.hpp"

namespace clearhead {
namespace {

// Makes a group's scores into weights and adds those up, in pieces of like size. The weights go to
// `panel.p`; or, where only grids want them and no run of keys ends inside four, the sums of four
// and the largest do.
class Looking {
  public:
    Looking(const DotPanel& dots, const DotBlock& block, const Panel& panel, const Watch& watch,
            int64_t first_key, int64_t end)
        : dots_(dots),
          block_(block),
          panel_(panel),
          watch_(watch),
          first_key_(first_key),
          end_(end),
          lse_(static_cast<const float*>(panel.m)),
          low_(static_cast<const float*>(watch.low)),
          weights_(static_cast<float*>(panel.p)),
          sums_(statistics_of(watch)),
          weighings_(columns_of(dots) * kSteps),
          rows_(rows_of(panel)),
          hides_(block.visible || panel.rows < kPanel),
          wants_entropy_(watch.entropy),
          finds_{static_cast<float*>(watch.found_score), static_cast<float*>(watch.found_place)} {}

    // `factor`: what the scores still lack.
    void start(int64_t group, double factor) {
        group_ = group;
        scores_ = scores_of(dots_, group, 0);
        factor_ = Lanes::set1(float(factor));
        for (int64_t lane = 0; lane < kPanel; lane += kTile) {
            Lanes::store(entropy_ + lane, Lanes::set1(0));
        }
        by_fours_ = sums_ == watch_.grid_count && runs_end_by_fours();
        pace_.start(0, weighings_ + (by_fours_ ? 1 : kHalves) * sums_);
    }
    // It is done in that many calls.
    void spread(int64_t slots) { pace_.spread(slots); }
    inline __attribute__((always_inline)) void operator()() {
        pace_.some([this](int64_t at) __attribute__((always_inline)) { piece(at); });
    }
    void finish() {
        pace_.rest([this](int64_t at) { piece(at); });
        list_finds(watch_, finds_, first_key());
        finds_.count = 0;
        if (!wants_entropy_) return;
        for (int64_t r = 0; r < panel_.rows; ++r) {
            watch_.entropy[r] -= static_cast<double>(entropy_[r]);
        }
    }

  private:
    static constexpr int64_t kKeys = kKeysAtOnce, kSteps = kGroup / kKeys, kHalves = kGroup / kTile;

    int64_t first_key() const { return first_key_ + group_ * kGroup; }
    // Keys of the group from its `begin`-th on, at most n of them.
    Block keys(int64_t begin, int64_t n) const {
        const int64_t first = first_key() + begin, left = end_ - first;
        return {first, left < n ? left : n, nullptr, nullptr};
    }

    bool runs_end_by_fours() const {
        const Block block = keys(0, kGroup);
        for (int64_t g = 0; g < watch_.grid_count; ++g) {
            const Grid& grid = watch_.grids[g];
            for (int64_t i = 0; i < block.count;) {
                i = grid.run_end[block.begin + i - grid.first] - block.begin;
                if (i < block.count && i % kKeys != 0) return false;
            }
        }
        return true;
    }

    inline __attribute__((always_inline)) void piece(int64_t at) {
        if (at >= weighings_) return add_up(at - weighings_);
        // Scores lie in this order.
        const uint64_t column = uint64_t(at) / kSteps, step = uint64_t(at) % kSteps;
        weigh(scores_ + at * kKeys * kTile, step * kKeys, column * kTile);
    }

    // Four keys for one tile of queries.
    inline __attribute__((always_inline)) void weigh(const float* scores, int64_t key,
                                                     int64_t lane) {
        const Floats lse = Lanes::load(lse_ + lane);
        const Floats low = Lanes::load(low_ + lane);
        Floats x[kKeys];
#pragma GCC unroll 4
        for (int i = 0; i < kKeys; ++i) {
            // In two roundings, as scores that a reference was taken from: so that huge ones meet.
            const Floats score = Lanes::mul(Lanes::load(scores + i * kTile), factor_);
            x[i] = Lanes::sub(Lanes::sub(score, lse), low);
        }
        if (hides_) {  // also rows that are not there: 0 times a key that is not finite is NaN
            const uint64_t* seen =
                block_.visible ? block_.visible + group_ * kGroup + key : nullptr;
#pragma GCC unroll 4
            for (int i = 0; i < kKeys; ++i) {
                const uint64_t rows = (seen ? seen[i] & rows_ : rows_) >> lane;
                x[i] = Lanes::select(Lanes::bits(rows), x[i], Lanes::set1(kFarDown));
            }
        }
        if (watch_.largest || watch_.top) keep_largest_of(x, key, lane);
        const Weights<kKeys> weight(x);
        Floats w[kKeys];
#pragma GCC unroll 4
        for (int i = 0; i < kKeys; ++i) w[i] = weight.exact(i, 0xffff);
        if (wants_entropy_) {
            Floats sum = Lanes::load(entropy_ + lane);
#pragma GCC unroll 4
            for (int i = 0; i < kKeys; ++i) {
                // A weight below the least number is 0, and 0 log 0 with it.
                sum = Lanes::fma(w[i], Lanes::max(Lanes::set1(kNoWeight), x[i]), sum);
            }
            Lanes::store(entropy_ + lane, sum);
        }
        if (by_fours_) {
            if (sums_ == 0) return;
            float* const sum = weights_ + key / kKeys * kPanel + lane;
            float* const largest = sum + kSteps * kPanel;
            const Floats first = Lanes::add(w[0], w[1]), last = Lanes::add(w[2], w[3]);
            Lanes::store(sum, Lanes::add(first, last));
            const Floats low = Lanes::max(w[0], w[1]), high = Lanes::max(w[2], w[3]);
            Lanes::store(largest, Lanes::max(low, high));
        } else {
            float* const out = weights_ + key * kPanel + lane;
#pragma GCC unroll 4
            for (int i = 0; i < kKeys; ++i) Lanes::store(out + i * kPanel, w[i]);
        }
    }

    inline __attribute__((always_inline)) void keep_largest_of(const Floats (&x)[kKeys],
                                                               int64_t key, int64_t lane) {
        Floats top = x[0];
#pragma GCC unroll 4
        for (int i = 1; i < kKeys; ++i) top = Lanes::max(x[i], top);
        float* const largest = static_cast<float*>(watch_.largest) + lane;
        if (watch_.largest) Lanes::store(largest, Lanes::max(Lanes::load(largest), top));
        const float* const threshold = static_cast<const float*>(watch_.threshold) + lane;
        if (watch_.top && Lanes::any(Lanes::greater(top, Lanes::load(threshold)))) {
            keep(x[0], x[1], x[2], x[3], key, lane);
        }
    }
    // By value: in registers.
    __attribute__((noinline)) void keep(Floats a, Floats b, Floats c, Floats d, int64_t key,
                                        int64_t lane) {
        const Floats x[kKeys] = {a, b, c, d};
        if (watch_.top_place) return sort_in<float>(watch_, x, first_key() + key, lane);
        alignas(64) float p[kKeys * kPanel];
        for (int i = 0; i < kKeys; ++i) Lanes::store(p + i * kPanel, x[i]);
        find(watch_, p, kKeys, key, lane, finds_);
    }

    // One sum over half of the group, or over all of it by fours.
    __attribute__((noinline)) void add_up(int64_t at) {
        if (by_fours_) {
            return add_to_grid<float>(watch_.grids[at], keys(0, kGroup),
                                      {weights_, weights_ + kSteps * kPanel, kKeys}, panel_.rows);
        }
        const int64_t half = at / sums_ * kTile;
        const Block block = keys(half, kTile);
        if (block.count <= 0) return;
        add_to_statistic(watch_, at % sums_, block, weights_ + half * kPanel, panel_.rows);
    }

    static constexpr float kNoWeight = -200;  // log2

    const DotPanel& dots_;
    const DotBlock& block_;
    const Panel& panel_;
    const Watch& watch_;
    const int64_t first_key_, end_;
    const float *const lse_, *const low_;
    float* const weights_;
    const int64_t sums_, weighings_;
    const uint64_t rows_;
    const bool hides_, wants_entropy_;
    Pace pace_;
    Finds<float> finds_;
    Floats factor_;
    const float* scores_;
    alignas(64) float entropy_[kPanel];
    bool by_fours_ = false;
    int64_t group_ = 0;
};

// What is more than a product: scores with everything but lse taken from them.
inline void adjust_group(const DotPanel& panel, const DotBlock& block, int64_t group) {
    for (int64_t column = 0; column < columns_of(panel); ++column) {
        float* s = scores_of(panel, group, column);
        for (int64_t key = 0; key < kGroup; ++key, s += kTile) {
            Lanes::store(
                s, adjusted(panel, block, Lanes::load(s), group * kGroup + key, column * kTile));
        }
    }
}

template <int N>
void observe_sums(const DotPanel& dots, const DotBlock& block, const Panel& panel,
                  const Watch& watch, int64_t first_key, int64_t end) {
    Tiles::begin();
    const int64_t slots = tiles(dots.D, 32) * Order<N, 2>::count();  // of a pair of queries
    const bool plain = dots.cap_factor == 0 && !dots.biased;
    Looking looking(dots, block, panel, watch, first_key, end);
    for (int64_t group = 0; group < block.groups; ++group) {
        const SeenBy by = seen_by(dots, block, group);
        looking.spread((by.end - by.begin) * slots);
        score<N>(dots, block, group, by, looking);
        if (group > 0) looking.finish();
        if (!plain) adjust_group(dots, block, group);
        looking.start(group, plain ? dots.s_factor : 1);
    }
    looking.finish();
    Tiles::end();
}

}  // namespace
}  // namespace clearhead
