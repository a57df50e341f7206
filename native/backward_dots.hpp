// The gradient by dot-product instructions on bfloat16, for the driver in backward.cpp: where the
// rows of q and dout lie once they are laid out, and a panel of keys for each worker.
#pragma once
#include <atomic>
#include <vector>

#include "dots_backward.hpp"
#include "panels.hpp"

namespace clearhead {

class DotGradients {
  public:
    // `chains` are groups of heads that read the same keys; `slots` of them are at work at once,
    // and `together` panels of keys with each worker.
    DotGradients(const Problem& p, const Array& dout, const DotsBackward& dots, int64_t chains,
                 int64_t slots, int64_t workers, int64_t together);

    // Lays out one panel of queries of a chain, the `step`-th, and looks at it.
    void lay_queries(int64_t chain, int slot, int64_t step, const Place& at);
    // How large its numbers are, and those of a part of its keys.
    void look(int64_t chain, int64_t step, const Place& at);
    // Whether parts hold the numbers of a chain whose panels have all been looked at.
    bool holds(int64_t chain) const;

    // The i-th panel of keys with a worker.
    void begin(int worker, int64_t i, const Matrix& k, const Matrix& v, int64_t keys);
    // As Kernels::gradient_block and gradient_rows. Statistics: shift, delta, factor.
    void block(int worker, int64_t i, int slot, int64_t step, int64_t rows,
               const float* const (&statistics)[3], const Block& block);
    void rows(int worker, int64_t i, int64_t rows, float* dq) {
        dots_.rows(panel(worker, i), rows, dq);
    }
    const KeyPanel& end(int worker, int64_t i) {
        dots_.end();
        return panel(worker, i);
    }

  private:
    // bfloat16 of 64 laid rows, in either order, and of 64 keys.
    int64_t rows_of(int64_t cols) const { return dots_.parts * tiles(cols, 32) * 32 * kPanel; }
    int64_t columns_of(int64_t cols) const {
        return dots_.parts * tiles(cols, kTile) * kTile * kPanel;
    }
    int64_t step_size() const {
        return rows_of(p_.D) + columns_of(p_.D) + rows_of(p_.E) + columns_of(p_.E);
    }
    KeyPanel& panel(int worker, int64_t i) { return panels_[worker * together_ + i]; }
    Laid laid(int slot, int64_t step, bool dout) const;

    const Problem& p_;
    const Array& dout_;
    const DotsBackward& dots_;
    const int64_t steps_, together_;  // panels of queries of a chain; of keys with a worker
    Scratch<uint16_t> memory_;
    uint16_t* const laid_;  // [slot][step]: q by rows and columns, dout by rows and columns
    // The largest magnitudes of each chain's q, k, v and dout, as bits: they are in their order.
    std::vector<std::atomic<uint32_t>> largest_;
    std::vector<Scratch<float>> scratch_;
    std::vector<KeyPanel> panels_;
};

}  // namespace clearhead
