// Observation: statistics of the attention matrix in one pass and linear memory.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels.hpp"
#include "problem.hpp"

namespace clearhead {

// A grid of R x C cells over the matrix; a negative label is in no cell.
struct GridRequest {
    const int64_t *rows, *cols;  // labels of the part's rows, below R, and keys, below C
    int64_t R, C;
    double* sum;    // [targets][R][C]
    void* largest;  // the same, or null
    bool means;     // weights are averaged over a cell's pairs and the heads that share it
    // Of the part's keys, filled by `observe`: where a key's run of labels ends.
    std::vector<int64_t> run_end = {};
};

// What is wanted; a null pointer is not. Every (batch, head) adds to the part of the results that
// `target` names, so that heads may share one. Results start at zero, but for the top weights,
// which are written, and for means, where every row and key of the grid has a label. Sums are
// double; `largest` and weights are Real (double for f64, float otherwise).
struct ObservationRequest {
    const int64_t* target = nullptr;  // [batches * H]
    std::vector<GridRequest> grids;   // at most kMaxGrids
    int64_t columns = 0;              // how many weighted sums of the rows
    Array weights;                    // Real [lead..., H, columns, T]; none: all 1
    double* column_sum = nullptr;     // [targets][columns][S]
    double* entropy = nullptr;        // [targets][T], nats
    void* largest = nullptr;          // [targets][T]
    int64_t top = 0;
    void* top_weight = nullptr;  // [batches * H][T][top], strongest first
    int64_t* top_key = nullptr;  // the same; -1 where a row sees fewer keys, or holds a NaN
    int64_t distances = 0;
    double* distance = nullptr;  // [targets][distances]
    Part part;                   // what lies outside adds nothing
};

constexpr size_t kMaxGrids = 2;

// p.lse is given, in nats, f32 or f64. `stop` is asked now and then on the caller's thread with the
// number of tasks done and of all; once it says true, no further one starts. Returns whether all
// ran. The same bits for any number of threads.
bool observe(const Problem& p, const ObservationRequest& request, const Kernels& kernels,
             const std::function<bool(int64_t, int64_t)>& stop);

}  // namespace clearhead
