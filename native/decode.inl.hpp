// Few query rows against many keys, as in decoding with a cache: the rows of all heads of a group
// together, so that each key and value is read once. A panel's lanes are queries, of which there
// are too few here; a strip's run along D, and 16 dot products (4 rows with 4 keys, of AVX-512) are
// summed across their lanes at once; in the sum over values they run along E.
//
// Traffic of a strip: (D + E) elements a key, once; 2 rows (D + E) operations for them. At 4 rows
// and float32 that is an eighth of the multiply-adds that the memory leaves time for, so that the
// goal is the memory's speed.
#pragma once
#include "tile.inl.hpp"

namespace clearhead {
namespace {

// How a strip's vector of scores is laid out: lane r * kKeys + i is row r with key i of a tile.
template <class Real, int Wanted>
struct StripTile {
    static constexpr int kLanes = Simd<Real>::kLanes;
    static constexpr int kRows = Wanted < kLanes ? Wanted : kLanes;
    static constexpr int kKeys = kLanes / kRows;
    // Vectors of values that are summed at once: two thirds of the registers hold sums.
    static constexpr int kSums = Simd<Real>::kTileRows * Simd<Real>::kTileVecs * 2 / 3;
    static constexpr int kColumns = kSums / kRows < 8 ? kSums / kRows : 8;

    // Bits of rows, 0 to kRows - 1, moved to the lanes of key 0.
    static constexpr auto kSpread = [] {
        struct {
            uint64_t lanes[1 << kRows];
        } table = {};
        for (int word = 0; word < 1 << kRows; ++word) {
            for (int r = 0; r < kRows; ++r) {
                table.lanes[word] |= uint64_t(word >> r & 1) << (r * kKeys);
            }
        }
        return table;
    }();
};

// A strip's work grows by rows, four at a time; a panel's by vectors of them, of which the first is
// slow for want of sums. At D = 128 a strip of 4, 8 and 12 rows takes 19, 36 and 52 ns a key, a
// panel of up to 16 takes 61 (AVX-512); with AVX2, 36, 67 and 96 beside 52 for 8. The scalar strip
// never wins.
template <class Real>
constexpr int64_t strip_rows() {
    constexpr int64_t lanes = Simd<Real>::kLanes;
    return lanes >= 8 ? lanes * 3 / 4 / 4 * 4 : lanes / 2;
}

template <DType kStored>
constexpr int64_t kBytes = kStored == DType::f64   ? 8
                           : kStored == DType::f32 ? 4
                                                   : 2;

// Rows that are asked for a line at a time beside the arithmetic on as many others: while keys are
// at work their values, and meanwhile the next block's keys. So the memory never rests. Many lines
// asked for at once would fill the few buffers that the loads of the rows at work need too.
template <DType kStored>
struct Asked {
    static constexpr int64_t kLine = 64;
    uintptr_t start;
    int64_t step;
    int halved;  // of 2^halved rows one is asked for

    // `rows` rows of m from `first` on, or its last before `end`. Groups of queries, 1 to 3, that
    // work on the same keys share them out.
    Asked(const Matrix& m, int64_t first, int64_t rows, int64_t end, int64_t group, int64_t groups)
        : step(m.row * kBytes<kStored>), halved(groups > 1) {
        const int64_t row = first + (group * rows >> halved), last = end - rows;
        const int64_t from = row < last ? row : last;
        start = reinterpret_cast<uintptr_t>(m.data) + (from > 0 ? from : 0) * step;
    }

    // The line of row i where its element `at` lies.
    inline __attribute__((always_inline)) void line(int64_t i, int64_t at) const {
        __builtin_prefetch(
            reinterpret_cast<const void*>(start + (i >> halved) * step + at * kBytes<kStored>));
    }
    // The rest of `rows` rows.
    void rest(int64_t rows, int64_t from, int64_t to) const {
        for (; from < to; from += kLine / kBytes<kStored>) {
            for (int64_t i = 0; i < rows; ++i) line(i, from);
        }
    }
};

// Scores of `keys` keys from `key` on with the rows of a group, as lanes. Meanwhile asks for rows
// of E elements.
template <class Real, DType kStored, int Wanted>
inline __attribute__((always_inline)) Vec<Real> strip_scores(const Matrix& k, const Real* q,
                                                             int64_t D, int64_t key, int64_t keys,
                                                             const Asked<kStored>& asked,
                                                             int64_t E) {
    using S = Simd<Real>;
    using Tile = StripTile<Real, Wanted>;
    constexpr int L = S::kLanes, Rows = Tile::kRows, Keys = Tile::kKeys;
    constexpr int64_t kOfLine = Asked<kStored>::kLine / kBytes<kStored>;
    constexpr bool kWhole = L >= kOfLine;  // a vector reads a line or more
    const int64_t stride = padded(D);
    int64_t start[Keys];  // beyond the last key: that key again
    for (int i = 0; i < Keys; ++i) start[i] = (key + (i < keys ? i : keys - 1)) * k.row;
    Vec<Real> sum[L];
#pragma GCC unroll 16
    for (int n = 0; n < L; ++n) sum[n] = S::set1(0);
    const auto step = [&](int64_t d, int64_t n) __attribute__((always_inline)) {
        Vec<Real> x[Keys];
#pragma GCC unroll 16
        for (int i = 0; i < Keys; ++i) {
            x[i] = load_contiguous<Real>(k.data, kStored, start[i] + d, n);
            if (kWhole || d % kOfLine == 0) asked.line(i, d);
        }
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
            const Vec<Real> y = S::load(q + r * stride + d);
#pragma GCC unroll 16
            for (int i = 0; i < Keys; ++i) sum[r * Keys + i] = S::fma(x[i], y, sum[r * Keys + i]);
        }
    };
    int64_t d = 0;
    for (; d + L <= D; d += L) step(d, L);
    if (d < D) step(d, D - d);
    asked.rest(Keys, D, E);
    return S::template fold_each<S::add>(sum);
}

// What the mask and the end of the block leave of a tile, as bits of its lanes.
template <class Real, int Wanted>
inline uint64_t strip_seen(const Block& block, int64_t key, int64_t row) {
    using Tile = StripTile<Real, Wanted>;
    uint64_t seen = 0;
    for (int64_t i = 0; i < Tile::kKeys && key + i < block.count; ++i) {
        const uint64_t rows = block.visible ? block.visible[key + i] >> row : ~uint64_t{0};
        seen |= Tile::kSpread.lanes[rows & ((1 << Tile::kRows) - 1)] << i;
    }
    return seen;
}

template <class Real, int Wanted>
inline Vec<Real> strip_bias(const Block& block, int64_t key, int64_t row) {
    using Tile = StripTile<Real, Wanted>;
    const Real* bias = static_cast<const Real*>(block.bias);
    Real lanes[Tile::kLanes] = {};
    for (int64_t i = 0; i < Tile::kKeys && key + i < block.count; ++i) {
        for (int r = 0; r < Tile::kRows; ++r) {
            lanes[r * Tile::kKeys + i] = bias[(key + i) * kPanel + row + r];
        }
    }
    return Simd<Real>::load(lanes);
}

// The block's scores into strip.s, [group of rows][tile of keys][lane], and their maxima by lane.
template <class Real, DType kStored, int Wanted>
void strip_score_block(const Strip& strip, const Block& block, const Matrix& k, const Matrix& v,
                       Vec<Real>* top) {
    using S = Simd<Real>;
    using Tile = StripTile<Real, Wanted>;
    const Vec<Real> factor = S::set1(Real(strip.s_factor)), cap = S::set1(Real(strip.cap_factor));
    const Vec<Real> lowest = S::set1(-__builtin_inff());
    const int64_t stride = padded(strip.D), groups = (strip.rows + Tile::kRows - 1) / Tile::kRows;
    for (int64_t g = 0; g < groups; ++g) top[g] = lowest;
    for (int64_t key = 0; key < block.count; key += Tile::kKeys) {
        const int64_t keys = block.count - key;
        for (int64_t g = 0; g < groups; ++g) {
            const int64_t row = g * Tile::kRows;
            const Real* q = static_cast<const Real*>(strip.q) + row * stride;
            const Asked<kStored> values(v, key, Tile::kKeys, block.count, g, groups);
            Vec<Real> s =
                strip_scores<Real, kStored, Wanted>(k, q, strip.D, key, keys, values, strip.E);
            s = S::mul(s, factor);
            if (strip.cap_factor != 0) s = S::mul(tanh<Real>(s), cap);
            if (block.bias) s = S::add(s, strip_bias<Real, Wanted>(block, key, row));
            if (block.visible || keys < Tile::kKeys) {
                s = S::select(S::bits(strip_seen<Real, Wanted>(block, key, row)), s, lowest);
            }
            top[g] = S::max(s, top[g]);  // keeps its second operand beside a NaN
            S::store(static_cast<Real*>(strip.s) + row * kBlock + key * Tile::kRows, s);
        }
    }
}

// Moves the references of the rows from `row` on up to the block's maxima, rescales what they have
// gathered, and returns the references by lane, 0 for a row that has seen no key.
template <class Real, int Wanted>
Vec<Real> strip_raise(const Strip& strip, int64_t row, Vec<Real> top) {
    using S = Simd<Real>;
    using Tile = StripTile<Real, Wanted>;
    Real* m = static_cast<Real*>(strip.m) + row;
    Real* l = static_cast<Real*>(strip.l) + row;
    Real tops[Tile::kLanes], old[Tile::kLanes], now[Tile::kLanes];
    S::store(tops, top);
    bool moves = false;
    for (int r = 0; r < Tile::kRows; ++r) {
        Real most = m[r];
        for (int i = 0; i < Tile::kKeys; ++i) {
            most = tops[r * Tile::kKeys + i] > most ? tops[r * Tile::kKeys + i] : most;
        }
        for (int i = 0; i < Tile::kKeys; ++i) {
            old[r * Tile::kKeys + i] = m[r];
            now[r * Tile::kKeys + i] = most;
        }
        moves |= most != m[r];
        m[r] = most;
    }
    const Vec<Real> lowest = S::set1(-__builtin_inff()), after = S::load(now);
    if (moves) {
        const Vec<Real> before = S::load(old);
        Real factor[Tile::kLanes];
        S::store(factor, S::select(S::equal(before, lowest), S::set1(1),
                                   exp2<Real>(S::sub(before, after))));
        for (int r = 0; r < Tile::kRows; ++r) {
            const Real by = factor[r * Tile::kKeys];
            l[r] *= by;
            Real* o = static_cast<Real*>(strip.o) + (row + r) * padded(strip.E);
            for (int64_t e = 0; e < strip.E; e += Tile::kLanes) {
                S::store(o + e, S::mul(S::load(o + e), S::set1(by)));
            }
        }
    }
    return S::select(S::equal(after, lowest), S::set1(0), after);
}

// Scores to weights, in place, and their sums into l.
template <class Real, int Wanted>
void strip_weigh(const Strip& strip, const Block& block, const Vec<Real>* top) {
    using S = Simd<Real>;
    using Tile = StripTile<Real, Wanted>;
    for (int64_t row = 0; row < strip.rows; row += Tile::kRows) {
        const Vec<Real> shift = strip_raise<Real, Wanted>(strip, row, top[row / Tile::kRows]);
        Real* s = static_cast<Real*>(strip.s) + row * kBlock;
        Vec<Real> sum = S::set1(0);
        for (int64_t key = 0; key < block.count; key += Tile::kKeys, s += Tile::kLanes) {
            const Vec<Real> p = exp2<Real>(S::sub(S::load(s), shift));
            S::store(s, p);
            sum = S::add(sum, p);
        }
        Real sums[Tile::kLanes];
        S::store(sums, sum);
        for (int r = 0; r < Tile::kRows; ++r) {
            Real total = 0;
            for (int i = 0; i < Tile::kKeys; ++i) total += sums[r * Tile::kKeys + i];
            static_cast<Real*>(strip.l)[row + r] += total;
        }
    }
}

// o[r, c..] += sum over the block's keys of their weights p times v[.., c..], of n columns. The
// block is summed on its own first, so that rounding grows with the number of blocks, not of keys.
// Meanwhile asks for the same columns of the keys after the block's, as far as they are before
// `end`.
template <class Real, DType kStored, int Wanted, int Columns>
inline __attribute__((always_inline)) void strip_mix_tile(const Strip& strip, const Matrix& v,
                                                          int64_t count, int64_t row, int64_t c,
                                                          int64_t n, const Matrix& k, int64_t end) {
    using S = Simd<Real>;
    using Tile = StripTile<Real, Wanted>;
    constexpr int L = S::kLanes, Rows = Tile::kRows, Keys = Tile::kKeys;
    const Real* p = static_cast<const Real*>(strip.s) + row * kBlock;
    const int64_t groups = (strip.rows + Rows - 1) / Rows;
    Vec<Real> sum[Rows][Columns];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
        for (int j = 0; j < Columns; ++j) sum[r][j] = S::set1(0);
    }
    constexpr int kOfLine = Asked<kStored>::kLine / kBytes<kStored>;
    const auto add = [&](const Real* weights, int64_t key, const Asked<kStored>& asked,
                         int i) __attribute__((always_inline)) {
        const int64_t from = key * v.row + c;
        Vec<Real> x[Columns];
#pragma GCC unroll 16
        for (int j = 0; j < Columns; ++j) {
            x[j] = load_contiguous<Real>(v.data, kStored, from + j * L, Columns == 1 ? n : L);
            if (j * L % kOfLine == 0) asked.line(i, c + j * L);
        }
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
            const Vec<Real> weight = S::set1(weights[r * Keys]);
#pragma GCC unroll 16
            for (int j = 0; j < Columns; ++j) sum[r][j] = S::fma(weight, x[j], sum[r][j]);
        }
    };
    int64_t key = 0;
    for (; key + Keys <= count; key += Keys) {
        const Asked<kStored> asked(k, count + key, Keys, end, row / Rows, groups);
#pragma GCC unroll 16
        for (int i = 0; i < Keys; ++i) add(p + key * Rows + i, key + i, asked, i);
    }
    const Asked<kStored> asked(k, count + key, Keys, end, row / Rows, groups);
    for (int64_t i = 0; key + i < count; ++i) add(p + key * Rows + i, key + i, asked, i);
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
        for (int j = 0; j < Columns; ++j) {
            Real* o = static_cast<Real*>(strip.o) + (row + r) * padded(strip.E) + c + j * L;
            S::store(o, S::add(S::load(o), sum[r][j]));
        }
    }
}

// Asks for the next block's keys meanwhile.
template <class Real, DType kStored, int Wanted>
void strip_mix(const Strip& strip, const Matrix& k, const Matrix& v, int64_t count, int64_t end) {
    using Tile = StripTile<Real, Wanted>;
    constexpr int L = Tile::kLanes, Columns = Tile::kColumns;
    // All rows take one stretch of columns after another: its values stay in the nearest cache.
    const auto rows = [&]<int N>(int64_t c) {
        for (int64_t row = 0; row < strip.rows; row += Tile::kRows) {
            strip_mix_tile<Real, kStored, Wanted, N>(strip, v, count, row, c, strip.E - c, k, end);
        }
    };
    int64_t c = 0;
    for (; c + Columns * L <= strip.E; c += Columns * L) rows.template operator()<Columns>(c);
    for (; c < strip.E; c += L) rows.template operator()<1>(c);
    if (strip.D <= strip.E) return;
    for (int64_t key = 0; key < count; key += Tile::kKeys) {
        Asked<kStored>(k, count + key, Tile::kKeys, end, 0, 1).rest(Tile::kKeys, strip.E, strip.D);
    }
}

// The same where some rows must not see some keys: 0 * x is not 0 if x is NaN or infinite.
template <class Real, int Wanted>
void strip_mix_visible(const Strip& strip, const Matrix& v, const Block& block) {
    using S = Simd<Real>;
    using Tile = StripTile<Real, Wanted>;
    for (int64_t r = 0; r < strip.rows; ++r) {
        const Real* p = static_cast<const Real*>(strip.s) + r / Tile::kRows * Tile::kRows * kBlock +
                        r % Tile::kRows * Tile::kKeys;
        Real* o = static_cast<Real*>(strip.o) + r * padded(strip.E);
        for (int64_t key = 0; key < block.count; ++key) {
            if (!(block.visible[key] >> r & 1)) continue;
            const Real weight = p[key / Tile::kKeys * Tile::kLanes + key % Tile::kKeys];
            for (int64_t e = 0; e < strip.E; e += Tile::kLanes) {
                const Vec<Real> x = load_row<Real>(v, key, e, strip.E - e);
                S::store(o + e, S::fma(S::set1(weight), x, S::load(o + e)));
            }
        }
    }
}

// out[i][j] = m[i][j] in Real, for i < rows and j < cols; 0 up to a padded row.
template <class Real>
void copy_rows(const Matrix& m, int64_t rows, int64_t cols, void* out) {
    using S = Simd<Real>;
    const int64_t stride = padded(cols);
    for (int64_t i = 0; i < rows; ++i) {
        Real* row = static_cast<Real*>(out) + i * stride;
        for (int64_t j = 0; j < stride; j += S::kLanes) {
            S::store(row + j, j < cols ? load_row<Real>(m, i, j, cols - j) : S::set1(0));
        }
    }
}

// The block's rows as they lie, else, where a row is not contiguous, copied into `scratch`.
template <class Real>
Matrix strip_source(const Matrix& m, const Block& block, int64_t cols, void* scratch) {
    const int64_t start = block.begin * m.row;
    const int64_t size = m.dtype == DType::f64 ? 8 : m.dtype == DType::f32 ? 4 : 2;
    const Matrix here = {static_cast<const char*>(m.data) + start * size, m.row, m.col, m.dtype};
    if (m.col == 1) return here;
    copy_rows<Real>(here, block.count, cols, scratch);
    return {scratch, padded(cols), 1, sizeof(Real) == 4 ? DType::f32 : DType::f64};
}

template <class Real, DType kStored, int Wanted>
void strip_block(const Strip& strip, const Block& block, const Matrix& k, const Matrix& v) {
    Vec<Real> top[kStripRows];
    strip_score_block<Real, kStored, Wanted>(strip, block, k, v, top);
    strip_weigh<Real, Wanted>(strip, block, top);
    const auto finite = [&] {
        for (int64_t i = 0; i < block.count; ++i) {
            for (int64_t e = 0; e < strip.E; e += Simd<Real>::kLanes) {
                using S = Simd<Real>;
                const Vec<Real> x =
                    load_contiguous<Real>(v.data, kStored, i * v.row + e, strip.E - e);
                const Vec<Real> zero = S::set1(0);
                const auto ok = S::to_bits(S::equal(S::mul(x, zero), zero));
                if (ok != S::to_bits(S::equal(zero, zero))) return false;
            }
        }
        return true;
    };
    if (block.visible && !finite()) {
        strip_mix_visible<Real, Wanted>(strip, v, block);
    } else {
        const bool copied = k.data == strip.k_rows;
        strip_mix<Real, kStored, Wanted>(strip, k, v, block.count,
                                         copied ? block.count : strip.end - block.begin);
    }
}

template <class Real, DType kStored>
void strip_block_of(const Strip& strip, const Block& block, const Matrix& k, const Matrix& v) {
    if (strip.rows == 1) {
        strip_block<Real, kStored, 1>(strip, block, k, v);
    } else if (strip.rows == 2) {
        strip_block<Real, kStored, 2>(strip, block, k, v);
    } else {
        strip_block<Real, kStored, 4>(strip, block, k, v);
    }
}

template <class Real>
void strip_attend(const Strip& strip, const Block& block) {
    const Matrix k = strip_source<Real>(strip.k, block, strip.D, strip.k_rows);
    const Matrix v = strip_source<Real>(strip.v, block, strip.E, strip.v_rows);
    if constexpr (sizeof(Real) == 8) {
        return strip_block_of<Real, DType::f64>(strip, block, k, v);
    } else if (k.dtype != v.dtype) {  // one of them was copied: so is the other
        Matrix pair[2] = {k, v};
        for (Matrix& m : pair) {
            if (m.dtype == DType::f32) continue;
            void* scratch = &m == pair ? strip.k_rows : strip.v_rows;
            const int64_t cols = &m == pair ? strip.D : strip.E;
            copy_rows<Real>(m, block.count, cols, scratch);
            m = {scratch, padded(cols), 1, DType::f32};
        }
        strip_block_of<Real, DType::f32>(strip, block, pair[0], pair[1]);
    } else if (k.dtype == DType::f32) {
        strip_block_of<Real, DType::f32>(strip, block, k, v);
    } else if (k.dtype == DType::f16) {
        strip_block_of<Real, DType::f16>(strip, block, k, v);
    } else {
        strip_block_of<Real, DType::bf16>(strip, block, k, v);
    }
}

// One row's states of `count` shards of the keys, in their order, and its sink, to one: the law of
// the monoid. A state that has seen no key has m = -inf and l and o 0, or NaN, which must survive:
// its factor is 1. Factors take the place of m. Writes the row of `out`, and (m, l) into `total`.
template <class Real>
void merge_row(const RowStates& states, int64_t row, double sink, const Matrix& out, void* total) {
    using S = Simd<Real>;
    Real* first = static_cast<Real*>(states.data) + row;
    const int64_t count = states.count, size = states.size();
    const Real lowest = -__builtin_inff();
    // An infinite sink would divide inf by inf: NaN, as of any score. Beside it every key's factor
    // is NaN, and a row that sees none still gives 0.
    const Real own = sink == -lowest ? Real(__builtin_nanf("")) : Real(sink);
    const bool has_sink = own != lowest;
    Real top = own;
    for (int64_t i = 0; i < count; ++i) top = first[i * size] > top ? first[i * size] : top;
    const auto factor = [&](Real m) {
        if (m == lowest) return Real(1);
        Real lanes[S::kLanes];
        S::store(lanes, exp2<Real>(S::set1(m - top)));
        return lanes[0];
    };
    Real l = !has_sink ? 0 : own == own ? factor(own) : Real(1);
    for (int64_t i = 0; i < count; ++i) {
        Real& m = first[i * size];
        m = factor(m);
        l += m * first[i * size + states.rows];
    }
    const Vec<Real> share = l == 0 ? S::set1(0) : S::div(S::set1(1), S::set1(l));
    const Real* o = first - row + 2 * states.rows + row * padded(states.E);
    for (int64_t e = 0; e < states.E; e += S::kLanes) {
        Vec<Real> sum = S::set1(0);
        for (int64_t i = 0; i < count; ++i) {
            sum = S::fma(S::set1(first[i * size]), S::load(o + i * size + e), sum);
        }
        store_row<Real>(out, 0, e, states.E - e, S::mul(sum, share));
    }
    static_cast<Real*>(total)[0] = top;
    static_cast<Real*>(total)[1] = l;
}

}  // namespace
}  // namespace clearhead
