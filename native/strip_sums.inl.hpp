// Few query rows in float32 or float16 by instructions for bfloat16: as strip_dots.inl.hpp, each
// number the sum of its parts, as in sums.inl.hpp.
//
// Nothing is packed ahead: two tiles of keys or of values are cut into parts just before their
// products, while the products of the two before them are under way. Values are cut in pairs of
// keys, as the second factor wants them, so that nothing is multiplied by 0 as in bfloat16.
//
// Keys and values are cut off, which takes 11 operations for 32 numbers and loses nothing. The
// parts of queries and weights are rounded, so that the products that are left out, which are those
// of small parts, are as often too small as too large.
//
// Traffic: each key and value once from memory, for every 32 rows from the second cache, where it
// has been asked for a block ahead.
// Included after strip_amx.hpp.
#pragma once
#include <type_traits>

#include "strip_dots.inl.hpp"

namespace clearhead {
namespace {

// Numbers of queries such that what parts of keys lose below 2^-126 counts for nothing, and what
// they lose themselves is nothing.
constexpr float kMostQuery = 0x1p60f, kLeastQuery = 0x1p-100f;

template <int N>
bool begin_parts(const DotStrip& strip) {
    const Floats zero = Lanes::set1(0);
    for (int64_t row = 0; row < strip.rows; ++row) {
        for (int64_t d = 0; d < strip.D; d += kTile) {
            const Floats x = _mm512_abs_ps(load_row<float>(strip.q_rows, row, d, strip.D - d));
            const auto small =
                Lanes::both(Lanes::greater(x, zero), Lanes::greater(Lanes::set1(kLeastQuery), x));
            const auto fits = _mm512_cmp_ps_mask(x, Lanes::set1(kMostQuery), _CMP_LE_OQ);
            if (!Lanes::all(fits) || Lanes::any(small)) return false;
        }
    }
    return __builtin_fabs(strip.s_factor) <= kMostFactor && begin_strip<Sum<N>>(strip);
}

// Two tiles of parts at work: rows n = 0, ..., 31 of `first`, and of the others behind each other.
// Of keys, row n is 32 numbers of key n, element j beside j + 16; of values, 16 columns of two
// keys.
template <int N, bool kValues>
class Cut {
  public:
    static constexpr int64_t kRows = 2 * kTile;

    // Keys `key`, ... of the piece, columns `column`, ...; a block ahead they are asked for.
    Cut(const DotStrip& strip, const Block& piece, int64_t key, int64_t column, bool asks,
        uint16_t* first, uint16_t* others)
        : row_((kValues ? strip.v : strip.k).row),
          count_(piece.count - key),
          left_((kValues ? strip.E : strip.D) - column),
          asked_(asks ? strip.end - piece.begin - key - kBlock : 0),
          from_(static_cast<const Stored*>((kValues ? strip.v : strip.k).data) +
                (piece.begin + key) * row_ + column),
          first_(first),
          others_(others) {}

    inline __attribute__((always_inline)) void operator()(int64_t n) const {
        const int64_t key = kValues ? n % kTile * 2 : n, column = kValues ? n / kTile * kTile : 0;
        const int64_t other_key = kValues ? key + 1 : key;
        const int64_t other_column = kValues ? column : kTile;
        ask(key, column), ask(other_key, other_column);
        Pairs::Vec part[N];
        cut(load(key, column), load(other_key, other_column), part);
        Pairs::store(first_ + n * 32, part[0]);
#pragma GCC unroll 2
        for (int p = 1; p < N; ++p) {
            Pairs::store(others_ + (p - 1) * 2 * kTileSize + n * 32, part[p]);
        }
    }

  private:
    using Stored = std::conditional_t<N == 3, float, uint16_t>;
    static constexpr DType kStored = N == 3 ? DType::f32 : DType::f16;

    inline __attribute__((always_inline)) void ask(int64_t key, int64_t column) const {
        if (key < asked_) __builtin_prefetch(from_ + (key + kBlock) * row_ + column, 0, 2);
    }
    inline __attribute__((always_inline)) Floats load(int64_t key, int64_t column) const {
        const int64_t at = key * row_ + column, left = left_ - column;
        if (key >= count_ || left <= 0) return Lanes::set1(0);
        if (left >= kTile) return load_contiguous<float>(from_, kStored, at, kTile);
        return load_contiguous<float>(from_, kStored, at, left);
    }
    // Each part as Pairs::join has it, in one operation.
    static inline __attribute__((always_inline)) Pairs::Vec join(Floats even, Floats odd) {
        const Pairs::Vec upper =
            _mm512_set4_epi32(int(0x80800f0e), int(0x80800b0a), int(0x80800706), int(0x80800302));
        return _mm512_mask_shuffle_epi8(_mm512_castps_si512(odd), 0x3333333333333333,
                                        _mm512_castps_si512(even), upper);
    }
    static inline __attribute__((always_inline)) void cut(Floats even, Floats odd,
                                                          Pairs::Vec (&part)[N]) {
#pragma GCC unroll 3
        for (int p = 0; p < N; ++p) {
            part[p] = join(even, odd);
            if (p + 1 == N) break;
            even = Lanes::sub(even, Pairs::odd(_mm512_castps_si512(even)));
            odd = Lanes::sub(odd, Pairs::odd(_mm512_castps_si512(odd)));
        }
    }

    int64_t row_, count_, left_, asked_;
    const Stored* from_;
    uint16_t *first_, *others_;
};

// Where the i-th two tiles that are cut stand: as many first parts as wait for their product, and
// two sets of the others.
template <int N>
struct CutTiles {
    uint16_t* data;
    int64_t waiting;

    uint16_t* first(int64_t i) const { return data + i % (waiting + 1) * 2 * kTileSize; }
    uint16_t* others(int64_t i) const {
        return data + (2 * (waiting + 1) + i % 2 * 2 * (N - 1)) * kTileSize;
    }
    StripTiles::Parts parts(int64_t i) const {
        return {first(i), others(i), kTileSize, 2 * kTileSize};
    }
};

inline Column column_of_parts(const DotStrip& strip, int64_t column) {
    return {column * kTile, strip.s + column * kBlock * kTile, false};
}
template <int N>
inline uint16_t* parts_of_weights(const DotStrip& strip, int64_t column, int64_t group) {
    return reinterpret_cast<uint16_t*>(strip.p) + (column * kGroupsOfParts + group) * N * kTileSize;
}
inline float* outputs_of_parts(const DotStrip& strip, int64_t column, int64_t stripe) {
    return outputs_from(strip, column, 0) + 2 * stripe * kSquare;
}

// Scores of one tile of queries, or two.
template <int N, bool kBoth>
void score_parts(const DotStrip& strip, const Block& piece, int64_t column) {
    const int64_t steps = steps_of(strip), columns = columns_of(strip);
    const int64_t groups = whole(piece) / kGroup;
    const CutTiles<N> keys = {strip.k_rows, steps};
    const auto cut = [&](int64_t i) {
        return Cut<N, false>(strip, piece, i / steps * kGroup, i % steps * 32, column == 0,
                             keys.first(i), keys.others(i));
    };
    const auto queries = [&](int64_t step) -> StripTiles::Parts {
        const uint16_t* q = strip.q + (step * columns + column) * kTileSize;
        const int64_t part = steps * columns * kTileSize;
        return {q, q + part, kTileSize, part};
    };
    Pace pace;
    pace.start(0, Cut<N, false>::kRows);
    pace.rest(cut(0));
    for (int64_t group = 0, i = 0; group < groups; ++group) {
        StripTiles::clear();
        for (int64_t step = 0; step < steps; ++step, ++i) {
            const auto next = cut(i + 1);
            pace.start(0, i + 1 < groups * steps ? Cut<N, false>::kRows : 0);
            pace.spread(Order<N, 2>::kSmall);
            auto between = [&]() __attribute__((always_inline)) { pace.some(next); };
            StripTiles::small_products<Order<N, 2>, true, kBoth>(keys.parts(i), queries(step),
                                                                 between);
        }
        for (int64_t step = 0; step < steps; ++step) {
            StripTiles::large_product<true, kBoth>(keys.parts(i - steps + step), queries(step));
        }
        StripTiles::put<true, kBoth>(column_of_parts(strip, column).s + group * kGroup * kTile,
                                     kSquare, kBlock * kTile);
    }
}

// Scores of a tile of queries to parts of weights, and their sums.
template <int N, bool kHides>
void weigh_parts(const DotStrip& strip, const Block& piece, const uint64_t* seen, int64_t column) {
    const Column scores = column_of_parts(strip, column);
    Floats factor = Lanes::set1(float(strip.s_factor));
    if (strip.cap_factor != 0 || piece.bias || kHides) {
        adjust_scores(strip, piece, seen, scores);
        factor = Lanes::set1(1);
    }
    const Floats shift = raise_strip(strip, whole(piece), factor, scores);
    Floats sum = Lanes::set1(0);
    for (int64_t group = 0; group < whole(piece) / kGroup; ++group) {
        Floats pairs[N][kTile];
#pragma GCC unroll 1
        for (int64_t i = 0; i < kGroup; i += 4) {
            const int64_t key = group * kGroup + i;
            const Weights<4> four(scores.s + key * kTile, factor, shift);
            Pairs::Vec part[4][N];
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
                // Again: beside a NaN for a reference, -inf is no hiding place.
                const Floats w =
                    four.exact(j, kHides ? __mmask16(seen[key + j] >> scores.lane) : 0xffff);
                sum = Lanes::add(sum, w);
                Pairs::split(w, part[j]);
            }
#pragma GCC unroll 3
            for (int p = 0; p < N; ++p) {
                pairs[p][i / 2] = _mm512_castsi512_ps(Pairs::join(part[0][p], part[1][p]));
                pairs[p][i / 2 + 1] = _mm512_castsi512_ps(Pairs::join(part[2][p], part[3][p]));
            }
        }
        uint16_t* out = parts_of_weights<N>(strip, column, group);
        for (int p = 0; p < N; ++p, out += kTileSize) {
            Lanes::transpose(pairs[p]);
#pragma GCC unroll 16
            for (int i = 0; i < kTile; ++i) {
                Pairs::store(out + i * 32, _mm512_castps_si512(pairs[p][i]));
            }
        }
    }
    Lanes::store(strip.l + scores.lane, Lanes::add(Lanes::load(strip.l + scores.lane), sum));
}

// o += P V of one tile of queries, or two. What two stripes of columns give waits in turn to be
// added, until the next one's products are under way.
template <int N, bool kBoth>
void mix_parts(const DotStrip& strip, const Block& piece, int64_t column) {
    using Kept = Order<N, N - 1>;
    const int64_t groups = whole(piece) / kGroup, stripes = stripes_of(strip);
    const CutTiles<N> values = {strip.v_rows, kGroupsOfParts};
    const auto cut = [&](int64_t i) {
        return Cut<N, true>(strip, piece, i % groups * kGroup, i / groups * 32, column == 0,
                            values.first(i), values.others(i));
    };
    const auto weights = [&](int64_t group) -> StripTiles::Parts {
        const uint16_t* p = parts_of_weights<N>(strip, column, group);
        return {p, p + kTileSize, kGroupsOfParts * N * kTileSize, kTileSize};
    };
    const auto fresh = [&](int64_t stripe) { return strip.fresh + stripe % 2 * 4 * kSquare; };
    const auto take = [&](int64_t stripe) {
        for (int64_t i = 0; i < (kBoth ? 2 : 1); ++i) {
            add(outputs_of_parts(strip, column + i, stripe), fresh(stripe) + 2 * i * kSquare,
                2 * kSquare);
        }
    };
    Pace pace;
    pace.start(0, Cut<N, true>::kRows);
    pace.rest(cut(0));
    for (int64_t stripe = 0, i = 0; stripe < stripes; ++stripe) {
        StripTiles::clear();
        for (int64_t group = 0; group < groups; ++group, ++i) {
            const auto next = cut(i + 1);
            pace.start(0, i + 1 < stripes * groups ? Cut<N, true>::kRows : 0);
            pace.spread(Kept::kSmall);
            auto between = [&]() __attribute__((always_inline)) { pace.some(next); };
            StripTiles::small_products<Kept, kBoth, true>(weights(group), values.parts(i), between);
        }
        for (int64_t group = 0; group < groups; ++group) {
            StripTiles::large_product<kBoth, true>(weights(group),
                                                   values.parts(i - groups + group));
        }
        if (stripe > 0) take(stripe - 1);
        StripTiles::put<kBoth, true>(fresh(stripe), 2 * kSquare, kSquare);
    }
    take(stripes - 1);
}

template <int N, bool kBoth>
void attend_columns(const DotStrip& strip, const Block& block, const uint64_t* seen,
                    int64_t column) {
    score_parts<N, kBoth>(strip, block, column);
    for (int64_t i = 0; i < (kBoth ? 2 : 1); ++i) {
        (seen ? weigh_parts<N, true> : weigh_parts<N, false>)(strip, block, seen, column + i);
    }
    mix_parts<N, kBoth>(strip, block, column);
}

// What a hidden value is, if not finite, reaches the output: the driver then asks multiply-adds.
template <int N>
void attend_parts(const DotStrip& strip, const Block& block) {
    uint64_t known[kBlock];
    const uint64_t* seen = seen_rows(block, false, known);
    const int64_t columns = columns_of(strip);
    int64_t column = 0;
    for (; column + 2 <= columns; column += 2) attend_columns<N, true>(strip, block, seen, column);
    if (column < columns) attend_columns<N, false>(strip, block, seen, column);
}

void finish_parts(const DotStrip& strip, int64_t count, float* state) {
    Tiles::end();
    for (int64_t r = 0; r < strip.rows; ++r) {
        state[r] = strip.m[r];
        state[count + r] = strip.l[r];
        float* out = state + 2 * count + r * padded(strip.E);
        const float* from = outputs_of_parts(strip, r / kTile, 0) + r % kTile * kTile;
        for (int64_t e = 0; e < padded(strip.E); e += kTile, from += kSquare) {
            Lanes::store(out + e, Lanes::load(from));
        }
    }
}

template <int N>
constexpr StripDots strip_sums() {
    return {.parts = N,
            .least_rows = 13,
            .most_rows = 2 * kTile,
            .begin = begin_parts<N>,
            .attend = attend_parts<N>,
            .finish = finish_parts};
}

}  // namespace
}  // namespace clearhead
