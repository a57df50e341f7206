// One call of attention as the driver sees it: arrays with their strides, and the options.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels.hpp"

namespace clearhead {

constexpr int kMaxLead = 16;  // leading (batch) dimensions; NumPy has at most 64 in all

// An array seen as (lead..., H, row, col); strides in elements, 0 where it is broadcast.
struct Array {
    const void* data = nullptr;
    DType dtype = DType::f32;
    int64_t lead[kMaxLead] = {};
    int64_t head = 0, row = 0, col = 0;

    explicit operator bool() const { return data != nullptr; }
};

int64_t bytes(DType dtype);
const char* advance(const void* data, DType dtype, int64_t elements);
double read(const void* data, DType dtype, int64_t at);

// Rows or keys [begin, end), as far as there are any; by default all.
struct Range {
    int64_t begin = 0, end = std::numeric_limits<int64_t>::max();
};

// Which batch, head and query rows a piece of work is about.
struct Place {
    int64_t lead[kMaxLead];
    int64_t batch, head, t0, rows;
};

// What a bias adds to the score of query t and key s, in nats. The position of query t is
// t + S - T, as everywhere.
enum class BiasKind : int32_t {
    none,
    array,     // bias[..., h, t, s]
    alibi,     // -slope[h] * |position - s|
    distance,  // table[h, clamp(position - s + reach, 0, last)]
};

struct Bias {
    BiasKind kind = BiasKind::none;
    Array array;
    int64_t reach = 0, last = 0;
};

class Mask;

struct Problem {
    std::vector<int64_t> lead;  // shape of the leading dimensions
    int64_t H = 1, G = 1, T = 0, S = 0, D = 0, E = 0;
    Array q, k, v, out, lse;  // lse: [lead..., H, T], no array: not wanted
    Array sink;               // [..., H]
    Bias bias;
    const Mask* mask = nullptr;
    double scale = 1;
    double softcap = 0;  // 0: none

    int64_t batches() const;
    double operations() const;  // of the forward pass, about, if nothing were hidden
    int64_t panels() const { return (T + kPanel - 1) / kPanel; }
    Place place(int64_t batch, int64_t head, int64_t t0) const;
    int64_t offset(const Array& a, const Place& at, int64_t head) const;
    double q_factor() const;                // scale * log2(e), or scale / softcap
    double sink_at(const Place& at) const;  // in nats; -inf: none
};

// The part of the matrix that is looked at, by default all of it. Positions, and so masks and
// biases, stay the whole's.
struct Part {
    Range rows, keys;

    Part within(const Problem& p) const;  // up to the ends that there are
    int64_t panels(const Problem& p) const;
    Place place(const Problem& p, int64_t batch, int64_t head, int64_t panel) const;
};

// One double for each row: [lead..., H, T].
Array doubles_of_rows(const Problem& p, double* data);

}  // namespace clearhead
