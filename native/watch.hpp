// What a pass of observation keeps of a panel's weights: plain data between its driver
// (observe.cpp) and its kernel (observe.inl.hpp). Sums over a block are in Real and go to double
// when the block ends; scratch pointers are to Real where the type is void.
#pragma once
#include "kernels.hpp"

namespace clearhead {

constexpr int64_t kPending = 16;  // runs of keys that a grid gathers before it adds them up

// Cells of a grid: rows and keys carry labels, equal neighbours share a cell. The panel's rows form
// `slots`, runs of rows with one label. Runs of keys are summed down and wait, row by row, until a
// vector of them can be summed across.
struct Grid {
    int64_t first;           // the key of label[0]
    const int64_t* label;    // a key's column in the grid; negative: none
    const int64_t* run_end;  // where the keys of its label that follow each other end
    int64_t slots;           // at most kPanel
    int8_t slot[kPanel];     // of each row; negative: in no row of the grid
    double* sum[kPanel];     // of each slot: its row of the grid
    void* largest[kPanel];   // the same for the largest weight; null where not wanted
    int64_t pending;         // runs that wait
    int64_t pending_label[kPending], pending_keys[kPending];
    void *pending_sum, *pending_largest;  // [kPending][kPanel]
};

struct Watch {
    int64_t rows;     // the panel's; lanes beyond have weight 0
    const void* low;  // [kPanel]: what rounding took from lse in panel.m; null: nothing
    Grid* grids;      // [grid_count]
    int64_t grid_count;
    int64_t columns;      // weighted column sums: how many
    const void* weights;  // [columns][kPanel], 0 beyond `rows`; null: all 1
    double* column_sum;   // [columns][S]
    int64_t S;
    double* entropy;  // [kPanel], in bits; null: not wanted
    void* largest;    // [kPanel], log2 of the largest weight; null: not wanted
    // The largest weights of each row: how many, and what a score (log2 of a weight) must pass to
    // become one of them. Few are kept sorted, [top][kPanel], their keys as the bits of a Real in
    // top_place. Many, where that is null, are listed in the order of the keys, [kPanel][top_room].
    int64_t top, top_room;  // top_room is above `top`
    void* threshold;        // [kPanel]; few: the last level of top_score
    void *top_score, *top_place;
    int64_t *top_key, *top_count;     // [kPanel][top_room], [kPanel]
    void* top_spare;                  // [top_room]
    void *found_score, *found_place;  // [kBlock * kPanel + a vector]
    int64_t distances;                // d < distances are summed
    int64_t position;                 // of row 0 among the keys
    double* distance;                 // [distances]
};

}  // namespace clearhead
