// The gradient by dot-product instructions on bfloat16: what the driver (backward_dots.cpp) and a
// kernel unit (dots_backward.inl.hpp) share. Numbers are sums of parts, as in dots.hpp.
#pragma once
#include "dots.hpp"

namespace clearhead {

// Rows of q or dout, in both orders of a product's first factor: along a row, and along the rows of
// a column.
struct Laid {
    uint16_t* rows;     // [n / 32][2][parts][D / 32][16 rows][32]
    uint16_t* columns;  // [n / 32][D / 16][parts][16 columns][32 rows]
};

// Up to 64 keys, in the lanes.
struct KeyPanel {
    int64_t keys, D, E;
    Matrix k, v;                  // from the panel's first key on
    double s_factor, cap_factor;  // as in Panel
    uint16_t *kt, *vt;            // [parts][D / 32][4][16 pairs][16 keys][2]
    uint16_t* k_pairs;            // [2][parts][2 * D / 32][16 pairs of keys][16][2]
    float *s, *dp;                // [2][2 tiles of keys][32 queries][16]
    uint16_t *p, *ds;             // [2 groups][parts][4][16 pairs of queries][16 keys][2]
    uint16_t* ds_rows;            // [4 tiles of queries][2 groups of keys][parts][16][32]
    float *dkt, *dvt;             // [D][kPanel], [E][kPanel]: dk / scale, dv
    float* fresh;                 // [4][16][16]
};

// Up to 64 queries. `visible[i]` has bit j set where query i may attend to key j of the panel, or
// is null; `bias` is [64][kPanel] in log2 units, or null.
struct QueryBlock {
    int64_t rows;
    Laid q, dout;                         // the block's two groups
    const float *shift, *delta, *factor;  // [rows], as in GradientPanel
    const uint64_t* visible;
    const float* bias;
};

struct DotsBackward {
    int parts;
    float (*largest)(const Matrix& m, int64_t rows, int64_t cols);  // magnitude; NaN as infinite
    // Rows [32 * group, 32 * group + 32) of n.
    void (*lay_rows)(const Matrix& m, int64_t n, int64_t cols, int64_t group, const Laid& out);
    void (*begin)(KeyPanel& panel);  // packs k and v, clears the sums
    // dkt += dS^T q, dvt += P^T dout, and leaves dS.
    void (*block)(KeyPanel& panel, const QueryBlock& block);
    // dq[i][..] += dS[i] k for the rows of that block; dq is float[rows][padded(D)].
    void (*rows)(const KeyPanel& panel, int64_t rows, float* dq);
    void (*end)();
};

}  // namespace clearhead
