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

constexpr int64_t kPanel = 64;  // rows of a panel: one bit each in a uint64_t
constexpr int64_t kBlock = 96;  // keys of a block: P (96 x 64 floats) stays close to Q
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
    double q_factor;    // multiplies q as it is transposed: scale * log2(e), or scale / softcap
    double cap_factor;  // softcap * log2(e): score = cap_factor * tanh(q . k); 0: no softcap
    double sink;        // the head's sink in log2 units; -inf: none
    void* qt;           // [D][kPanel]
    void* ot;           // [E][kPanel]
    void* p;            // [kBlock][kPanel]
    void* m;            // [kPanel] reference maximum, log2 units; -inf while a row has seen no key
    void* l;            // [kPanel] sum of 2^(s - m)
    void* k_rows;       // [kBlock][D], where k must be converted
    void* v_rows;       // [kBlock][E], where v must be converted
    int32_t all_seen;   // every row has seen a key: the fast path may compare against m
};

// What an instruction set gives. Index 0 works in float, 1 in double.
struct Kernels {
    const char* isa;
    void (*begin[2])(Panel& panel);                       // transposes q, clears the state
    void (*attend[2])(Panel& panel, const Block& block);  // state += the block's keys and values
    void (*finish[2])(Panel& panel, const Matrix& out);   // out = o / l
};

}  // namespace clearhead
