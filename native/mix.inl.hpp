// Tiles over the rows of a block and the lanes of a panel, and weighted sums of rows.
#pragma once
#include "tile.inl.hpp"

namespace clearhead {
namespace {

// Where a matrix holds Real, the tile reads it in place, whatever its strides. Otherwise `count`
// rows from `begin` on are converted into `scratch`, once per block.
template <class Real>
struct Source {
    const Real* data;
    int64_t row, col;
};

template <class Real>
inline Source<Real> source(const Matrix& m, int64_t begin, int64_t count, int64_t cols,
                           Real* scratch) {
    using S = Simd<Real>;
    if (m.dtype == (sizeof(Real) == 4 ? DType::f32 : DType::f64)) {
        return {static_cast<const Real*>(m.data) + begin * m.row, m.row, m.col};
    }
    for (int64_t i = 0; i < count; ++i) {
        for (int64_t j = 0; j < cols; j += S::kLanes) {
            S::store(scratch + i * cols + j, cols - j, load_row<Real>(m, begin + i, j, cols - j));
        }
    }
    return {scratch, cols, 1};
}

// Calls f(column, number of vectors as a constant) until the rows [begin, end) of the panel are
// covered; `begin` is a multiple of the lanes.
template <class Real, class F>
inline void for_columns(int64_t begin, int64_t end, F f) {
    constexpr int L = Simd<Real>::kLanes, W = Simd<Real>::kTileVecs;
    static_assert(W == 2 || W == 4);
    for (int64_t column = begin; column < end; column += W * L) {
        const int64_t left = (end - column + L - 1) / L;
        if (left >= W) {
            f.template operator()<W>(column);
            continue;
        }
        if constexpr (W > 2) {
            if (left == 3) f.template operator()<3>(column);
            if (left == 2) f.template operator()<2>(column);
        }
        if (left == 1) f.template operator()<1>(column);
    }
}

template <class Real, class F>
inline void for_columns(int64_t rows, F f) {
    for_columns<Real>(0, rows, f);
}

// Calls f(row, number of rows as a constant) for `count` rows, as many as a tile has at a time.
// What is left goes by 4, 2 and 1: single rows have too few sums at once to keep the multipliers
// busy.
template <class Real, class F>
inline void for_rows(int64_t count, F f) {
    constexpr int Rows = Simd<Real>::kTileRows;
    int64_t row = 0;
    for (; row + Rows <= count; row += Rows) f.template operator()<Rows>(row);
    if constexpr (Rows > 4) {
        for (; row + 4 <= count; row += 4) f.template operator()<4>(row);
    }
    if constexpr (Rows > 2) {
        for (; row + 2 <= count; row += 2) f.template operator()<2>(row);
    }
    for (; row < count; ++row) f.template operator()<1>(row);
}

// Rows [from, to) of a block and the lanes [begin, end), from a whole vector on, outside of which
// none sees any of them.
struct Stretch {
    int64_t from, to, begin, end;
};

// Cuts a block into stretches: along a diagonal half of the pairs are hidden, and these steps leave
// out most of them.
template <class Real, class F>
inline void for_stretches(const Block& block, int64_t lanes, F f) {
    constexpr int64_t kStep = 16;
    constexpr int L = Simd<Real>::kLanes;
    if (!block.visible) return f(Stretch{0, block.count, 0, lanes});
    const auto step = [&](int64_t from) {
        const int64_t to = from + kStep < block.count ? from + kStep : block.count;
        uint64_t seen = 0;
        for (int64_t i = from; i < to; ++i) seen |= block.visible[i];
        const int64_t begin = seen ? __builtin_ctzll(seen) / L * L : 0;
        const int64_t end = seen ? (64 - __builtin_clzll(seen) + L - 1) / L * L : 0;
        return Stretch{from, to, begin, end < lanes ? end : lanes};
    };
    for (Stretch now = step(0); now.from < block.count;) {
        Stretch next = {block.count, block.count, 0, 0};
        while (now.to < block.count) {
            next = step(now.to);
            if (next.begin != now.begin || next.end != now.end) break;
            now.to = next.to;
            next.from = next.to;
        }
        f(now);
        now = next;
    }
}

// sums[c, lanes] += sum over the block's rows i of rows[i, c] * p[i, lanes]. The block is summed on
// its own and then added, so that rounding grows with the number of blocks, not of rows.
template <class Real, int Columns, int Vecs>
void mix_tile(const Source<Real>& rows, int64_t count, int64_t c, const Real* p, Real* sums) {
    using S = Simd<Real>;
    Vec<Real> sum[Columns][Vecs];
    clear<Real>(sum);
    multiply<Real, Columns, Vecs>(rows.data + c * rows.col, rows.col, rows.row, count, p, sum);
#pragma GCC unroll 8
    for (int i = 0; i < Columns; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < Vecs; ++j) {
            Real* out = sums + (c + i) * kPanel + j * S::kLanes;
            S::store(out, S::add(S::load(out), sum[i][j]));
        }
    }
}

template <class Real, int Vecs>
void mix_columns(const Source<Real>& rows, int64_t count, int64_t columns, const Real* p,
                 Real* sums) {
    for_rows<Real>(columns, [&]<int Columns>(int64_t c) {
        mix_tile<Real, Columns, Vecs>(rows, count, c, p, sums);
    });
}

template <class Real>
bool all_finite(const Source<Real>& rows, int64_t count, int64_t columns) {
    using S = Simd<Real>;
    constexpr int L = S::kLanes, kAtOnce = 4;  // sums, so that none waits for its last addition
    const Matrix m = {rows.data, rows.row, rows.col, sizeof(Real) == 4 ? DType::f32 : DType::f64};
    const Vec<Real> zero = S::set1(0);
    Vec<Real> sum[kAtOnce] = {zero, zero, zero, zero};
    for (int64_t i = 0; i < count; i += kAtOnce) {
        for (int64_t c = 0; c < columns; c += L) {
            const bool whole = rows.col == 1 && c + L <= columns;
#pragma GCC unroll 4
            for (int j = 0; j < kAtOnce; ++j) {
                const int64_t row = i + j < count ? i + j : i;
                const Vec<Real> x = whole ? S::load(rows.data + row * rows.row + c)
                                          : load_row<Real>(m, row, c, columns - c);
                sum[j] = S::fma(x, zero, sum[j]);
            }
        }
    }
    return S::all(S::equal(S::add(S::add(sum[0], sum[1]), S::add(sum[2], sum[3])), zero));
}

// The same sums where some lanes must not see some rows: 0 * x is not 0 if x is NaN or infinite.
template <class Real>
void mix_visible(const Source<Real>& rows, const Block& block, int64_t columns, int64_t begin,
                 int64_t end, const Real* p, Real* sums) {
    using S = Simd<Real>;
    for (int64_t lane = begin; lane < end; lane += S::kLanes) {
        for (int64_t c = 0; c < columns; ++c) {
            Vec<Real> sum = S::load(sums + c * kPanel + lane);
            for (int64_t i = 0; i < block.count; ++i) {
                const Vec<Real> x = S::set1(rows.data[i * rows.row + c * rows.col]);
                const Vec<Real> more = S::fma(x, S::load(p + i * kPanel + lane), sum);
                sum = S::select(S::bits(block.visible[i] >> lane), more, sum);
            }
            S::store(sums + c * kPanel + lane, sum);
        }
    }
}

// sums[c, lanes] += sum over the block's rows, for the lanes [begin, end).
template <class Real>
void mix(const Source<Real>& rows, const Block& block, int64_t columns, int64_t begin, int64_t end,
         const Real* p, Real* sums) {
    if (block.visible && !all_finite(rows, block.count, columns)) {
        mix_visible(rows, block, columns, begin, end, p, sums);
        return;
    }
    for_columns<Real>(begin, end, [&]<int Vecs>(int64_t lane) {
        mix_columns<Real, Vecs>(rows, block.count, columns, p + lane, sums + lane);
    });
}

}  // namespace
}  // namespace clearhead
