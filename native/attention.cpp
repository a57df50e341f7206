#include "attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "mask.hpp"
#include "threads.hpp"

namespace clearhead {

int64_t bytes(DType dtype) {
    return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2;
}

const char* advance(const void* data, DType dtype, int64_t elements) {
    return static_cast<const char*>(data) + elements * bytes(dtype);
}

double read(const void* data, DType dtype, int64_t at) {
    const auto as = [&]<class Type>(Type) { return static_cast<const Type*>(data)[at]; };
    switch (dtype) {
        case DType::f64:
            return as(double{});
        case DType::f32:
            return as(float{});
        case DType::bf16:
            return __builtin_bit_cast(float, uint32_t{as(uint16_t{})} << 16);
        case DType::f16: {
            const uint16_t h = as(uint16_t{});
            const int exponent = h >> 10 & 31, fraction = h & 1023;
            const double sign = h & 0x8000 ? -1 : 1;
            if (exponent == 31) return fraction ? NAN : sign * INFINITY;
            if (exponent == 0) return sign * std::ldexp(fraction, -24);
            return sign * std::ldexp(1024 + fraction, exponent - 25);
        }
    }
    return 0;
}

Place Problem::place(int64_t batch, int64_t head, int64_t t0) const {
    Place at = {};
    at.batch = batch;
    at.head = head;
    at.t0 = t0;
    at.rows = std::min(kPanel, T - t0);
    for (size_t i = lead.size(); i-- > 0; batch /= lead[i]) at.lead[i] = batch % lead[i];
    return at;
}

int64_t Problem::offset(const Array& a, const Place& at, int64_t head) const {
    int64_t offset = head * a.head;
    for (size_t i = 0; i < lead.size(); ++i) offset += at.lead[i] * a.lead[i];
    return offset;
}

namespace {

// What one worker needs, allocated before the work starts.
template <class Real>
struct Worker {
    Panel panel;
    std::optional<Mask> mask;
    std::vector<Real> bias;
    std::vector<uint64_t> visible;
    std::unique_ptr<Real, void (*)(void*)> scratch{nullptr, std::free};

    explicit Worker(const Problem& p) : visible(kBlock) {
        const bool converts = bytes(p.q.dtype) < static_cast<int64_t>(sizeof(Real));
        const int64_t sizes[] = {p.D * kPanel,
                                 p.E * kPanel,
                                 kBlock * kPanel,
                                 kPanel,
                                 2 * kPanel,
                                 converts ? kBlock * p.D : 0,
                                 converts ? kBlock * p.E : 0};
        constexpr int64_t kAlign = 64 / sizeof(Real);
        const auto aligned = [](int64_t n) { return (n + kAlign - 1) / kAlign * kAlign; };
        int64_t total = 0;
        for (const int64_t size : sizes) total += aligned(size);
        scratch.reset(static_cast<Real*>(std::aligned_alloc(64, total * sizeof(Real))));
        if (!scratch) throw std::bad_alloc();
        Real* next = scratch.get();
        void** const pointers[] = {&panel.qt, &panel.ot,     &panel.p,     &panel.m,
                                   &panel.l,  &panel.k_rows, &panel.v_rows};
        for (size_t i = 0; i < std::size(sizes); next += aligned(sizes[i++])) *pointers[i] = next;
        if (p.mask) mask = *p.mask;
        if (p.bias.kind != BiasKind::none) bias.resize(kBlock * kPanel);
    }
};

Matrix matrix(const Problem& p, const Array& a, const Place& at, int64_t head, int64_t row) {
    const int64_t start = p.offset(a, at, head) + row * a.row;
    return {advance(a.data, a.dtype, start), a.row, a.col, a.dtype};
}

double bias_at(const Problem& p, int64_t start, int64_t t, int64_t s) {
    const Bias& bias = p.bias;
    const Array& a = bias.array;
    const int64_t distance = t + p.S - p.T - s;
    switch (bias.kind) {
        case BiasKind::array:
            return read(a.data, a.dtype, start + t * a.row + s * a.col);
        case BiasKind::alibi:
            return -read(a.data, a.dtype, start) * static_cast<double>(std::abs(distance));
        case BiasKind::distance: {
            const int64_t entry = std::clamp(distance, -bias.reach, bias.last - bias.reach);
            return read(a.data, a.dtype, start + (entry + bias.reach) * a.col);
        }
        case BiasKind::none:
            break;
    }
    return 0;
}

// The bias of a block in the kernel's layout and units. A bias of -inf hides its key as a mask
// does: it clears the row's bit.
template <class Real>
void lay_out_bias(const Problem& p, const Place& at, int64_t begin, int64_t count,
                  Worker<Real>& worker) {
    const int64_t start = p.offset(p.bias.array, at, at.head);
    for (int64_t i = 0; i < count; ++i) {
        for (int64_t r = 0; r < at.rows; ++r) {
            const double x = bias_at(p, start, at.t0 + r, begin + i) * kLog2e;
            worker.bias[i * kPanel + r] = static_cast<Real>(x);
            if (x == -INFINITY) worker.visible[i] &= ~(uint64_t{1} << r);
        }
    }
}

// Shows keys [begin, begin + count) to the panel, unless no row of it sees any.
template <class Real>
void show(const Problem& p, const Kernels& kernels, const Place& at, int64_t begin, int64_t count,
          Seen seen, Worker<Real>& worker) {
    const uint64_t rows = at.rows == kPanel ? ~uint64_t{0} : (uint64_t{1} << at.rows) - 1;
    Block block = {begin, count, nullptr, nullptr};
    if (seen == Seen::some) {
        worker.mask->bits(at, begin, count, worker.visible.data());
    } else {
        std::fill_n(worker.visible.begin(), count, rows);
    }
    if (p.bias.kind != BiasKind::none) {
        lay_out_bias(p, at, begin, count, worker);
        block.bias = worker.bias.data();
    }
    uint64_t every = rows, some = 0;
    for (int64_t i = 0; i < count; ++i) {
        every &= worker.visible[i];
        some |= worker.visible[i];
    }
    if ((some & rows) == 0) return;
    if (every != rows) block.visible = worker.visible.data();
    kernels.attend[sizeof(Real) == 8](worker.panel, block);
}

template <class Real>
void write_lse(const Problem& p, const Place& at, const Panel& panel) {
    const Real* m = static_cast<const Real*>(panel.m);
    const Real* l = static_cast<const Real*>(panel.l);
    const int64_t start = p.offset(p.lse, at, at.head);
    Real* lse = static_cast<Real*>(const_cast<void*>(p.lse.data));
    for (int64_t r = 0; r < at.rows; ++r) {
        const double sum = static_cast<double>(l[r]);
        lse[start + (at.t0 + r) * p.lse.row] = static_cast<Real>(
            sum == 0 ? -INFINITY : static_cast<double>(m[r]) * kLn2 + std::log(sum));
    }
}

template <class Real>
void forward_panel(const Problem& p, const Kernels& kernels, const Place& at,
                   Worker<Real>& worker) {
    constexpr int precision = sizeof(Real) == 8;
    const int64_t group = at.head / (p.H / p.G);
    Panel& panel = worker.panel;
    panel.rows = at.rows;
    panel.D = p.D;
    panel.E = p.E;
    panel.q = matrix(p, p.q, at, at.head, at.t0);
    panel.k = matrix(p, p.k, at, group, 0);
    panel.v = matrix(p, p.v, at, group, 0);
    panel.q_factor = p.softcap != 0 ? p.scale / p.softcap : p.scale * kLog2e;
    panel.cap_factor = p.softcap * kLog2e;
    panel.sink = -INFINITY;
    if (p.sink) {
        const int64_t start = p.offset(p.sink, at, at.head);
        panel.sink = read(p.sink.data, p.sink.dtype, start) * kLog2e;
    }
    kernels.begin[precision](panel);
    int64_t begin = 0;
    const auto run = [&](int64_t end, Seen seen) {
        for (; seen != Seen::none && begin < end; begin += kBlock) {
            show(p, kernels, at, begin, std::min(kBlock, end - begin), seen, worker);
        }
        begin = end;
    };
    if (worker.mask) {
        for (const Run& r : worker.mask->runs(at)) run(r.end, r.seen);
    } else {
        run(p.S, Seen::all);
    }
    kernels.finish[precision](panel, matrix(p, p.out, at, at.head, at.t0));
    if (p.lse) write_lse<Real>(p, at, panel);
}

template <class Real>
bool forward_in(const Problem& p, const Kernels& kernels,
                const std::function<bool()>& interrupted) {
    const int64_t panels = (p.T + kPanel - 1) / kPanel;
    const int64_t tasks = p.batches() * p.H * panels;
    if (tasks == 0) return true;
    const int count = workers_for(tasks);
    std::vector<Worker<Real>> workers;
    workers.reserve(count);
    for (int i = 0; i < count; ++i) workers.emplace_back(p);
    // The last panels of a causal head are the longest: they go first, so that none is left to run
    // alone at the end.
    return parallel_for(
        tasks, count,
        [&](int64_t task, int worker) {
            const int64_t panel = panels - 1 - task % panels, head = task / panels;
            forward_panel(p, kernels, p.place(head / p.H, head % p.H, panel * kPanel),
                          workers[worker]);
        },
        interrupted);
}

}  // namespace

bool forward(const Problem& p, const Kernels& kernels, const std::function<bool()>& interrupted) {
    return p.q.dtype == DType::f64 ? forward_in<double>(p, kernels, interrupted)
                                   : forward_in<float>(p, kernels, interrupted);
}

}  // namespace clearhead
