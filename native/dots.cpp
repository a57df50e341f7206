#include <algorithm>
#include <cmath>
#include <vector>

#include "attention.hpp"
#include "caches.hpp"
#include "chains.hpp"
#include "dots.hpp"
#include "panels.hpp"
#include "threads.hpp"

namespace clearhead {
namespace {

constexpr int64_t kGroupsOfPiece = 16;  // that are packed at a time
constexpr int64_t kTogether = 8;  // panels that share a stretch of keys while a cache holds it

struct Shape {
    int64_t groups, k, v;  // of a packed head: groups of keys; bfloat16 of its keys, its values

    Shape(const Problem& p, int64_t parts)
        : groups(tiles(p.S, kGroup)),
          k(groups * parts * 2 * tiles(p.D, 32) * kTile * 32),
          v(groups * parts * tiles(p.E, kTile) * kTile * 32) {}
    int64_t bytes() const { return 2 * (k + v) + 8 * groups; }

    // Groups of keys that take half of a core's second cache: whole blocks.
    int64_t stretch() const {
        const int64_t fit = second_level_bytes() / 2 * groups / std::max<int64_t>(1, bytes());
        return std::max(fit / kGroupsOfBlock, int64_t{1}) * kGroupsOfBlock;
    }
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

// Panels of one head at work together.
struct DotWorker {
    std::vector<DotPanel> panels;
    std::vector<Place> places;
    std::vector<std::vector<Run>> runs;  // of a place's keys, where there is a mask
    std::vector<Range> seen;             // groups from the first that a place sees to the last
    std::optional<Mask> mask;
    std::vector<uint64_t> visible;
    std::vector<float> bias;
    Scratch<float> scratch;

    DotWorker(const Problem& p, int64_t parts, int64_t together)
        : panels(together),
          runs(together),
          seen(together),
          visible(kGroupsOfBlock * kGroup),
          scratch({together * queries(p, parts), scores(), weights(parts), together * outputs(p),
                   4 * kSquare, together * kPanel, together * kPanel, 2 * kPanel}) {
        places.reserve(together);
        if (p.mask) mask = *p.mask;
        if (p.bias.kind != BiasKind::none) bias.resize(kGroupsOfBlock * kGroup * kPanel);
        float* const qt = scratch.take(together * queries(p, parts));
        float* const s = scratch.take(scores());
        float* const weighed = scratch.take(weights(parts));
        float* const o = scratch.take(together * outputs(p));
        float* const fresh = scratch.take(4 * kSquare);
        float* const m = scratch.take(together * kPanel);
        float* const l = scratch.take(together * kPanel);
        float* const sums = scratch.take(2 * kPanel);
        for (int64_t i = 0; i < together; ++i) {
            DotPanel& panel = panels[i];
            panel.qt = reinterpret_cast<uint16_t*>(qt + i * queries(p, parts));
            panel.s = s;
            panel.p = reinterpret_cast<uint16_t*>(weighed);
            panel.o = o + i * outputs(p);
            panel.fresh = fresh;
            panel.m = m + i * kPanel;
            panel.l = l + i * kPanel;
            panel.sums = sums;
        }
    }

  private:
    static constexpr int64_t kSquare = kTile * kTile;
    static int64_t queries(const Problem& p, int64_t parts) {
        return parts * tiles(p.D, 32) * kTile * kPanel;
    }
    static int64_t scores() { return kGroupsOfScores * kGroup * kPanel; }
    static int64_t weights(int64_t parts) { return kGroupsOfBlock * parts * kTile * kPanel; }
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
    if (biased) fetch_bias(p, at, first + count, count);
    if (biased) std::fill_n(worker.bias.data() + present * kPanel, (count - present) * kPanel, 0);
    block.visible = visible;
    block.bias = biased ? worker.bias.data() : nullptr;
    return std::any_of(visible, visible + count, [&](uint64_t bits) { return bits & rows; });
}

// Calls f(block) for every block of the groups `within` that some row of `at` sees, in order.
// `runs` are what the mask says of the place's keys, if there is one.
template <class F>
void for_groups(const Problem& p, const Kernels& kernels, const Place& at,
                const std::vector<Run>& runs, Range within, DotWorker& worker, F f) {
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
    DotBlock block = {};
    bool all_seen = true;
    const auto flush = [&] {
        if (block.groups > 0 && lay_out(p, kernels, at, all_seen, worker, block)) f(block);
        block = {};
        all_seen = true;
    };
    for (int64_t group = within.begin; group < within.end; ++group) {
        const Seen it = seen(group);
        if (it == Seen::none || block.groups == kGroupsOfBlock) flush();
        if (it == Seen::none) continue;
        if (block.groups++ == 0) block.begin = group;
        all_seen &= it == Seen::all;
    }
    flush();
}

Range groups_seen(const Problem& p, const std::vector<Run>& runs) {
    if (runs.empty()) return {0, tiles(p.S, kGroup)};
    Range seen = {0, 0};
    int64_t begin = 0;
    for (const Run& run : runs) {
        if (run.seen != Seen::none) {
            if (seen.end == 0) seen.begin = begin / kGroup;
            seen.end = tiles(run.end, kGroup);
        }
        begin = run.end;
    }
    return seen;
}

void write_lse(const Problem& p, const Place& at, const DotPanel& panel) {
    const int64_t start = p.offset(p.lse, at, at.head);
    const auto write = [&](auto* lse) {
        for (int64_t r = 0; r < at.rows; ++r) {
            const double sum = panel.l[r];
            lse[start + (at.t0 + r) * p.lse.row] =
                sum == 0 ? -INFINITY : panel.m[r] * kLn2 + std::log(sum);
        }
    };
    void* const data = const_cast<void*>(p.lse.data);
    if (p.lse.dtype == DType::f64) return write(static_cast<double*>(data));
    write(static_cast<float*>(data));
}

void set_up(const Problem& p, const Place& at, const Packed& kv, DotPanel& panel) {
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
}

// Panels [first, last) of one head, those that its parts can hold. The keys come in stretches that
// stay in a cache while all the panels pass.
void forward_panels(const Problem& p, const Kernels& kernels, const Dots& dots, const Shape& shape,
                    Place at, int64_t first, int64_t last, const Packed& kv, DotWorker& worker,
                    uint8_t* left) {
    worker.places.clear();
    for (int64_t i = first; i < last; ++i) {
        at = p.place(at.batch, at.head, i * kPanel);
        const size_t n = worker.places.size();
        set_up(p, at, kv, worker.panels[n]);
        left[i] = !dots.begin(worker.panels[n]);
        if (left[i]) continue;
        if (worker.mask) worker.runs[n] = worker.mask->runs(at);
        worker.seen[n] = groups_seen(p, worker.runs[n]);
        worker.places.push_back(at);
    }
    const int64_t stretch = last - first > 1 ? shape.stretch() : shape.groups;
    for (int64_t begin = 0; begin < shape.groups; begin += stretch) {
        for (size_t i = 0; i < worker.places.size(); ++i) {
            const Range within = {std::max(begin, worker.seen[i].begin),
                                  std::min(begin + stretch, worker.seen[i].end)};
            for_groups(p, kernels, worker.places[i], worker.runs[i], within, worker,
                       [&](const DotBlock& block) { dots.attend(worker.panels[i], block); });
        }
    }
    for (size_t i = 0; i < worker.places.size(); ++i) {
        const Place& place = worker.places[i];
        dots.finish(worker.panels[i], matrix(p, p.out, place, place.head, place.t0));
        if (p.lse) write_lse(p, place, worker.panels[i]);
    }
}

}  // namespace

bool forward_by_dots(const Problem& p, const Kernels& kernels, const std::vector<uint8_t>& worth,
                     const std::function<bool()>& interrupted, std::vector<uint8_t>& left) {
    const Dots& dots = *kernels.dots[static_cast<int>(p.q.dtype)];
    const Shape shape(p, dots.parts);
    const int64_t heads = p.batches() * p.G, shared = p.H / p.G, panels = p.panels();
    left.assign(heads * shared * panels, 0);
    for (int64_t head = 0; head < heads; ++head) {
        if (!worth[head]) std::fill_n(&left[head * shared * panels], shared * panels, 1);
    }
    if (std::none_of(worth.begin(), worth.end(), [](uint8_t w) { return w; })) return true;
    // Panels go together where the keys do not fit, as long as some pieces are left for everybody.
    const int64_t all = heads * shared * panels;
    const int64_t together =
        shape.groups <= shape.stretch()
            ? 1
            : std::clamp<int64_t>(all / (8 * workers_for(all)), 1, std::min(panels, kTogether));
    // A chain is a head of keys: it is packed, and then the panels of its queries attend.
    const int64_t packs = tiles(shape.groups, kGroupsOfPiece), parts = tiles(panels, together);
    const int count = workers_for(heads * (packs + shared * parts), p.operations());
    Chains chains(heads, packs + shared * parts, count);
    Turns packed(heads);
    const PackedHeads slots(shape, std::min<int64_t>(count, heads));
    std::vector<DotWorker> workers;
    workers.reserve(count);
    for (int i = 0; i < count; ++i) workers.emplace_back(p, dots.parts, together);
    const auto pack = [&](const Chains::Piece& piece) {
        const int64_t group = piece.chain % p.G, begin = piece.index * kGroupsOfPiece;
        const Place at = p.place(piece.chain / p.G, 0, 0);
        const Matrix k = matrix(p, p.k, at, group, 0), v = matrix(p, p.v, at, group, 0);
        for (int64_t g = begin; g < std::min(shape.groups, begin + kGroupsOfPiece); ++g) {
            dots.pack(k, v, p.S, p.D, p.E, g, slots[piece.slot]);
        }
        packed.add(piece.chain);
    };
    // The last panels of a causal head are the longest: they go first, so that none is left to run
    // alone at the end.
    const auto attend = [&](const Chains::Piece& piece, DotWorker& worker) {
        const int64_t index = piece.index - packs, part = parts - 1 - index % parts;
        const int64_t head = piece.chain % p.G * shared + index / parts;
        const Place at = p.place(piece.chain / p.G, head, 0);
        packed.wait(piece.chain, packs);
        forward_panels(p, kernels, dots, shape, at, part * together,
                       std::min(panels, (part + 1) * together), slots[piece.slot], worker,
                       &left[(at.batch * p.H + head) * panels]);
    };
    return parallel_for(
        chains.pieces(), count,
        [&](int64_t, int worker) {
            const Chains::Piece piece = chains.take(worker);
            if (!worth[piece.chain]) return;
            if (piece.index < packs) {
                pack(piece);
            } else {
                attend(piece, workers[worker]);
            }
        },
        interrupted);
}

}  // namespace clearhead
