// What every pass over a problem shares: one worker's scratch, and the walk over the blocks of keys
// that a panel of queries may see.
#pragma once
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "caches.hpp"
#include "mask.hpp"
#include "memory.hpp"
#include "problem.hpp"

namespace clearhead {

// Aligned memory for a worker, cut into pieces. Taken before the work starts: once it runs, nothing
// can fail.
template <class Real>
class Scratch {
  public:
    explicit Scratch(std::initializer_list<int64_t> sizes) {
        int64_t total = aligned(16);
        for (const int64_t size : sizes) total += aligned(size);
        memory_ = borrow(total * sizeof(Real));
        next_ = static_cast<Real*>(memory_.get());
    }
    Real* take(int64_t size) { return std::exchange(next_, next_ + aligned(size)); }

  private:
    static int64_t aligned(int64_t n) {
        constexpr int64_t unit = 64 / sizeof(Real);
        return (n + unit - 1) / unit * unit;
    }
    Memory memory_;
    Real* next_;
};

// The mask and bias of one worker, laid out for the block at hand.
template <class Real>
struct Veil {
    std::optional<Mask> mask;
    std::vector<Real> bias;
    std::vector<uint64_t> visible;

    explicit Veil(const Problem& p, int64_t keys = kBlock) : visible(keys) {
        if (p.mask) mask = *p.mask;
        if (p.bias.kind != BiasKind::none) bias.resize(keys * kPanel);
    }
};

inline uint64_t first_bits(int64_t n) {
    return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
}

Matrix matrix(const Problem& p, const Array& a, const Place& at, int64_t head, int64_t row);

// Nats in log2 units. What is finite stays finite: the lowest number as a bias hides nothing.
template <class Real>
Real in_log2(double nats) {
    constexpr double most = std::numeric_limits<Real>::max();
    if (!std::isfinite(nats)) return static_cast<Real>(nats);
    return static_cast<Real>(std::clamp(nats * kLog2e, -most, most));
}

// The log-sum-exp of a row's state, in nats. What in_log2 has cut off is the lowest number again.
template <class Real>
double lse_of(Real m, Real l) {
    if (l == 0) return -INFINITY;
    const double unit = std::abs(m) < std::numeric_limits<Real>::max() ? kLn2 : 1;
    return static_cast<double>(m) * unit + std::log(static_cast<double>(l));
}

// Writes the lse of a panel's rows, in p.lse's own precision.
template <class Real>
void write_lse(const Problem& p, const Place& at, const Real* m, const Real* l) {
    const int64_t start = p.offset(p.lse, at, at.head) + at.t0 * p.lse.row;
    const auto write = [&](auto* lse) {
        using Written = std::remove_pointer_t<decltype(lse)>;
        for (int64_t r = 0; r < at.rows; ++r) {
            lse[start + r * p.lse.row] = static_cast<Written>(lse_of(m[r], l[r]));
        }
    };
    void* const data = const_cast<void*>(p.lse.data);
    if (p.lse.dtype == DType::f64) return write(static_cast<double*>(data));
    write(static_cast<float*>(data));
}

// Asks for the biases of the rows of a panel and of keys [begin, begin + count), as far as there
// are any: rows stand too far apart for the processor to look ahead by itself.
inline void fetch_bias(const Problem& p, const Place& at, int64_t begin, int64_t count) {
    const Array& a = p.bias.array;
    if (p.bias.kind != BiasKind::array || a.col != 1) return;
    const int64_t size = bytes(a.dtype), end = std::min(begin + count, p.S);
    const char* row = advance(a.data, a.dtype, p.offset(a, at, at.head) + at.t0 * a.row);
    for (int64_t i = 0; i < (a.row == 0 ? 1 : at.rows); ++i, row += a.row * size) {
        for (int64_t j = begin * size; j < end * size; j += 64) __builtin_prefetch(row + j, 0, 2);
    }
}

// Biases of scores (t0 + i, s0 + j), i < T, j < S, into out[j][i], or out[i][j] where lanes are
// keys,
// [..][kPanel]; a bias of -inf clears the lane's bit in `visible`.
template <class Real>
void lay_out_bias(const Problem& p, const Kernels& kernels, const Place& at, int64_t t0, int64_t T,
                  int64_t s0, int64_t S, bool lanes_are_keys, Real* out, uint64_t* visible) {
    const Array& a = p.bias.array;
    const int64_t start = p.offset(a, at, at.head);
    if (p.bias.kind == BiasKind::array) {
        const Matrix bias = {advance(a.data, a.dtype, start + t0 * a.row + s0 * a.col), a.row,
                             a.col, a.dtype};
        kernels.lay_out_bias[sizeof(Real) == 8](bias, lanes_are_keys, lanes_are_keys ? S : T,
                                                lanes_are_keys ? T : S, out, visible);
        return;
    }
    // Lanes that are not there get 0, so that no result depends on what stood there.
    const int64_t lanes = lanes_are_keys ? S : T, count = lanes_are_keys ? T : S;
    for (int64_t row = 0; row < count; ++row) {
        std::fill(out + row * kPanel + lanes, out + (row + 1) * kPanel, Real(0));
    }
    const auto write = [&](auto rule) {
        for (int64_t i = 0; i < T; ++i) {
            const int64_t position = t0 + i + p.S - p.T - s0;
            for (int64_t j = 0; j < S; ++j) {
                const double x = rule(position - j);
                const int64_t row = lanes_are_keys ? i : j, lane = lanes_are_keys ? j : i;
                out[row * kPanel + lane] = in_log2<Real>(x);
                if (x == -INFINITY) visible[row] &= ~(uint64_t{1} << lane);
            }
        }
    };
    const double* rule = static_cast<const double*>(a.data) + start;
    if (p.bias.kind == BiasKind::alibi) {
        write([slope = -*rule](int64_t distance) {
            return slope * static_cast<double>(distance < 0 ? -distance : distance);
        });
    } else {
        write([&](int64_t distance) {
            return rule[std::clamp(distance + p.bias.reach, int64_t{0}, p.bias.last) * a.col];
        });
    }
}

// Lays out mask bits and biases of keys [begin, begin + count) for the rows of `at`. Returns
// whether some row sees some key.
template <class Real>
bool lay_out(const Problem& p, const Kernels& kernels, const Place& at, int64_t begin,
             int64_t count, Seen seen, Veil<Real>& veil, Block& block) {
    const uint64_t rows = first_bits(at.rows);
    block = {begin, count, nullptr, nullptr};
    if (seen == Seen::all && p.bias.kind == BiasKind::none) return true;
    if (seen == Seen::some) {
        veil.mask->bits(at, begin, count, veil.visible.data());
    } else {
        std::fill_n(veil.visible.begin(), count, rows);
    }
    if (p.bias.kind != BiasKind::none) {
        lay_out_bias(p, kernels, at, at.t0, at.rows, begin, count, false, veil.bias.data(),
                     veil.visible.data());
        fetch_bias(p, at, begin + count, count);
        block.bias = veil.bias.data();
    }
    uint64_t every = rows, some = 0;
    for (int64_t i = 0; i < count; ++i) {
        every &= veil.visible[i];
        some |= veil.visible[i] & rows;
    }
    if (every != rows) block.visible = veil.visible.data();
    return some != 0;
}

// Calls f(block) for every block of the keys `within` that some row of `at` sees, in order.
template <class Real, class F>
void for_blocks(const Problem& p, const Kernels& kernels, const Place& at, Veil<Real>& veil,
                Range within, F f) {
    const int64_t keys = block_keys(first_level_bytes(), sizeof(Real));
    int64_t begin = within.begin;
    Block block;
    const auto walk = [&](int64_t run_end, Seen seen) {
        const int64_t end = std::min(run_end, within.end);
        for (; seen != Seen::none && begin < end; begin += keys) {
            if (lay_out(p, kernels, at, begin, std::min(keys, end - begin), seen, veil, block))
                f(block);
        }
        begin = std::max(within.begin, end);
    };
    if (veil.mask) {
        for (const Run& run : veil.mask->runs(at)) walk(run.end, run.seen);
    } else {
        walk(p.S, Seen::all);
    }
}

template <class Real, class F>
void for_blocks(const Problem& p, const Kernels& kernels, const Place& at, Veil<Real>& veil, F f) {
    for_blocks(p, kernels, at, veil, Range{0, p.S}, f);
}

}  // namespace clearhead
