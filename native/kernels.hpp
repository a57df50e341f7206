// The surface between the driver (baseline code, attention.cpp) and the kernels (one table per
// instruction set). Plain data only: kernel units include nothing but this file and intrinsics, so
// that they define no weak symbol which an older CPU could end up running.
//
// A task is a *panel*: up to 64 query rows of one head, held transposed, so that the lanes of a
// vector are queries. Keys come in blocks. The state of a row is (m, l, o): reference maximum in
// log2 units, normaliser, unnormalised output; see ARCHITECTURE.md, "A row is a monoid".
#pragma once
#include <cstdint>

namespace clearhead {

constexpr int64_t kPanel = 64;      // rows of a panel: one bit each in a uint64_t
constexpr int64_t kBlock = 96;      // keys of a block at most; caches.hpp says how many
constexpr int64_t kStripRows = 12;  // most rows of a strip
constexpr double kLog2e = 1.4426950408889634074;
constexpr double kLn2 = 0.69314718055994530942;

enum class DType : int32_t { f64, f32, f16, bf16 };

// Element (i, j) is at data[i * row + j * col], counted in elements of `dtype`.
struct Matrix {
    const void* data;
    int64_t row, col;
    DType dtype;
};

// Keys [begin, begin + count), count <= kBlock. `visible[i]` has bit r set where row r may attend
// to key begin + i; null: every row sees every key. `bias` is Real[count][kPanel] in log2 units, or
// null.
struct Block {
    int64_t begin, count;
    const uint64_t* visible;
    const void* bias;
};

// One panel at work: what it reads, and the scratch that carries its state between calls. Real is
// double for f64 and float for every other dtype; scratch pointers are to Real, 64-byte aligned.
struct Panel {
    int64_t rows, D, E;
    Matrix q, k, v;     // q starts at the panel's first row; k and v at key 0
    double q_factor;    // multiplies q as it is transposed
    double s_factor;    // multiplies q . k: scale * log2(e), or scale / softcap; 1 where q has it
    double cap_factor;  // softcap * log2(e): score = cap_factor * tanh(q . k); 0: no softcap
    double sink;        // the head's sink in log2 units; -inf: none
    void* qt;           // [D][kPanel]
    void* ot;           // [E][kPanel]
    void* p;            // [kBlock][kPanel]
    void* m;            // [kPanel] reference maximum, log2 units; -inf while a row has seen no key
    void* l;            // [kPanel] sum of 2^(s - m)
    void* k_rows;       // [kBlock][D], where k must be converted
    void* v_rows;       // [kBlock][E], where v must be converted
};

// One panel of a backward pass. Its lanes are keys (x = k, y = v, against rows a = q, b = dout) or,
// where only sums or dS are wanted, queries (x = q, y = dout, against rows a = k, b = v). A query's
// statistics are shift, its lse in log2 units, delta = sum(dout * out), and factor, which takes the
// rounding of shift out again. They stand by row, in the block, in the first case and by lane in
// the second.
struct GradientPanel {
    int64_t lanes, D, E;
    bool by_lane;   // lanes are queries
    bool x_finite;  // no NaN or infinity in x
    Matrix x, y, a, b;
    double s_factor;    // multiplies q . k, after the sum so that P is the same in both panels
    double cap_factor;  // as above
    const void *shift, *delta;  // [kPanel], where by_lane
    void *xt, *dxt;             // [D][kPanel]; dxt and what follows up to dyt where lanes are keys
    void* x_rows;           // [D / kPanel, rounded up][kPanel][kPanel]: x by rows, cut into panels
    void* dyt;              // [E][kPanel]
    void* yt;               // [E][kPanel]
    void* p;                // [kBlock][kPanel]: weights, then their gradients
    void* slope;            // [kBlock][kPanel]: 1 - tanh^2, where there is a softcap
    void* sums;             // [2][kPanel]: by lane, sums of P and of P * dP
    void *a_rows, *b_rows;  // [kBlock][D] and [kBlock][E], where they must be converted
};

struct GradientBlock : Block {
    const void *shift, *delta, *factor;  // [count], where lanes are keys
};

enum class GradientStep : int32_t {
    weights,  // lanes are queries: adds P to `sums`
    sums,     // lanes are queries: adds P and P * dP to `sums`
    scores,   // lanes are queries: leaves dS without the slope of the softcap in p
    keys,     // lanes are keys: dyt += P^T b, dxt += dS^T a, and leaves dS in p
};

// Columns with room for whole vectors of any instruction set.
constexpr int64_t padded(int64_t n) {
    return (n + 15) / 16 * 16;
}

// Up to kStripRows query rows that read the same keys and values: the lanes of its vectors run
// along D and E. Rows of q and o are padded(D) and padded(E) long and come in fours, as do m and l;
// what q holds beyond D is 0. The state of a row is (m, l, o) as above.
struct Strip {
    int64_t rows, D, E;
    int64_t end;                  // keys from here on are not asked for
    Matrix k, v;                  // from key 0 on
    double s_factor, cap_factor;  // as above
    const void* q;
    void *m, *l, *o;
    void* s;                // [rows][kBlock]: scores, then weights
    void *k_rows, *v_rows;  // [kBlock][padded(D)], [kBlock][padded(E)]: where a column is no step
};

// States of `rows` rows, a multiple of four, from `count` shards of the keys. A shard's are
// m[rows], l[rows], o[rows][padded(E)].
struct RowStates {
    void* data;
    int64_t count, rows, E;

    constexpr int64_t size() const { return rows * (2 + padded(E)); }
};

struct Watch;         // what observation keeps: watch.hpp
struct Dots;          // attention by dot-product instructions on bfloat16: dots.hpp
struct StripDots;     // the same for few queries: strip_dots.hpp
struct DotsBackward;  // its gradient: dots_backward.hpp

// What an instruction set gives. Index 0 works in float, 1 in double.
struct Kernels {
    const char* isa;
    void (*begin[2])(Panel& panel);                       // transposes q, clears the state
    void (*attend[2])(Panel& panel, const Block& block);  // state += the block's keys and values
    void (*finish[2])(Panel& panel, const Matrix& out);   // out = o / l

    int64_t strip_rows[2];  // up to so many rows are done sooner by a strip than by a panel
    void (*strip_attend[2])(const Strip& strip, const Block& block);  // state += keys and values
    // out[i][j] = m[i][j] in Real, rows of padded(cols), 0 beyond cols.
    void (*copy_rows[2])(const Matrix& m, int64_t rows, int64_t cols, void* out);
    // One row's states and its sink, in log2 units, to its row of `out`, and to (m, l) in `total`.
    void (*merge_row[2])(const RowStates& states, int64_t row, double sink, const Matrix& out,
                         void* total);

    // out[j][i] = bias[i][j] in log2 units, for i < lanes and j < count (`swapped`: bias[j][i]).
    // Where that is -inf, bit i of visible[j] is cleared: such a bias hides as a mask does. What is
    // finite stays finite: the lowest number hides nothing, the largest is no infinity.
    void (*lay_out_bias[2])(const Matrix& bias, bool swapped, int64_t lanes, int64_t count,
                            void* out, uint64_t* visible);

    // Weights of a block against the lse in panel.m, summed as `watch` says.
    void (*observe[2])(Panel& panel, const Watch& watch, const Block& block);
    void (*observe_end[2])(Panel& panel, const Watch& watch);  // what has waited for more keys

    void (*gradient_begin[2])(GradientPanel& panel);  // transposes x and y, clears what is summed
    void (*gradient_block[2])(GradientPanel& panel, const GradientBlock& block, GradientStep step);
    // da[i][..] += sum over lanes of dS[i] x[lane], dS as Step::keys has left it; da is
    // Real[count][padded(D)].
    void (*gradient_rows[2])(const GradientPanel& panel, const Block& block, void* da);
    // out[i][j] = factor * a[i][j]; a is Real[rows][padded(cols)].
    void (*rows_out[2])(const void* a, int64_t rows, int64_t cols, double factor,
                        const Matrix& out);
    // out[i][j] = factor[i] * panel[j][i]: a panel's sums leave it.
    void (*transpose_out[2])(const void* panel, int64_t rows, int64_t cols, const void* factor,
                             const Matrix& out);
    // sums[i] = sum over j of a[i][j] * b[i][j]
    void (*row_products[2])(const Matrix& a, const Matrix& b, int64_t rows, int64_t cols,
                            void* sums);

    // n rounds of independent fused multiply-adds that fill the registers: the peak that the
    // benchmarks measure against. Returns the floating-point operations done.
    int64_t (*multiply_adds[2])(int64_t n);

    // The same for what is done to a score that is not a product. Returns the scores.
    int64_t (*weights[2])(int64_t n);

    // Reads memory once and does no more with it than it must: the bandwidth that they measure
    // against. Returns the bytes read.
    int64_t (*read_all[2])(const void* data, int64_t bytes);

    const Dots* dots[4] = {};                   // by DType; null: as float
    const DotsBackward* dots_backward[4] = {};  // likewise
    const StripDots* strip_dots[4] = {};        // likewise
};

}  // namespace clearhead
