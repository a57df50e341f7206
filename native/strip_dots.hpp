// Few query rows in bfloat16 by dot-product instructions: what the driver (decode.cpp) and a kernel
// unit (strip_dots.inl.hpp) share. Plain data only, as in kernels.hpp.
#pragma once
#include "dots.hpp"

namespace clearhead {

// Keys whose weights meet their values together: so few that S, P and O are still in the first
// cache when they are used again, which the streams of keys and values pass through.
constexpr int64_t kPiece = kGroup;

// As Strip, for up to kPanel query rows in tiles of 16, its columns. Keys and values are read from
// where they lie; the products give even columns of the output and odd ones apart, as two halves.
// Up to 8 rows stand twice in their tile, which then gives both. Scratch is 64-byte aligned.
struct DotStrip {
    int64_t rows, D, E;
    int64_t end;                  // keys from here on are not asked for
    Matrix k, v;                  // from key 0 on
    double s_factor, cap_factor;  // as in Panel
    const uint16_t* q_rows;       // [columns * 16][D up to 32]; zero beyond D
    uint16_t* q;                  // [D / 32][columns][16 pairs][16 queries][2]
    uint16_t* k_rows;             // [kPiece][D up to 32]: what cannot be read from where it lies
    uint16_t* v_rows;             // [kPiece][E up to 32]: the same of values
    float* s;                     // [columns][kPiece][16 queries]
    uint32_t* p;                  // [columns][2 halves][kPiece / 16][16 queries][16 keys]: weights
    float* o;                     // [columns][2 halves][E / 32][16 queries][16 columns]
    float *m, *l, *rounded;       // [columns * 16]: reference, sum of weights, of rounded weights
};

struct StripDots {
    void (*begin)(const DotStrip& strip);                       // lays out q, clears the state
    void (*attend)(const DotStrip& strip, const Block& block);  // state += keys and values
    // The state as that of a Strip: m[count], l[count], o[count][padded(E)]. The output counts as
    // if its weights had not been rounded: it is scaled by their sum over that of the rounded ones.
    void (*finish)(const DotStrip& strip, int64_t count, float* state);
};

}  // namespace clearhead
