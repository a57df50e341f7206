// What is summed over the weights P of a panel while they are in cache: by columns, over the cells
// of a grid, by distance.
#pragma once
#include "mix.inl.hpp"
#include "watch.hpp"

namespace clearhead {
namespace {

// The rows that are there, as bits.
inline uint64_t rows_of(const Panel& panel) {
    return panel.rows < kPanel ? (uint64_t{1} << panel.rows) - 1 : ~uint64_t{0};
}

// Adds up to `n` Reals to doubles.
template <class Real>
inline void add_to(double* sum, const Real* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) sum[i] += static_cast<double>(x[i]);
}

// Raises up to `n` Reals to x. NaN raises nothing.
template <class Real>
inline void raise(Real* most, const Real* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) most[i] = x[i] > most[i] ? x[i] : most[i];
}

// column_sum[c][s] += sum over rows of weights[c][row] P[s][row]. Of a vector of keys, whose last
// may be beyond the block's: what stands there is summed as well, and left.
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
            for (Vec<Real>& x : square) x = S::set1(0);
            for (int64_t r = 0; r < rows; r += L) {
                const Vec<Real> weight = w ? S::load(w + r) : S::set1(1);
                const Real* x = p + key * kPanel + r;
                for (int u = 0; u < L; ++u) {
                    square[u] = S::fma(S::load(x + u * kPanel), weight, square[u]);
                }
            }
            S::store(sums, S::template fold_each<S::add>(square));
            const int64_t left = block.count - key;
            add_to(watch.column_sum + c * watch.S + block.begin + key, sums, left < L ? left : L);
        }
    }
}

// Folds the rows of each slot, add or max, of a vector of rows for each of L runs: out[slot][run].
template <class Real, Vec<Real> (*Fold)(Vec<Real>, Vec<Real>)>
inline void fold_slots(const Grid& grid, int64_t row, int64_t rows,
                       Vec<Real> (&x)[Simd<Real>::kLanes], Real* out) {
    using S = Simd<Real>;
    constexpr int L = S::kLanes;
    const auto put = [&](int8_t slot, Vec<Real> y) {
        if (slot >= 0) S::store(out + slot * L, Fold(S::load(out + slot * L), y));
    };
    const int8_t* slot = grid.slot + row;
    if (rows - row >= L && slot[0] >= 0 && slot[0] == slot[L - 1])
        return put(slot[0], S::template fold_each<Fold>(x));
    S::transpose(x);
    for (int lane = 0; lane < L && row + lane < rows;) {
        const int8_t own = slot[lane];
        Vec<Real> y = x[lane];
        for (++lane; lane < L && row + lane < rows && slot[lane] == own; ++lane)
            y = Fold(y, x[lane]);
        put(own, y);
    }
}

// Adds the runs that wait to the grid: sums down the rows of a slot, then double.
template <class Real, bool Largest>
__attribute__((noinline)) void add_runs(Grid& grid, int64_t rows) {
    using S = Simd<Real>;
    constexpr int L = S::kLanes;
    alignas(64) Real sum[kPanel * L], largest[kPanel * L];
    const int64_t n = grid.pending;
    for (int64_t at = 0; at < grid.slots * L; ++at) sum[at] = largest[at] = 0;
    for (int64_t r = 0; r < rows; r += L) {
        Vec<Real> x[L];
        const auto take = [&](const void* pending) {
            const Real* own = static_cast<const Real*>(pending) + r;
            for (int u = 0; u < L; ++u) x[u] = u < n ? S::load(own + u * kPanel) : S::set1(0);
        };
        take(grid.pending_sum);
        fold_slots<Real, S::add>(grid, r, rows, x, sum);
        if constexpr (Largest) {
            take(grid.pending_largest);
            fold_slots<Real, S::max>(grid, r, rows, x, largest);
        }
    }
    bool consecutive = n == L;
    for (int64_t u = 1; u < n; ++u) {
        consecutive &= grid.pending_label[u] == grid.pending_label[0] + u;
    }
    for (int64_t slot = 0; slot < grid.slots; ++slot) {
        const Real *x = sum + slot * L, *y = largest + slot * L;
        double* const sums_out = grid.sum[slot];
        Real* const largest_out = static_cast<Real*>(grid.largest[slot]);
        if (consecutive) {
            const int64_t label = grid.pending_label[0];
            add_to(sums_out + label, x, L);
            if constexpr (Largest) raise(largest_out + label, y, L);
            continue;
        }
        for (int64_t u = 0; u < n; ++u) {
            add_to(sums_out + grid.pending_label[u], x + u, 1);
            if constexpr (Largest) raise(largest_out + grid.pending_label[u], y + u, 1);
        }
    }
    grid.pending = 0;
}

// How many keys one waiting run may sum in Real.
constexpr int64_t kRunKeys = 1024;

// The weights of a block, [..][kPanel], key by key; or the sums and the largest of `keys` that
// follow each other, where no run of a grid ends between them.
template <class Real>
struct Weighed {
    const Real *sum, *largest;
    int64_t keys;
};

// One grid's share of a block: its runs of keys, summed down for each row of the panel.
template <class Real, bool Largest>
void gather_runs(Grid& grid, const Block& block, const Weighed<Real>& weighed, int64_t rows) {
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
            const int64_t start = (from - block.begin) / weighed.keys * kPanel + column;
            const Real *x = weighed.sum + start, *y = weighed.largest + start;
            Vec<Real> sum[Vecs], most[Vecs];
#pragma GCC unroll 8
            for (int j = 0; j < Vecs; ++j) sum[j] = most[j] = S::set1(0);
            for (int64_t key = 0; key < keys; key += weighed.keys, x += kPanel, y += kPanel) {
#pragma GCC unroll 8
                for (int j = 0; j < Vecs; ++j) {
                    sum[j] = S::add(sum[j], S::load(x + j * L));
                    if constexpr (Largest) most[j] = S::max(most[j], S::load(y + j * L));
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

template <class Real>
void add_to_grid(Grid& grid, const Block& block, const Weighed<Real>& weighed, int64_t rows) {
    if (grid.slots == 0) return;
    if (grid.largest[0]) return gather_runs<Real, true>(grid, block, weighed, rows);
    gather_runs<Real, false>(grid, block, weighed, rows);
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

// How many of these sums are wanted.
inline int64_t statistics_of(const Watch& watch) {
    return (watch.columns > 0) + watch.grid_count + (watch.distances > 0);
}

// Adds the weights `p` of a block to the i-th of them.
template <class Real>
void add_to_statistic(const Watch& watch, int64_t i, const Block& block, const Real* p,
                      int64_t rows) {
    if (watch.columns > 0 && i-- == 0) return sum_columns(watch, block, p, rows);
    if (i == watch.grid_count) return sum_distances(watch, block, p, rows);
    add_to_grid<Real>(watch.grids[i], block, {p, p, 1}, rows);
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
