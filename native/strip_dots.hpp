// Few query rows by dot-product instructions on bfloat16: what the driver (decode.cpp) and a kernel
// unit (strip_dots.inl.hpp) share. Plain data only, as in kernels.hpp.
#pragma once
#include "dots.hpp"

namespace clearhead {

// Keys whose weights meet their values together. Of bfloat16 so few that S, P and O are still in
// the first cache when they are used again, which the streams of keys and values pass through. Of
// numbers in parts a whole block: what is read from the second cache then serves more keys.
constexpr int64_t kPiece = kGroup;
constexpr int64_t kGroupsOfParts = kBlock / kGroup;

// As Strip, for up to kPanel query rows in tiles of 16, its columns. Keys and values of bfloat16
// are read from where they lie; the products give even columns of the output and odd ones apart, as
// two halves. Up to 8 rows stand twice in their tile, which then gives both. What follows "or" is
// for numbers in parts, two tiles of which are cut at a time. Scratch is 64-byte aligned.
struct DotStrip {
    int64_t rows, D, E;
    int64_t end;                  // keys from here on are not asked for
    Matrix q_rows;                // bfloat16, or floats; rows of one piece
    Matrix k, v;                  // from key 0 on
    double s_factor, cap_factor;  // as in Panel
    uint16_t* q;                  // [parts][D / 32][columns][16 pairs][16 queries][2]
    // [kPiece][D up to 32]: what cannot be read from where it lies. Or first parts, [D / 32 +
    // 1][2], and then the others, [2][parts - 1][2], of tiles.
    uint16_t* k_rows;
    uint16_t* v_rows;  // [kPiece][E up to 32]. Or the same with kGroupsOfParts instead of D / 32
    float* s;          // [columns][kPiece, or kBlock][16 queries]
    // Weights: [columns][2 halves][kPiece / 16][16 queries][16 keys]. Or as pairs of keys:
    // [columns][kGroupsOfParts][parts][16 queries][16 pairs].
    uint32_t* p;
    float* o;      // [columns][2 halves][E / 32][16 queries][16 columns of a half, or all]
    float* fresh;  // Of parts: outputs of the block at hand, [2][2][2][16][16]
    float *m, *l, *rounded;  // [columns * 16]: reference, sum of weights, of rounded weights
};

struct StripDots {
    int64_t parts;  // of a number
    // Fewer rows, or more, are done sooner by multiply-adds.
    int64_t least_rows, most_rows;
    // Lays out q, clears the state. False where parts cannot hold what stands there.
    bool (*begin)(const DotStrip& strip);
    void (*attend)(const DotStrip& strip, const Block& block);  // state += keys and values
    // The state as that of a Strip: m[count], l[count], o[count][padded(E)]. The output counts as
    // if its weights had not been rounded: it is scaled by their sum over that of the rounded ones.
    void (*finish)(const DotStrip& strip, int64_t count, float* state);
};

}  // namespace clearhead
