#include <algorithm>
#include <cmath>
#include <vector>

#include "attention.hpp"
#include "dots.hpp"
#include "panels.hpp"
#include "threads.hpp"

namespace clearhead {
namespace {

constexpr int64_t kPackedBytes = int64_t{32} << 20;  // heads are packed together up to this size

struct Shape {
    int64_t groups, k, v;  // bfloat16 of a packed head

    explicit Shape(const Problem& p)
        : groups(tiles(p.S, kGroup)),
          k(groups * 2 * tiles(p.D, 32) * kTile * 32),
          v(groups * tiles(p.E, kTile) * kTile * 32) {}
    int64_t bytes() const { return 2 * (k + v) + 8 * groups; }
};

// Packed heads of keys and values, [count].
class PackedHeads {
  public:
    PackedHeads(const Shape& shape, int64_t count)
        : shape_(shape),
          numbers_({count * (shape.k + shape.v)}),
          sizes_({2 * count * shape.groups}),
          packed_(numbers_.take(count * (shape.k + shape.v))),
          of_groups_(sizes_.take(2 * count * shape.groups)) {}

    Packed operator[](int64_t i) const {
        uint16_t* k = packed_ + i * (shape_.k + shape_.v);
        float* length = of_groups_ + 2 * i * shape_.groups;
        return {k, k + shape_.k, length, length + shape_.groups};
    }

  private:
    Shape shape_;
    Scratch<uint16_t> numbers_;
    Scratch<float> sizes_;
    uint16_t* packed_;
    float* of_groups_;
};

struct DotWorker {
    DotPanel panel = {};
    std::optional<Mask> mask;
    std::vector<uint64_t> visible;
    std::vector<float> bias;
    Scratch<float> scratch;

    explicit DotWorker(const Problem& p)
        : visible(kGroupsOfBlock * kGroup),
          scratch({queries(p), scores(), weights(), outputs(p), kPanel, kPanel}) {
        if (p.mask) mask = *p.mask;
        if (p.bias.kind != BiasKind::none) bias.resize(kGroupsOfBlock * kGroup * kPanel);
        panel.qt = reinterpret_cast<uint16_t*>(scratch.take(queries(p)));
        panel.s = scratch.take(scores());
        panel.p = reinterpret_cast<uint16_t*>(scratch.take(weights()));
        panel.o = scratch.take(outputs(p));
        panel.m = scratch.take(kPanel);
        panel.l = scratch.take(kPanel);
    }

  private:
    static int64_t queries(const Problem& p) { return tiles(p.D, 32) * kTile * kPanel; }
    static int64_t scores() { return kGroupsOfScores * kGroup * kPanel; }
    static int64_t weights() { return kGroupsOfBlock * kTile * kPanel; }
    static int64_t outputs(const Problem& p) { return tiles(p.E + 1, kTile) * kTile * kPanel; }
};

// Lays out mask bits and biases of the block's keys. Returns whether some row sees some key.
bool lay_out(const Problem& p, const Kernels& kernels, const Place& at, bool all_seen,
             DotWorker& worker, DotBlock& block) {
    const int64_t first = block.begin * kGroup, count = block.groups * kGroup;
    const int64_t present = std::min(count, p.S - first);
    const bool biased = p.bias.kind != BiasKind::none;
    if (all_seen && present == count && !biased) return true;
    uint64_t* visible = worker.visible.data();
    const uint64_t rows = first_bits(at.rows);
    std::fill_n(visible, count, 0);
    for (int64_t i = 0; i < present; i += kPanel) {
        const int64_t n = std::min(kPanel, present - i);
        if (all_seen) {
            std::fill_n(visible + i, n, rows);
        } else {
            worker.mask->bits(at, first + i, n, visible + i);
        }
        if (biased) {
            lay_out_bias(p, kernels, at, at.t0, at.rows, first + i, n, false,
                         worker.bias.data() + i * kPanel, visible + i);
        }
    }
    if (biased) std::fill_n(worker.bias.data() + present * kPanel, (count - present) * kPanel, 0);
    block.visible = visible;
    block.bias = biased ? worker.bias.data() : nullptr;
    return std::any_of(visible, visible + count, [&](uint64_t bits) { return bits & rows; });
}

// Calls f(block) for every block of groups that some row of `at` sees, in order.
template <class F>
void for_groups(const Problem& p, const Kernels& kernels, const Place& at, DotWorker& worker, F f) {
    static const std::vector<Run> none;
    const std::vector<Run>& runs = worker.mask ? worker.mask->runs(at) : none;
    size_t run = 0;
    const auto seen = [&](int64_t group) {  // by what the runs say of the group's keys
        if (!worker.mask) return Seen::all;
        const int64_t begin = group * kGroup, end = std::min(p.S, begin + kGroup);
        while (runs[run].end <= begin) ++run;
        bool some = false, all = true;
        for (size_t i = run; i < runs.size(); ++i) {
            some |= runs[i].seen != Seen::none;
            all &= runs[i].seen == Seen::all;
            if (runs[i].end >= end) break;
        }
        return all ? Seen::all : some ? Seen::some : Seen::none;
    };
    const int64_t groups = tiles(p.S, kGroup);
    DotBlock block = {};
    bool all_seen = true;
    const auto flush = [&] {
        if (block.groups > 0 && lay_out(p, kernels, at, all_seen, worker, block)) f(block);
        block = {};
        all_seen = true;
    };
    for (int64_t group = 0; group < groups; ++group) {
        const Seen it = seen(group);
        if (it == Seen::none || block.groups == kGroupsOfBlock) flush();
        if (it == Seen::none) continue;
        if (block.groups++ == 0) block.begin = group;
        all_seen &= it == Seen::all;
    }
    flush();
}

void write_lse(const Problem& p, const Place& at, const DotPanel& panel) {
    const int64_t start = p.offset(p.lse, at, at.head);
    float* lse = static_cast<float*>(const_cast<void*>(p.lse.data));
    for (int64_t r = 0; r < at.rows; ++r) {
        const double sum = panel.l[r];
        lse[start + (at.t0 + r) * p.lse.row] =
            sum == 0 ? -INFINITY : static_cast<float>(panel.m[r] * kLn2 + std::log(sum));
    }
}

void forward_panel(const Problem& p, const Kernels& kernels, const Place& at, const Packed& kv,
                   DotWorker& worker) {
    DotPanel& panel = worker.panel;
    panel.rows = at.rows;
    panel.S = p.S;
    panel.D = p.D;
    panel.E = p.E;
    panel.q = matrix(p, p.q, at, at.head, at.t0);
    panel.kv = kv;
    panel.s_factor = p.q_factor();
    panel.cap_factor = p.softcap * kLog2e;
    panel.sink = in_log2<float>(p.sink_at(at));
    panel.biased = p.bias.kind != BiasKind::none;
    panel.wants_lse = static_cast<bool>(p.lse);
    kernels.dots->begin(panel);
    for_groups(p, kernels, at, worker,
               [&](const DotBlock& block) { kernels.dots->attend(panel, block); });
    kernels.dots->finish(panel, matrix(p, p.out, at, at.head, at.t0));
    if (p.lse) write_lse(p, at, panel);
}

}  // namespace

bool forward_by_dots(const Problem& p, const Kernels& kernels,
                     const std::function<bool()>& interrupted) {
    const Shape shape(p);
    const int64_t heads = p.batches() * p.G, shared = p.H / p.G, panels = p.panels();
    const int64_t wave =
        std::clamp<int64_t>(kPackedBytes / std::max<int64_t>(1, shape.bytes()), 1, heads);
    const PackedHeads packed(shape, wave);
    const int count = workers_for(wave * shared * panels);
    std::vector<DotWorker> workers;
    workers.reserve(count);
    for (int i = 0; i < count; ++i) workers.emplace_back(p);
    for (int64_t first = 0; first < heads; first += wave) {
        const int64_t here = std::min(wave, heads - first);
        const int64_t tasks_of_head = tiles(shape.groups, kGroupsOfBlock);
        const auto pack = [&](int64_t task, int) {
            const int64_t head = first + task / tasks_of_head, group = head % p.G;
            const Place at = p.place(head / p.G, 0, 0);
            const Matrix k = matrix(p, p.k, at, group, 0), v = matrix(p, p.v, at, group, 0);
            const int64_t begin = task % tasks_of_head * kGroupsOfBlock;
            const int64_t end = std::min(shape.groups, begin + kGroupsOfBlock);
            for (int64_t g = begin; g < end; ++g) {
                kernels.dots->pack(k, v, p.S, p.D, p.E, g, packed[head - first]);
            }
        };
        // The last panels of a causal head are the longest: they go first, so that none is left to
        // run alone at the end.
        const auto attend = [&](int64_t task, int worker) {
            const int64_t panel = panels - 1 - task % panels, member = task / panels % shared;
            const int64_t head = first + task / panels / shared;
            const Place at = p.place(head / p.G, head % p.G * shared + member, panel * kPanel);
            forward_panel(p, kernels, at, packed[head - first], workers[worker]);
        };
        if (!parallel_for(here * tasks_of_head, workers_for(here * tasks_of_head), pack,
                          interrupted) ||
            !parallel_for(here * shared * panels, count, attend, interrupted)) {
            return false;
        }
    }
    return true;
}

}  // namespace clearhead
