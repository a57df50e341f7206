// Observation of one panel: the weights P = 2^(s - lse) of a block of keys, and what is summed over
// them while they are in cache. One pass, no softmax state: lse is known.
//
// Cost of a key against 64 queries, D = 64, AVX-512: 128 cycles of products, about 24 of 2^x;
// column sums 8, a grid of 16 x 16 cells 10, entropy 2, distances 6, the top 8 of 8192 about 15.
#pragma once
#include "forward.inl.hpp"
#include "largest.inl.hpp"
#include "statistics.inl.hpp"

namespace clearhead {
namespace {

// The rare way from scores in P to weights, for one vector of rows: where the product alone does
// not give the score, or where some score is among the largest of its row.
template <class Real>
void weigh_in_memory(const Panel& panel, const Watch& watch, const Block& block, int64_t key,
                     int64_t keys, int64_t column, bool plain, Real* entropy, Finds<Real>& finds) {
    using S = Simd<Real>;
    Real* p = static_cast<Real*>(panel.p) + key * kPanel + column;
    const Vec<Real> lowest = S::set1(kLowest<Real>);
    if (!plain) {
        adjust<Real>(panel, block, key, keys, column);
        const auto rows = S::bits(rows_of(panel) >> column);
        const Vec<Real> low = S::load(static_cast<const Real*>(watch.low) + column);
        for (int64_t i = 0; i < keys; ++i) {
            const Vec<Real> x = S::sub(S::load(p + i * kPanel), low);
            S::store(p + i * kPanel, S::select(rows, x, lowest));
        }
    }
    Vec<Real> top = lowest;
    for (int64_t i = 0; i < keys; ++i) top = S::max(S::load(p + i * kPanel), top);
    if (watch.largest) {
        Real* largest = static_cast<Real*>(watch.largest) + column;
        S::store(largest, S::max(S::load(largest), top));
    }
    if (watch.top &&
        S::any(S::greater(top, S::load(static_cast<const Real*>(watch.threshold) + column)))) {
        if (watch.top_place) {
            sort_in(watch, p, keys, block.begin + key, column);
        } else {
            find(watch, p, keys, key, column, finds);
        }
    }
    const Vec<Real> floor = S::set1(Exp2<Real>::kLowest);
    Vec<Real> sum = S::load(entropy + column);
    for (int64_t i = 0; i < keys; ++i) {
        const Vec<Real> bits = S::max(floor, S::load(p + i * kPanel)), weight = exp2<Real>(bits);
        S::store(p + i * kPanel, weight);
        sum = S::fma(weight, bits, sum);
    }
    S::store(entropy + column, sum);
}

template <class Real>
__attribute__((noinline)) void settle_known(const Panel& panel, const Watch& watch,
                                            const Block& block, int64_t key, int64_t keys,
                                            int64_t column, int64_t vecs, bool plain, Real* entropy,
                                            Finds<Real>& finds) {
    for (int64_t lane = column; lane < column + vecs * Simd<Real>::kLanes;
         lane += Simd<Real>::kLanes) {
        weigh_in_memory(panel, watch, block, key, keys, lane, plain, entropy, finds);
    }
}

// As `weigh`, against the final lse (in panel.m, +inf for a row that sees no key) instead of a
// running maximum; as there, the accumulators stay in registers.
template <class Real, int Keys, int Vecs>
void weigh_known(const Panel& panel, const Watch& watch, const Block& block, const Source<Real>& k,
                 int64_t key, int64_t column, Real* entropy, Finds<Real>& finds) {
    using S = Simd<Real>;
    constexpr int L = S::kLanes;
    const Real* lse = static_cast<const Real*>(panel.m) + column;
    const Real* low = static_cast<const Real*>(watch.low) + column;
    const Vec<Real> lowest = S::set1(kLowest<Real>);
    const bool plain = panel.cap_factor == 0 && !block.bias;
    Real* p = static_cast<Real*>(panel.p) + key * kPanel + column;

    // Sums start from 0: from lse on, every addition would be rounded as a number of its size.
    Vec<Real> x[Keys][Vecs];
    clear<Real>(x);
    multiply<Real, Keys, Vecs>(k.data + key * k.row, k.row, k.col, panel.D,
                               static_cast<const Real*>(panel.qt) + column, x);
    bool rare = !plain;
    if (plain) {
#pragma GCC unroll 8
        for (int j = 0; j < Vecs; ++j) {
            const Vec<Real> first = S::load(lse + j * L), rest = S::load(low + j * L);
#pragma GCC unroll 8
            for (int i = 0; i < Keys; ++i) x[i][j] = S::sub(S::sub(x[i][j], first), rest);
        }
        if (block.visible || panel.rows < kPanel) {
            const uint64_t rows = rows_of(panel);
#pragma GCC unroll 8
            for (int i = 0; i < Keys; ++i) {
                const uint64_t seen = (block.visible ? block.visible[key + i] & rows : rows);
#pragma GCC unroll 8
                for (int j = 0; j < Vecs; ++j) {
                    x[i][j] = S::select(S::bits(seen >> (column + j * L)), x[i][j], lowest);
                }
            }
        }
        if (watch.largest || watch.top) {
#pragma GCC unroll 8
            for (int j = 0; j < Vecs; ++j) {
                Vec<Real> top = lowest;
#pragma GCC unroll 8
                for (int i = 0; i < Keys; ++i) top = S::max(x[i][j], top);
                Real* largest = static_cast<Real*>(watch.largest) + column + j * L;
                if (watch.largest) S::store(largest, S::max(S::load(largest), top));
                const Real* threshold = static_cast<const Real*>(watch.threshold) + column + j * L;
                if (watch.top) rare |= S::any(S::greater(top, S::load(threshold)));
            }
        }
    }
    if (rare) {
#pragma GCC unroll 8
        for (int i = 0; i < Keys; ++i) {
#pragma GCC unroll 8
            for (int j = 0; j < Vecs; ++j) S::store(p + i * kPanel + j * L, x[i][j]);
        }
        return settle_known(panel, watch, block, key, Keys, column, Vecs, plain, entropy, finds);
    }
    // From here on a weight below the smallest normal number is 0, and 0 log 0 with it.
    const Vec<Real> floor = S::set1(Exp2<Real>::kLowest);
#pragma GCC unroll 8
    for (int j = 0; j < Vecs; ++j) {
        Vec<Real> sum = S::load(entropy + column + j * L);
#pragma GCC unroll 8
        for (int i = 0; i < Keys; ++i) {
            const Vec<Real> bits = S::max(floor, x[i][j]), weight = exp2<Real>(bits);
            S::store(p + i * kPanel + j * L, weight);
            sum = S::fma(weight, bits, sum);
        }
        S::store(entropy + column + j * L, sum);
    }
}

template <class Real>
void observe(Panel& panel, const Watch& watch, const Block& block) {
    constexpr int Keys = Simd<Real>::kTileRows;
    const auto k =
        source<Real>(panel.k, block.begin, block.count, panel.D, static_cast<Real*>(panel.k_rows));
    alignas(64) Real entropy[kPanel] = {};
    Finds<Real> finds = {static_cast<Real*>(watch.found_score),
                         static_cast<Real*>(watch.found_place)};
    for_columns<Real>(panel.rows, [&]<int Vecs>(int64_t column) {
        int64_t key = 0;
        for (; key + Keys <= block.count; key += Keys) {
            weigh_known<Real, Keys, Vecs>(panel, watch, block, k, key, column, entropy, finds);
        }
        for (; key < block.count; ++key) {
            weigh_known<Real, 1, Vecs>(panel, watch, block, k, key, column, entropy, finds);
        }
    });
    list_finds(watch, finds, block.begin);
    const Real* p = static_cast<const Real*>(panel.p);
    if (watch.entropy) {
        for (int64_t r = 0; r < panel.rows; ++r) {
            watch.entropy[r] -= static_cast<double>(entropy[r]);
        }
    }
    for (int64_t i = 0; i < statistics_of(watch); ++i) {
        add_to_statistic(watch, i, block, p, panel.rows);
    }
}

}  // namespace
}  // namespace clearhead
