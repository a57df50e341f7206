#include <algorithm>
#include <cmath>
#include <vector>

#include "attention.hpp"
#include "chains.hpp"
#include "groups.hpp"
#include "threads.hpp"

namespace clearhead {
namespace {

constexpr int64_t kTogether = 8;  // panels that share a stretch of keys while a cache holds it

// Panels of one head at work together.
struct DotWorker {
    std::vector<DotPanel> panels;
    std::vector<Place> places;
    std::vector<std::vector<Run>> runs;  // of a place's keys, where there is a mask
    std::vector<Range> seen;             // groups from the first that a place sees to the last
    Veil<float> veil;
    Scratch<float> scratch;

    DotWorker(const Problem& p, int64_t parts, int64_t together)
        : panels(together),
          runs(together),
          seen(together),
          veil(p, kGroupsOfBlock * kGroup),
          scratch({together * queries(p, parts), scores(), weights(parts), together * outputs(p),
                   4 * kSquare, together * kPanel, together * kPanel, 2 * kPanel}) {
        places.reserve(together);
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

// Panels [first, last) of one head's rows in the part, those that its parts can hold. The keys come
// in stretches that stay in a cache while all the panels pass.
void forward_panels(const Problem& p, const Part& part, const Kernels& kernels, const Dots& dots,
                    const Groups& groups, Place at, int64_t first, int64_t last, const Packed& kv,
                    DotWorker& worker, uint8_t* left) {
    worker.places.clear();
    for (int64_t i = first; i < last; ++i) {
        at = part.place(p, at.batch, at.head, i);
        const size_t n = worker.places.size();
        set_up(p, at, groups, kv, worker.panels[n]);
        left[i] = !dots.begin(worker.panels[n]);
        if (left[i]) continue;
        if (worker.veil.mask) worker.runs[n] = worker.veil.mask->runs(at);
        worker.seen[n] = groups_seen(groups, worker.runs[n]);
        worker.places.push_back(at);
    }
    const int64_t stretch = groups.stretch();
    for (int64_t begin = 0; begin < groups.count; begin += stretch) {
        for (size_t i = 0; i < worker.places.size(); ++i) {
            const Range within = {std::max(begin, worker.seen[i].begin),
                                  std::min(begin + stretch, worker.seen[i].end)};
            for_groups(p, kernels, worker.places[i], groups, worker.runs[i], within, kGroupsOfBlock,
                       worker.veil,
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

bool forward_by_dots(const Problem& p, const Part& part, const Kernels& kernels,
                     const std::vector<uint8_t>& worth, const std::function<bool()>& interrupted,
                     std::vector<uint8_t>& left) {
    const Dots& dots = *kernels.dots[static_cast<int>(p.q.dtype)];
    const Groups groups(p, dots.parts, part.keys);
    const int64_t heads = p.batches() * p.G, shared = p.H / p.G, panels = part.panels(p);
    left.assign(heads * shared * panels, 0);
    for (int64_t head = 0; head < heads; ++head) {
        if (!worth[head]) std::fill_n(&left[head * shared * panels], shared * panels, 1);
    }
    if (std::none_of(worth.begin(), worth.end(), [](uint8_t w) { return w; })) return true;
    // Panels go together where the keys do not fit, as long as some pieces are left for everybody.
    const int64_t all = heads * shared * panels;
    const int64_t together =
        groups.count <= groups.stretch()
            ? 1
            : std::clamp<int64_t>(all / (8 * workers_for(all)), 1, std::min(panels, kTogether));
    // A chain is a head of keys: it is packed, and then the panels of its queries attend.
    const int64_t packs = groups.pieces(), pieces = tiles(panels, together);
    const int count = workers_for(heads * (packs + shared * pieces), p.operations());
    Chains chains(heads, packs + shared * pieces, count);
    Turns packed(heads);
    const PackedHeads slots(p, dots, groups, std::min<int64_t>(count, heads));
    std::vector<DotWorker> workers;
    workers.reserve(count);
    for (int i = 0; i < count; ++i) workers.emplace_back(p, dots.parts, together);
    // The last panels of a causal head are the longest: they go first, so that none is left to run
    // alone at the end.
    const auto attend = [&](const Chains::Piece& piece, DotWorker& worker) {
        const int64_t index = piece.index - packs, last = pieces - index % pieces;
        const int64_t head = piece.chain % p.G * shared + index / pieces;
        const Place at = p.place(piece.chain / p.G, head, 0);
        packed.wait(piece.chain, packs);
        forward_panels(p, part, kernels, dots, groups, at, (last - 1) * together,
                       std::min(panels, last * together), slots[piece.slot], worker,
                       &left[(at.batch * p.H + head) * panels]);
    };
    return parallel_for(
        chains.pieces(), count,
        [&](int64_t, int worker) {
            const Chains::Piece piece = chains.take(worker);
            if (!worth[piece.chain]) return;
            if (piece.index < packs) {
                slots.pack(piece.chain, piece.index, slots[piece.slot]);
                packed.add(piece.chain);
            } else {
                attend(piece, workers[worker]);
            }
        },
        interrupted);
}

}  // namespace clearhead
