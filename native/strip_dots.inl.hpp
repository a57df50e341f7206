// Few query rows in bfloat16, the products by tiles: S = K Q^T, weights, O += P V. The 16 queries
// of a tile cost what one does, so grouped heads and short prompts come almost free, and what is
// left to wait for is the memory.
//
// Nothing is packed. Keys are the product's first operand, which takes rows as they lie. Values are
// the second, which wants pairs of keys side by side; what lies there are pairs of columns. So the
// weights make up for it: (p, 0) against a pair of columns gives the even one, (0, p) the odd one.
// That is twice the products, of which up to 8 rows need none more, as a tile has room for both.
//
// Weights are rounded for their product, and so is the sum that divides it (see dots.inl.hpp); the
// lse has its own.
//
// Traffic: each key and value once for all rows; S, P and O stay in the first cache.
// Included after dots.inl.hpp and a header with `StripTiles`.
#pragma once
#include "dots.inl.hpp"
#include "strip_dots.hpp"

namespace clearhead {
namespace {

inline int64_t columns_of(const DotStrip& strip) {
    return tiles(strip.rows, kTile);
}
inline int64_t steps_of(const DotStrip& strip) {
    return tiles(strip.D, 32);
}
inline int64_t stripes_of(const DotStrip& strip) {
    return tiles(strip.E, 32);
}
// Whether rows stand twice in their tile, in lanes r and r + 8.
inline bool is_doubled(const DotStrip& strip) {
    return strip.rows <= kTile / 2;
}
inline int64_t halves_of(const DotStrip& strip) {
    return is_doubled(strip) ? 1 : 2;
}
inline uint32_t* weights_from(const DotStrip& strip, int64_t column, int64_t half) {
    return strip.p + (2 * column + half) * kPiece * kTile;
}
inline float* outputs_from(const DotStrip& strip, int64_t column, int64_t half) {
    return strip.o + (2 * column + half) * stripes_of(strip) * kSquare;
}

// Rows of values, then of the next piece's keys, that are asked for some at a time while others are
// at work: all at once they would keep the loads of those waiting, and the memory would rest while
// none are asked for.
struct RowsAhead {
    static constexpr int64_t kAtOnce = 2;

    const char* row;
    int64_t step, size, left;

    // `count` rows from `begin` on of `cols` elements, as far as there are any.
    RowsAhead(const DotStrip& strip, const Matrix& m, int64_t begin, int64_t count, int64_t cols)
        : row(static_cast<const char*>(m.data) + begin * m.row * 2),
          step(m.row * 2),
          size(2 * cols),
          left(begin + count < strip.end ? count : strip.end - begin) {
        if (m.col != 1) left = 0;
    }
    inline __attribute__((always_inline)) void ask(int64_t rows) {
        for (; rows > 0 && left > 0; --rows, --left, row += step) {
            for (int64_t at = 0; at < size; at += 64) __builtin_prefetch(row + at);
        }
    }
};

template <class Form>
bool begin_strip(const DotStrip& strip) {
    Tiles::begin();
    const int64_t steps = steps_of(strip), columns = columns_of(strip);
    const bool doubled = Form::kParts == 1 && is_doubled(strip);
    for (int64_t column = 0; column < columns; ++column) {
        for (int64_t step = 0; step < steps; ++step) {
            Floats square[Form::kParts][kTile], squares = Lanes::set1(0);
            for (int64_t i = 0; i < kTile; ++i) {
                const int64_t row = column * kTile + (doubled ? i % (kTile / 2) : i);
                Pairs::Vec x[Form::kParts] = {};
                if (row < strip.rows) {
                    Form::row(strip.q_rows, row, step * 32, strip.D - step * 32, x, squares);
                }
                for (int part = 0; part < Form::kParts; ++part) {
                    square[part][i] = _mm512_castsi512_ps(x[part]);
                }
            }
            for (int part = 0; part < Form::kParts; ++part) {
                Lanes::transpose(square[part]);
                uint16_t* out = strip.q + ((part * steps + step) * columns + column) * kTileSize;
                for (int64_t i = 0; i < kTile; ++i) {
                    Pairs::store(out + i * 32, _mm512_castps_si512(square[part][i]));
                }
            }
        }
        const int64_t lane = column * kTile;
        Lanes::store(strip.m + lane, Lanes::set1(kFarDown));
        Lanes::store(strip.l + lane, Lanes::set1(0));
        Lanes::store(strip.rounded + lane, Lanes::set1(0));
    }
    float* end = outputs_from(strip, columns, 0);
    for (float* o = strip.o; o < end; o += kTile) Lanes::store(o, Lanes::set1(0));
    return true;
}

inline int64_t whole(const Block& piece) {
    return tiles(piece.count, kGroup) * kGroup;
}

// Rows of a piece as products take them: as they lie, if they are whole, else copied, and zero
// beyond the last and beyond their columns.
struct Rows {
    const uint16_t* data;
    int64_t stride;  // bytes

    Rows(const Matrix& m, const Block& piece, int64_t cols, uint16_t* scratch) {
        data = static_cast<const uint16_t*>(m.data) + piece.begin * m.row;
        stride = m.row * 2;
        if (m.col == 1 && cols % 32 == 0 && piece.count % kGroup == 0) return;
        const Matrix from = {data, m.row, m.col, m.dtype};
        const int64_t steps = tiles(cols, 32);
        for (int64_t i = 0; i < whole(piece); ++i) {
            for (int64_t step = 0; step < steps; ++step) {
                const Pairs::Vec x = i < piece.count
                                         ? Pairs::load_row(from, i, step * 32, cols - step * 32)
                                         : Pairs::none();
                Pairs::store(scratch + (i * steps + step) * 32, x);
            }
        }
        data = scratch;
        stride = steps * 64;
    }
};

inline void score_piece(const DotStrip& strip, const Block& piece, RowsAhead& ahead) {
    const int64_t columns = columns_of(strip), steps = steps_of(strip);
    const Rows k(strip.k, piece, strip.D, strip.k_rows);
    const auto between = [&] { ahead.ask(RowsAhead::kAtOnce); };
    for (int64_t key = 0; key < whole(piece); key += kGroup) {
        const uint16_t* from = k.data + key * (k.stride / 2);
        const uint16_t* q = strip.q;
        float* s = strip.s + key * kTile;
        int64_t column = 0;
        for (; column + 2 <= columns; column += 2, q += 2 * kTileSize, s += 2 * kPiece * kTile) {
            StripTiles::scores<2>(from, k.stride, q, columns, steps, s, between);
        }
        if (column < columns) StripTiles::scores<1>(from, k.stride, q, columns, steps, s, between);
    }
}

// -- weights

// A column's scores where keys have weights of their own: scores, rows that stand twice.
struct Column {
    int64_t lane;  // of its first row
    float* s;
    bool doubled;
};

inline Column column_of(const DotStrip& strip, int64_t column) {
    return {column * kTile, strip.s + column * kPiece * kTile, is_doubled(strip)};
}

// Scores that the product alone does not give: factor, softcap, bias and mask, written.
inline void adjust_scores(const DotStrip& strip, const Block& piece, const uint64_t* seen,
                          const Column& column) {
    const Floats factor = Lanes::set1(float(strip.s_factor)), lowest = Lanes::set1(kFarDown);
    const float* bias = static_cast<const float*>(piece.bias);
    float* s = column.s;
    for (int64_t key = 0; key < whole(piece); ++key, s += kTile) {
        Floats x = Lanes::mul(Lanes::load(s), factor);
        if (strip.cap_factor != 0) {
            x = Lanes::mul(tanh<float>(x), Lanes::set1(float(strip.cap_factor)));
        }
        if (bias && key < piece.count) {
            Floats b = Lanes::load(bias + key * kPanel + column.lane);
            if (column.doubled) b = _mm512_shuffle_f32x4(b, b, 0x44);
            x = Lanes::add(x, b);
        }
        if (seen) x = Lanes::select(Lanes::bits(seen[key] >> column.lane), x, lowest);
        Lanes::store(s, x);
    }
}

// Where rows stand twice, two keys fit in a vector: keys i and i + 4 in row i of every 8.
inline void fold_scores(const DotStrip& strip, int64_t keys) {
    float* s = strip.s;
    for (int64_t key = 0; key < keys; key += 8, s += 8 * kTile) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            const Floats first = Lanes::load(s + i * kTile);
            Lanes::store(s + i * kTile, _mm512_mask_loadu_ps(first, 0xff00, s + (i + 4) * kTile));
        }
    }
}

inline Floats swapped(Floats x) {
    return _mm512_shuffle_f32x4(x, x, 0x4e);
}

// Moves the references of a column's rows up to the piece's maxima, rescales what the rows have
// gathered, and returns the references, 0 for a row that has seen no key. NaN moves nothing: it
// reaches l and o through the weights.
inline Floats raise_strip(const DotStrip& strip, int64_t keys, Floats factor,
                          const Column& column) {
    const Floats lowest = Lanes::set1(kFarDown), zero = Lanes::set1(0);
    const int64_t lane = column.lane, step = column.doubled ? 8 : 4;
    const float* s = column.s;
    Floats top[4] = {lowest, lowest, lowest, lowest};
    for (int64_t key = 0; key < keys; key += step, s += step * kTile) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            top[i] = Lanes::max(Lanes::mul(Lanes::load(s + i * kTile), factor), top[i]);
        }
    }
    Floats most = Lanes::max(Lanes::max(top[0], top[1]), Lanes::max(top[2], top[3]));
    if (column.doubled) most = Lanes::max(most, swapped(most));
    const Floats old = Lanes::load(strip.m + lane);
    const Floats now = Lanes::max(most, old);
    if (Lanes::any(Lanes::greater(now, old))) {
        float by[kTile];
        const Floats fall = Lanes::select(Lanes::equal(old, lowest), Lanes::set1(1),
                                          exp2<float>(Lanes::sub(old, now)));
        Lanes::store(by, fall);
        Lanes::store(strip.m + lane, now);
        float* const sums[] = {strip.l + lane, strip.rounded + lane};
        for (float* sum : sums) Lanes::store(sum, Lanes::mul(Lanes::load(sum), fall));
        float* o = outputs_from(strip, lane / kTile, 0);
        const int64_t rows = (column.doubled ? 1 : 2) * stripes_of(strip) * kTile;
        for (int64_t i = 0; i < rows; ++i, o += kTile) {
            Lanes::store(o, Lanes::mul(Lanes::load(o), Lanes::set1(by[i % kTile])));
        }
    }
    return Lanes::select(Lanes::equal(now, lowest), zero, now);
}

// Four vectors of scores to weights, rounded to bfloat16, and their sums. A NaN may be lost by the
// rounding, but stays in the sum, by which the row is scaled in the end.
inline void weigh_four(const float* s, Floats factor, Floats shift, const __mmask16* seen,
                       Floats& sum, Floats& rounded, Floats* weights, RowsAhead& ahead) {
    const __m512i half = _mm512_set1_epi32(0x8000), kept = _mm512_set1_epi32(int(0xffff0000));
    const Weights<4> four(s, factor, shift);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
        ahead.ask(RowsAhead::kAtOnce);
        const Floats exact = four.exact(j, seen[j]);
        const __m512i up = _mm512_add_epi32(_mm512_castps_si512(exact), half);
        weights[j] = _mm512_castsi512_ps(_mm512_and_si512(up, kept));
        rounded = Lanes::add(rounded, weights[j]);
        sum = Lanes::add(sum, exact);
    }
}

// Weights of 16 keys by query, as halves of pairs: rounded, they are the upper half of a float.
inline void put_weights(const Floats* weights, int rows, uint32_t* even, uint32_t* odd) {
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
        const Pairs::Vec x = _mm512_castps_si512(weights[i]);
        Pairs::store(even + i * kTile, _mm512_srli_epi32(x, 16));
        Pairs::store(odd + i * kTile, x);
    }
}

// Lanes r and r + 8 of w[i] hold keys i and i + 4, from i = 4 on keys i + 4 and i + 8. Afterwards
// w[r] holds all 16 of row r.
inline void transpose_folded(Floats (&w)[8]) {
    Floats t[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 4) {
        const Floats a = _mm512_unpacklo_ps(w[i], w[i + 1]), b = _mm512_unpackhi_ps(w[i], w[i + 1]);
        const Floats c = _mm512_unpacklo_ps(w[i + 2], w[i + 3]);
        const Floats d = _mm512_unpackhi_ps(w[i + 2], w[i + 3]);
        t[i] = _mm512_shuffle_ps(a, c, 0x44), t[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm512_shuffle_ps(b, d, 0x44), t[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        w[i] = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88);
        w[i + 4] = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
    }
}

template <bool kDoubled, bool kHides>
inline void weigh_column(const DotStrip& strip, const Block& piece, const uint64_t* seen,
                         int64_t column, RowsAhead& ahead) {
    constexpr int kVectors = kDoubled ? 8 : 16;
    const int64_t lane = column * kTile, keys = whole(piece);
    const Column scores = column_of(strip, column);
    Floats factor = Lanes::set1(float(strip.s_factor));
    if (strip.cap_factor != 0 || piece.bias || kHides) {
        adjust_scores(strip, piece, kHides ? seen : nullptr, scores);
        factor = Lanes::set1(1);
    }
    if constexpr (kDoubled) fold_scores(strip, keys);
    const Floats shift = raise_strip(strip, keys, factor, scores);
    Floats sum = Lanes::set1(0), rounded = sum;
    for (int64_t key = 0; key < keys; key += kTile) {
        const float* s = scores.s + key * kTile;
        Floats weights[kVectors];
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; i += 4) {
            const int64_t at = kDoubled ? 2 * i : i;
            __mmask16 own[4] = {0xffff, 0xffff, 0xffff, 0xffff};
            // Again: beside a NaN for a reference, -inf is no hiding place.
            for (int j = 0; kHides && j < 4; ++j) {
                const uint64_t* rows = seen + key + at + j;
                own[j] = kDoubled ? __mmask16((rows[0] & 0xff) | (rows[4] & 0xff00))
                                  : __mmask16(rows[0] >> lane);
            }
            weigh_four(s + at * kTile, factor, shift, own, sum, rounded, weights + i, ahead);
        }
        uint32_t* even = weights_from(strip, column, 0) + key * kTile;
        if constexpr (kDoubled) {
            transpose_folded(weights);
            put_weights(weights, 8, even, even + 8 * kTile);
        } else {
            Lanes::transpose(weights);
            put_weights(weights, kTile, even, weights_from(strip, column, 1) + key * kTile);
        }
    }
    const auto add = [&](float* to, Floats x) {
        if constexpr (kDoubled) x = Lanes::add(x, swapped(x));
        Lanes::store(to, Lanes::add(Lanes::load(to), x));
    };
    add(strip.l + lane, sum);
    add(strip.rounded + lane, rounded);
}

inline void weigh_piece(const DotStrip& strip, const Block& piece, const uint64_t* seen,
                        RowsAhead& ahead) {
    if (is_doubled(strip)) {
        (seen ? weigh_column<true, true> : weigh_column<true, false>)(strip, piece, seen, 0, ahead);
        return;
    }
    for (int64_t column = 0; column < columns_of(strip); ++column) {
        (seen ? weigh_column<false, true> : weigh_column<false, false>)(strip, piece, seen, column,
                                                                        ahead);
    }
}

// -- values

inline void mix_piece(const DotStrip& strip, const Block& piece, RowsAhead& ahead) {
    const Rows v(strip.v, piece, strip.E, strip.v_rows);
    const int64_t keys = tiles(piece.count, kTile) * kTile, stripes = stripes_of(strip);
    const int64_t products = columns_of(strip) * halves_of(strip) * stripes * (keys / kTile);
    const auto between = [&, rows = tiles(kPiece, products)] { ahead.ask(rows); };
    for (int64_t column = 0; column < columns_of(strip); ++column) {
        for (int64_t half = 0; half < halves_of(strip); ++half) {
            const uint32_t* p = weights_from(strip, column, half);
            float* o = outputs_from(strip, column, half);
            const uint16_t* from = v.data;
            int64_t left = stripes;
            for (; left >= 4; left -= 4, from += 4 * 32, o += 4 * kSquare) {
                StripTiles::mix<4>(p, from, v.stride, keys, o, between);
            }
            if (left == 3) StripTiles::mix<3>(p, from, v.stride, keys, o, between);
            if (left == 2) StripTiles::mix<2>(p, from, v.stride, keys, o, between);
            if (left == 1) StripTiles::mix<1>(p, from, v.stride, keys, o, between);
        }
    }
}

inline bool finite_values(const DotStrip& strip, const Block& piece) {
    Pairs::Vec most = Pairs::none();
    for (int64_t i = 0; i < piece.count; ++i) {
        for (int64_t e = 0; e < strip.E; e += 32) {
            most = Pairs::larger(most, Pairs::load_row(strip.v, piece.begin + i, e, strip.E - e));
        }
    }
    return Pairs::largest(most) < __builtin_inff();
}

// Where a row's even outputs stand, and its odd ones; what follows are the next 32 columns.
struct Halves {
    float *even, *odd;
    Halves(const DotStrip& strip, int64_t row) {
        const int64_t column = row / kTile, own = row % kTile;
        even = outputs_from(strip, column, 0) + own * kTile;
        odd = is_doubled(strip) ? even + 8 * kTile : outputs_from(strip, column, 1) + own * kTile;
    }
};

// The same sums where some rows must not see some keys: 0 * x is not 0 if x is NaN or infinite.
inline void mix_strip_visible(const DotStrip& strip, const Block& piece) {
    for (int64_t r = 0; r < strip.rows; ++r) {
        const uint32_t* odd = is_doubled(strip)
                                  ? weights_from(strip, 0, 0) + (r + 8) * kTile
                                  : weights_from(strip, r / kTile, 1) + r % kTile * kTile;
        for (int64_t key = 0; key < piece.count; ++key) {
            if (!(piece.visible[key] >> r & 1)) continue;
            const uint32_t bits = odd[key / kTile * kSquare + key % kTile];
            const Floats weight = Lanes::set1(__builtin_bit_cast(float, bits));
            Halves out(strip, r);
            for (int64_t e = 0; e < strip.E; e += 32, out.even += kSquare, out.odd += kSquare) {
                const Pairs::Vec x = Pairs::load_row(strip.v, piece.begin + key, e, strip.E - e);
                const auto add = [&](float* to, Floats y) {
                    Lanes::store(to, Lanes::fma(weight, y, Lanes::load(to)));
                };
                add(out.even, Pairs::even(x));
                add(out.odd, Pairs::odd(x));
            }
        }
    }
}

// Which rows see a piece's keys, in `known`; null where all see all of whole groups.
inline const uint64_t* seen_rows(const Block& piece, bool doubled, uint64_t* known) {
    if (!piece.visible && piece.count % kGroup == 0) return nullptr;
    for (int64_t i = 0; i < whole(piece); ++i) {
        const uint64_t rows = i >= piece.count ? 0
                              : piece.visible  ? piece.visible[i]
                                               : ~uint64_t{0};
        known[i] = doubled ? (rows & 0xff) * 0x101 : rows;
    }
    return known;
}

void attend_strip(const DotStrip& strip, const Block& block) {
    for (int64_t first = 0; first < block.count; first += kPiece) {
        const int64_t left = block.count - first;
        const float* bias = static_cast<const float*>(block.bias);
        const Block piece = {block.begin + first, left < kPiece ? left : kPiece,
                             block.visible ? block.visible + first : nullptr,
                             bias ? bias + first * kPanel : nullptr};
        uint64_t known[kPiece];
        RowsAhead values(strip, strip.v, piece.begin, piece.count, strip.E);
        score_piece(strip, piece, values);
        weigh_piece(strip, piece, seen_rows(piece, is_doubled(strip), known), values);
        RowsAhead keys(strip, strip.k, piece.begin + piece.count, kPiece, strip.D);
        if (piece.visible && !finite_values(strip, piece)) {
            mix_strip_visible(strip, piece);
        } else {
            mix_piece(strip, piece, keys);
        }
    }
}

void finish_strip(const DotStrip& strip, int64_t count, float* state) {
    Tiles::end();
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_or_epi32(low, _mm512_set1_epi32(8));
    float by[kPanel];
    for (int64_t lane = 0; lane < strip.rows; lane += kTile) {
        const Floats rounded = Lanes::load(strip.rounded + lane), none = Lanes::set1(0);
        const Floats ratio = Lanes::div(Lanes::load(strip.l + lane), rounded);
        Lanes::store(by + lane, Lanes::select(Lanes::equal(rounded, none), Lanes::set1(1), ratio));
    }
    for (int64_t r = 0; r < strip.rows; ++r) {
        state[r] = strip.m[r];
        state[count + r] = strip.l[r];
        float* out = state + 2 * count + r * padded(strip.E);
        Halves from(strip, r);
        for (int64_t e = 0; e < padded(strip.E);
             e += 32, from.even += kSquare, from.odd += kSquare) {
            const Floats a = Lanes::load(from.even), b = Lanes::load(from.odd);
            const auto put = [&](int64_t at, __m512i order) {
                const Floats x = _mm512_permutex2var_ps(a, order, b);
                Lanes::store(out + at, Lanes::mul(x, Lanes::set1(by[r])));
            };
            put(e, low);
            if (e + kTile < padded(strip.E)) put(e + kTile, high);
        }
    }
}

constexpr StripDots strip_dots() {
    return {.parts = 1,
            .least_rows = 1,
            .most_rows = kPanel,
            .begin = begin_strip<Whole>,
            .attend = attend_strip,
            .finish = finish_strip};
}

}  // namespace
}  // namespace clearhead
