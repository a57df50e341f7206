// Attention by dot-product instructions on bfloat16: what the driver (dots.cpp) and a kernel unit
// (dots.inl.hpp) share. Plain data only, as in kernels.hpp.
//
// Where these instructions are so quick that several of them beat one multiply-add of floats, a
// number of another dtype is the sum of several bfloat16, its parts: three for float32, whose 24
// bits are three times 8, two for float16. A product is then a sum of products of parts.
//
// Everything is cut into tiles of 16 rows of 64 bytes. Where a product multiplies pairs, as the
// instructions do, a row holds 16 pairs of bfloat16: of one key along D, of one value column along
// the keys, or, on the other side, of the 16 queries of a tile.
#pragma once
#include "kernels.hpp"

namespace clearhead {

constexpr int64_t kTile = 16;           // rows of a tile, and lanes of a vector
constexpr int64_t kGroup = 2 * kTile;   // keys that one product of weights and values takes
constexpr int64_t kGroupsOfBlock = 4;   // keys whose weights meet their values together
constexpr int64_t kGroupsOfScores = 2;  // and of which scores are held: 16 KiB of L1 either
constexpr int64_t kColumns = kPanel / kTile;

constexpr int64_t tiles(int64_t n, int64_t size) {
    return (n + size - 1) / size;
}

// A head's keys and values in the order in which they are read; zero beyond S, D and E.
struct Packed {
    uint16_t* k;  // [S / 32][2][parts][D / 32][16 keys][32]
    uint16_t* v;  // [S / 32][E / 16][parts][16 columns][32 keys]
    // Of each group: the square of the longest key's norm, and the largest value's magnitude;
    // infinite where one is not finite.
    float *length, *magnitude;  // [S / 32]
    int64_t room;               // for so many groups: group g lies at g % room
};

// Rows that will soon be read or written, asked for a line at a time while products are made: asked
// for all at once, they would be waited for.
struct Ahead {
    struct Rows {
        const char* data;
        int64_t step, size, count;  // bytes from row to row and of each
    };
    static constexpr int64_t kMost = 4;
    Rows rows[kMost];   // the last first
    int64_t count, at;  // sets of rows that are left; byte in the row at hand
};

struct DotPanel {
    int64_t rows, D, E;
    Matrix q;  // starts at the panel's first row
    Packed kv;
    int64_t first, groups;              // of those that it may see: where they begin, and how many
    double s_factor, cap_factor, sink;  // as in Panel
    bool biased, wants_lse;
    bool bounded;  // every score is so near to 0 that the weights need no reference; m stays 0
    uint16_t* qt;  // [parts][D / 32][4][16 pairs][16 queries][2]
    float* s;      // [2 groups][4][32 keys][16 queries]
    uint16_t* p;   // [4 groups][parts][4][16 pairs of keys][16 queries][2]: weights
    float* o;      // [E / 16 or one more][4][16][16]: row E is what the others are divided by
    float *m, *l;  // [kPanel]: reference; sum of the weights before rounding, if lse is wanted
    // Of parts: outputs of the block at hand, [4][16][16]; its sums of weights, and a group's,
    // [2][kPanel].
    float *fresh, *sums;
    Ahead* ahead;  // null: nothing
};

// Packed groups [begin, begin + groups). `visible` and `bias` as in Block, [32 * groups].
struct DotBlock {
    int64_t begin, groups;
    const uint64_t* visible;
    const float* bias;
};

struct Dots {
    int parts;  // of a number
    // Packs group `group` of k and v.
    void (*pack)(const Matrix& k, const Matrix& v, int64_t S, int64_t D, int64_t E, int64_t group,
                 const Packed& out);
    // False where parts cannot hold what stands there: what is not finite, or hardly.
    bool (*begin)(DotPanel& panel);
    void (*attend)(DotPanel& panel, const DotBlock& block);
    void (*finish)(DotPanel& panel, const Matrix& out);

    // As Kernels::observe, with the scores of `dots`. The block's first group begins with
    // `first_key`; there are keys up to `end`.
    void (*observe)(const DotPanel& dots, const DotBlock& block, const Panel& panel,
                    const Watch& watch, int64_t first_key, int64_t end);

    // n rounds of independent products, as Kernels::multiply_adds.
    int64_t (*multiply_adds)(int64_t n);
};

}  // namespace clearhead
