// Cells of a grid that end as means. The chunks that add to a row of cells are counted beforehand:
// the first finds whatever stood there and sets it to zero, the last divides. So nobody has to
// clear all results before the pass and go through them once more after it, on one thread.
#pragma once
#include <algorithm>
#include <vector>

#include "observe.hpp"

namespace clearhead {

class Means {
  public:
    Means(const ObservationRequest& request, const GridRequest& grid, int64_t heads)
        : grid_(grid),
          heads_(1 + *std::max_element(request.target, request.target + heads)),
          chunks_(grid.R),
          rows_(grid.R),
          cols_(grid.C),
          added_(heads_.size() * grid.R) {
        for (int64_t h = 0; h < heads; ++h) ++heads_[request.target[h]];
        count(grid.rows, request.part.rows, rows_);
        count(grid.cols, request.part.keys, cols_);
    }

    // One chunk of every head adds to these rows of cells.
    void expect(int64_t first, int64_t count) {
        for (int64_t row = first; row < first + count; ++row) ++chunks_[row];
    }

    // Before a chunk adds to a row of cells, and after it. In turn.
    void begin(int64_t target, int64_t row, auto* largest) {
        if (added_[target * grid_.R + row] > 0) return;
        std::fill_n(grid_.sum + cell(target, row), grid_.C, 0.0);
        if (largest) std::fill_n(largest + cell(target, row), grid_.C, 0);
    }
    void end(int64_t target, int64_t row) {
        if (++added_[target * grid_.R + row] < chunks_[row] * heads_[target]) return;
        double* const sum = grid_.sum + cell(target, row);
        const double weights = rows_[row] * static_cast<double>(heads_[target]);
        for (int64_t c = 0; c < grid_.C; ++c) sum[c] /= weights * cols_[c];
    }

  private:
    static void count(const int64_t* labels, Range range, std::vector<double>& of_label) {
        for (int64_t i = 0; i < range.end - range.begin; ++i) {
            if (labels[i] >= 0) ++of_label[labels[i]];
        }
    }
    int64_t cell(int64_t target, int64_t row) const { return (target * grid_.R + row) * grid_.C; }

    const GridRequest& grid_;
    std::vector<int64_t> heads_, chunks_;  // of each target; of one head, for each row of cells
    std::vector<double> rows_, cols_;      // rows and keys of each label
    std::vector<int64_t> added_;           // [targets][R]: chunks
};

}  // namespace clearhead
