// Observation of one panel: the weights P = 2^(s - lse) of a block of keys, and what is summed over
// them while they are in cache. One pass, no softmax state: lse is known.
//
// Cost of a key against 64 queries, D = 64, AVX-512: 128 cycles of products, about 24 of 2^x;
// column sums 8, a grid of 16 x 16 cells 10, entropy 2, distances 6, the top 8 of 8192 about 15.
#pragma once
#include "forward.inl.hpp"
#include "watch.hpp"

namespace clearhead {
namespace {

// An integer of a Real's size: what its bits hold of a key.
template <class Real>
struct BitsOf;
template <>
struct BitsOf<float> {
    using Type = int32_t;
};
template <>
struct BitsOf<double> {
    using Type = int64_t;
};

// Few of the largest: `top` levels of a vector each, sorted down, so that 16 rows take in a key at
// once: at every level the larger of two stays and the smaller goes on. Of equals the one that came
// first stays. A key is carried as the bits of a Real.
template <class Real>
void sort_in(const Watch& watch, const Real* x, int64_t keys, int64_t begin, int64_t column) {
    using S = Simd<Real>;
    Real* scores = static_cast<Real*>(watch.top_score) + column;
    Real* places = static_cast<Real*>(watch.top_place) + column;
    const Real* least = scores + (watch.top - 1) * kPanel;
    for (int64_t i = 0; i < keys; ++i) {
        Vec<Real> score = S::load(x + i * kPanel);
        if (!S::any(S::greater(score, S::load(least)))) continue;
        Vec<Real> place = S::set1(__builtin_bit_cast(Real, typename BitsOf<Real>::Type(begin + i)));
        for (int64_t at = 0; at < watch.top * kPanel; at += kPanel) {
            const Vec<Real> old = S::load(scores + at), old_place = S::load(places + at);
            const auto larger = S::greater(score, old);
            S::store(scores + at, S::select(larger, score, old));
            S::store(places + at, S::select(larger, place, old_place));
            score = S::select(larger, old, score);
            place = S::select(larger, old_place, place);
        }
    }
}

// Many of the largest: each row has a list of twice the length, and now and then drops its lower
// half. The k-th largest of n > k scores, which it reorders: Hoare's quickselect.
template <class Real>
Real kth_largest(Real* x, int64_t n, int64_t k) {
    int64_t low = 0, high = n - 1;
    while (low < high) {
        const Real pivot = x[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (x[i] > pivot) ++i;
            while (pivot > x[j]) --j;
            if (i > j) break;
            const Real swapped = x[i];
            x[i++] = x[j];
            x[j--] = swapped;
        }
        if (k - 1 <= j) {
            high = j;
        } else if (k - 1 >= i) {
            low = i;
        } else {
            break;
        }
    }
    return x[k - 1];
}

// A row's list is full: keeps its `top` largest scores in their order, which is that of the keys,
// so that of equals the lower keys stay; the least of them is what the next must pass.
template <class Real>
__attribute__((noinline)) void keep_largest(const Watch& watch, int64_t row) {
    Real* score = static_cast<Real*>(watch.top_score) + row * watch.top_room;
    Real* spare = static_cast<Real*>(watch.top_spare);
    int64_t* keys = watch.top_key + row * watch.top_room;
    const int64_t n = watch.top_count[row];
    for (int64_t i = 0; i < n; ++i) spare[i] = score[i];
    const Real least = kth_largest(spare, n, watch.top);
    int64_t equals = watch.top, kept = 0;
    for (int64_t i = 0; i < n; ++i) equals -= score[i] > least;
    for (int64_t i = 0; i < n; ++i) {
        if (score[i] < least || (score[i] == least && equals-- <= 0)) continue;
        score[kept] = score[i];
        keys[kept++] = keys[i];
    }
    watch.top_count[row] = kept;
    static_cast<Real*>(watch.threshold)[row] = least;
}

// Scores of a block that pass their row's threshold, each with the place it has in P.
template <class Real>
struct Finds {
    Real *score, *place;
    int64_t count = 0;
};

template <class Real>
void find(const Watch& watch, const Real* x, int64_t keys, int64_t key, int64_t column,
          Finds<Real>& finds) {
    using S = Simd<Real>;
    alignas(64) static constexpr Real kCount[] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                  8, 9, 10, 11, 12, 13, 14, 15};
    const Vec<Real> lane = S::load(kCount);
    const Vec<Real> threshold = S::load(static_cast<const Real*>(watch.threshold) + column);
    for (int64_t i = 0; i < keys; ++i) {
        const Vec<Real> score = S::load(x + i * kPanel);
        const auto passes = S::greater(score, threshold);
        const Vec<Real> first = S::set1(Real((key + i) * kPanel + column));
        S::compress(finds.place + finds.count, passes, S::add(first, lane));
        finds.count += S::compress(finds.score + finds.count, passes, score);
    }
}

// Finds go to their rows' lists. Keys come in order, and only a strictly larger score passes.
template <class Real>
void list_finds(const Watch& watch, const Finds<Real>& finds, int64_t begin) {
    for (int64_t i = 0; i < finds.count; ++i) {
        const int64_t place = static_cast<int64_t>(finds.place[i]), row = place % kPanel;
        const int64_t at = row * watch.top_room + watch.top_count[row]++;
        static_cast<Real*>(watch.top_score)[at] = finds.score[i];
        watch.top_key[at] = begin + place / kPanel;
        if (watch.top_count[row] == watch.top_room) keep_largest<Real>(watch, row);
    }
}

inline uint64_t rows_of(const Panel& panel) {
    return panel.rows < kPanel ? (uint64_t{1} << panel.rows) - 1 : ~uint64_t{0};
}

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
    const Vec<Real> zero = S::set1(0), lowest = S::set1(kLowest<Real>);
    const bool plain = panel.cap_factor == 0 && !block.bias;
    Real* p = static_cast<Real*>(panel.p) + key * kPanel + column;

    Vec<Real> x[Keys][Vecs];
#pragma GCC unroll 8
    for (int j = 0; j < Vecs; ++j) {
        const Vec<Real> start = plain ? S::sub(zero, S::load(lse + j * L)) : zero;
#pragma GCC unroll 8
        for (int i = 0; i < Keys; ++i) x[i][j] = start;
    }
    multiply<Real, Keys, Vecs>(k.data + key * k.row, k.row, k.col, panel.D,
                               static_cast<const Real*>(panel.qt) + column, x);
    bool rare = !plain;
    if (plain) {
#pragma GCC unroll 8
        for (int j = 0; j < Vecs; ++j) {
            const Vec<Real> rest = S::load(low + j * L);
#pragma GCC unroll 8
            for (int i = 0; i < Keys; ++i) x[i][j] = S::sub(x[i][j], rest);
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

// Adds up to `n` Reals to doubles.
template <class Real>
inline void add_to(double* sum, const Real* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) sum[i] += static_cast<double>(x[i]);
}

// column_sum[c][s] += sum over rows of weights[c][row] P[s][row]. Lanes of L keys are turned into
// one vector of L sums.
template <class Real>
void sum_columns(const Watch& watch, const Block& block, const Real* p, int64_t rows) {
    using S = Simd<Real>;
    constexpr int L = S::kLanes;
    alignas(64) Real sums[L];
    for (int64_t c = 0; c < watch.columns; ++c) {
        const Real* w =
            watch.weights ? static_cast<const Real*>(watch.weights) + c * kPanel : nullptr;
        for (int64_t key = 0; key < block.count; key += L) {
            Vec<Real> square[L];
            for (int u = 0; u < L; ++u) {
                square[u] = S::set1(0);
                if (key + u >= block.count) continue;
                for (int64_t r = 0; r < rows; r += L) {
                    const Vec<Real> x = S::load(p + (key + u) * kPanel + r);
                    square[u] = w ? S::fma(x, S::load(w + r), square[u]) : S::add(x, square[u]);
                }
            }
            S::transpose(square);
            for (int half = L / 2; half > 0; half /= 2) {
                for (int u = 0; u < half; ++u) square[u] = S::add(square[u], square[u + half]);
            }
            S::store(sums, square[0]);
            const int64_t left = block.count - key;
            add_to(watch.column_sum + c * watch.S + block.begin + key, sums, left < L ? left : L);
        }
    }
}

// Adds the runs that wait to the grid: a transpose, sums down the rows of a slot, then double.
template <class Real, bool Largest>
__attribute__((noinline)) void add_runs(Grid& grid, int64_t rows) {
    using S = Simd<Real>;
    constexpr int L = S::kLanes;
    alignas(64) Real sum[kPanel * L], largest[kPanel * L];
    const Real* sums = static_cast<const Real*>(grid.pending_sum);
    const Real* maxima = static_cast<const Real*>(grid.pending_largest);
    const int64_t n = grid.pending;
    for (int64_t at = 0; at < grid.slots * L; ++at) sum[at] = largest[at] = 0;
    for (int64_t r = 0; r < rows; r += L) {
        Vec<Real> total[L], most[L];
        for (int u = 0; u < L; ++u) {
            total[u] = u < n ? S::load(sums + u * kPanel + r) : S::set1(0);
            if constexpr (Largest) most[u] = u < n ? S::load(maxima + u * kPanel + r) : S::set1(0);
        }
        S::transpose(total);
        if constexpr (Largest) S::transpose(most);
        for (int lane = 0; lane < L && r + lane < rows;) {
            const int8_t slot = grid.slot[r + lane];
            Vec<Real> x = total[lane], y = S::set1(0);
            if constexpr (Largest) y = most[lane];
            for (++lane; lane < L && r + lane < rows && grid.slot[r + lane] == slot; ++lane) {
                x = S::add(x, total[lane]);
                if constexpr (Largest) y = S::max(y, most[lane]);
            }
            if (slot < 0) continue;
            S::store(sum + slot * L, S::add(S::load(sum + slot * L), x));
            if constexpr (Largest) {
                S::store(largest + slot * L, S::max(S::load(largest + slot * L), y));
            }
        }
    }
    bool consecutive = true;
    for (int64_t u = 1; u < n; ++u) {
        consecutive &= grid.pending_label[u] == grid.pending_label[0] + u;
    }
    for (int64_t slot = 0; slot < grid.slots; ++slot) {
        const Real* x = sum + slot * L;
        if (consecutive) {
            add_to(grid.sum[slot] + grid.pending_label[0], x, n);
        } else {
            for (int64_t u = 0; u < n; ++u) {
                grid.sum[slot][grid.pending_label[u]] += static_cast<double>(x[u]);
            }
        }
        if constexpr (Largest) {
            Real* out = static_cast<Real*>(grid.largest[slot]);
            for (int64_t u = 0; u < n; ++u) {
                Real& cell = out[grid.pending_label[u]];
                cell = largest[slot * L + u] > cell ? largest[slot * L + u] : cell;
            }
        }
    }
    grid.pending = 0;
}

// How many keys one waiting run may sum in Real.
constexpr int64_t kRunKeys = 1024;

// One grid's share of a block: its runs of keys, summed down for each row of the panel.
template <class Real, bool Largest>
void gather_runs(Grid& grid, const Block& block, const Real* p, int64_t rows) {
    using S = Simd<Real>;
    constexpr int L = S::kLanes;
    const int64_t end = block.begin + block.count;
    for (int64_t from = block.begin, to; from < end; from = to) {
        const int64_t run_end = grid.run_end[from - grid.first];
        to = run_end < end ? run_end : end;
        const int64_t label = grid.label[from - grid.first], keys = to - from;
        if (label < 0) continue;
        int64_t at = grid.pending - 1;
        const bool joins =
            at >= 0 && grid.pending_label[at] == label && grid.pending_keys[at] + keys <= kRunKeys;
        if (joins) {
            grid.pending_keys[at] += keys;
        } else {
            if (grid.pending == L) add_runs<Real, Largest>(grid, rows);
            at = grid.pending++;
            grid.pending_label[at] = label;
            grid.pending_keys[at] = keys;
        }
        for_columns<Real>(rows, [&]<int Vecs>(int64_t column) {
            Real* sums = static_cast<Real*>(grid.pending_sum) + at * kPanel + column;
            Real* maxima = static_cast<Real*>(grid.pending_largest) + at * kPanel + column;
            const Real* x = p + (from - block.begin) * kPanel + column;
            Vec<Real> sum[Vecs], most[Vecs];
#pragma GCC unroll 8
            for (int j = 0; j < Vecs; ++j) sum[j] = most[j] = S::set1(0);
            for (int64_t key = 0; key < keys; ++key) {
#pragma GCC unroll 8
                for (int j = 0; j < Vecs; ++j) {
                    const Vec<Real> weight = S::load(x + key * kPanel + j * L);
                    sum[j] = S::add(sum[j], weight);
                    if constexpr (Largest) most[j] = S::max(most[j], weight);
                }
            }
#pragma GCC unroll 8
            for (int j = 0; j < Vecs; ++j) {
                if (joins) sum[j] = S::add(sum[j], S::load(sums + j * L));
                S::store(sums + j * L, sum[j]);
                if constexpr (Largest) {
                    if (joins) most[j] = S::max(most[j], S::load(maxima + j * L));
                    S::store(maxima + j * L, most[j]);
                }
            }
        });
    }
}

// distance[d] += the block's weights of keys d places before their query. Key i and row r of the
// block lie on the diagonal r - i; in memory its cells are kPanel + 1 apart, so L neighbouring
// diagonals are L lanes of an unaligned load, the ends cut off where a row is outside the panel.
template <class Real>
void sum_distances(const Watch& watch, const Block& block, const Real* p, int64_t rows) {
    using S = Simd<Real>;
    constexpr int L = S::kLanes;
    const int64_t d0 = watch.position - block.begin;  // the distance on diagonal 0
    int64_t from = 1 - block.count, to = rows;
    if (from < -d0) from = -d0;
    if (to > watch.distances - d0) to = watch.distances - d0;
    alignas(64) Real sums[L];
    for (int64_t c = from; c < to; c += L) {
        Vec<Real> sum = S::set1(0);
        int64_t i = c < 1 - L ? 1 - L - c : 0;
        for (; i < block.count && i + c < rows; ++i) {
            const int64_t row = i + c;
            Vec<Real> x = S::load(p + i * kPanel + row);
            if (row < 0) x = S::select(S::bits(~uint64_t{0} << -row), x, S::set1(0));
            if (row > rows - L) {
                x = S::select(S::bits((uint64_t{1} << (rows - row)) - 1), x, S::set1(0));
            }
            sum = S::add(sum, x);
        }
        S::store(sums, sum);
        add_to(watch.distance + d0 + c, sums, to - c < L ? to - c : L);
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
    sum_columns(watch, block, p, panel.rows);
    for (int64_t g = 0; g < watch.grid_count; ++g) {
        Grid& grid = watch.grids[g];
        if (grid.slots == 0) continue;
        if (grid.largest[0]) {
            gather_runs<Real, true>(grid, block, p, panel.rows);
        } else {
            gather_runs<Real, false>(grid, block, p, panel.rows);
        }
    }
    if (watch.distances > 0) sum_distances(watch, block, p, panel.rows);
}

template <class Real>
void observe_end(Panel& panel, const Watch& watch) {
    for (int64_t g = 0; g < watch.grid_count; ++g) {
        Grid& grid = watch.grids[g];
        if (grid.slots == 0 || grid.pending == 0) continue;
        if (grid.largest[0]) {
            add_runs<Real, true>(grid, panel.rows);
        } else {
            add_runs<Real, false>(grid, panel.rows);
        }
    }
}

}  // namespace
}  // namespace clearhead
