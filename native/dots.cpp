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
constexpr int64_t kSlidesOfThread = 4;
constexpr int64_t kShortest = 16, kLongest = 1024;  // panels of a slide

// What all pieces of a pass share.
struct Pass {
    const Problem& p;
    const Part& part;
    const Kernels& kernels;
    const Dots& dots;
    const Groups& groups;
    const std::vector<uint8_t>& worth;  // of each head of keys
    const std::function<bool()>& interrupted;
    std::vector<uint8_t>& left;

    int64_t heads() const { return p.batches() * p.G; }
    int64_t shared() const { return p.H / p.G; }
    int64_t panels() const { return part.panels(p); }
};

// Panels of one head's rows in the part, those that its parts can hold. The keys come in stretches
// that stay in a cache while all the panels pass.
void forward_panels(const Pass& pass, int64_t batch, int64_t head, Range panels, const Packed& kv,
                    int64_t stretch, DotWorker& worker) {
    const Problem& p = pass.p;
    worker.places.clear();
    for (int64_t i = panels.begin; i < panels.end; ++i) {
        const Place at = pass.part.place(p, batch, head, i);
        const size_t n = worker.places.size();
        if (worker.veil.mask) worker.runs[n] = worker.veil.mask->runs(at);
        worker.seen[n] = groups_seen(pass.groups, worker.runs[n]);
        set_up(p, at, kv, worker.seen[n], worker.panels[n]);
        uint8_t& left = pass.left[(batch * p.H + head) * pass.panels() + i];
        left = !pass.dots.begin(worker.panels[n]);
        if (!left) worker.places.push_back(at);
    }
    for (int64_t begin = 0; begin < pass.groups.count; begin += stretch) {
        for (size_t i = 0; i < worker.places.size(); ++i) {
            const Range within = {std::max(begin, worker.seen[i].begin),
                                  std::min(begin + stretch, worker.seen[i].end)};
            for_groups(p, pass.kernels, worker.places[i], pass.groups, worker.runs[i], within,
                       kGroupsOfBlock, worker.veil, [&](DotBlock block) {
                           block.begin %= kv.room;
                           pass.dots.attend(worker.panels[i], block);
                       });
        }
    }
    for (size_t i = 0; i < worker.places.size(); ++i) {
        const Place& place = worker.places[i];
        pass.dots.finish(worker.panels[i], matrix(p, p.out, place, place.head, place.t0));
        if (p.lse) write_lse(p, place, worker.panels[i].m, worker.panels[i].l);
    }
}

std::vector<DotWorker> workers_of(const Pass& pass, int count, int64_t together) {
    std::vector<DotWorker> workers;
    workers.reserve(count);
    for (int i = 0; i < count; ++i) workers.emplace_back(pass.p, pass.dots.parts, together);
    return workers;
}

// What the panel at hand will write, and what the next one will read.
void ask_for_next(const Problem& p, const Place& at, const Place& next, Range keys, Ahead& ahead) {
    const int64_t group = at.head / (p.H / p.G), count = keys.end - keys.begin;
    ask_for(matrix(p, p.out, at, at.head, at.t0), at.rows, p.E, ahead);
    ask_for(matrix(p, p.q, next, next.head, next.t0), next.rows, p.D, ahead);
    ask_for(matrix(p, p.v, next, group, keys.begin), count, p.E, ahead);
    ask_for(matrix(p, p.k, next, group, keys.begin), count, p.D, ahead);
}

// A slide is a head of keys and some panels that follow each other. Each needs few keys, most of
// which the one before it has left in the cache, in a ring with that much room.
bool by_slides(const Pass& pass, int64_t room) {
    const int64_t panels = pass.panels(), heads = pass.heads();
    const int threads = workers_for(heads * panels, pass.p.operations());
    // A slide packs again what the one before it had packed, so there should be few.
    const int64_t enough = threads == 1 ? 1 : tiles(kSlidesOfThread * threads, heads);
    const int64_t length = std::clamp(tiles(panels, enough), std::min(panels, kShortest), kLongest);
    const int64_t slides = tiles(panels, length);
    const int count = workers_for(heads * slides, pass.p.operations());
    std::vector<DotWorker> workers = workers_of(pass, count, 1);
    std::vector<Ring> rings;
    rings.reserve(count);
    for (int i = 0; i < count; ++i) rings.emplace_back(pass.p, pass.dots, pass.groups, room);
    return parallel_for(
        heads * slides, count,
        [&](int64_t task, int i) {
            const int64_t head = task / slides, begin = task % slides * length;
            const int64_t batch = head / pass.p.G, first = head % pass.p.G * pass.shared();
            if (!pass.worth[head]) return;
            DotWorker& worker = workers[i];
            rings[i].start(head);
            const auto seen_at = [&](const Place& at) {
                return groups_seen(pass.groups, worker.veil.mask->runs(at));
            };
            Ahead ahead;
            worker.panels[0].ahead = &ahead;
            const int64_t end = std::min(panels, begin + length);
            for (int64_t panel = begin; panel < end; ++panel) {
                const Place at = pass.part.place(pass.p, batch, first, panel);
                rings[i].reach(seen_at(at));
                ahead = {};
                if (panel + 1 < end) {
                    const Place next = pass.part.place(pass.p, batch, first, panel + 1);
                    ask_for_next(pass.p, at, next, rings[i].missing(seen_at(next)), ahead);
                }
                for (int64_t shared = 0; shared < pass.shared(); ++shared) {
                    forward_panels(pass, batch, first + shared, {panel, panel + 1},
                                   rings[i].packed(), pass.groups.count, worker);
                }
            }
        },
        pass.interrupted);
}

// A chain is a head of keys: it is packed, and then the panels of its queries attend. They go
// together where the keys do not fit into a cache, as long as some pieces are left for everybody.
bool by_chains(const Pass& pass) {
    const Groups& groups = pass.groups;
    const int64_t heads = pass.heads(), panels = pass.panels(),
                  all = heads * pass.shared() * panels;
    const int64_t together =
        groups.count <= groups.stretch()
            ? 1
            : std::clamp<int64_t>(all / (8 * workers_for(all)), 1, std::min(panels, kTogether));
    const int64_t packs = groups.pieces(), pieces = tiles(panels, together);
    const int64_t length = packs + pass.shared() * pieces;
    const int count = workers_for(heads * length, pass.p.operations());
    Chains chains(heads, length, count);
    Turns packed(heads);
    const PackedHeads slots(pass.p, pass.dots, groups, std::min<int64_t>(count, heads));
    std::vector<DotWorker> workers = workers_of(pass, count, together);
    // The last panels of a causal head are the longest: they go first, so that none is left to run
    // alone at the end.
    const auto attend = [&](const Chains::Piece& piece, DotWorker& worker) {
        const int64_t index = piece.index - packs, last = pieces - index % pieces;
        const int64_t head = piece.chain % pass.p.G * pass.shared() + index / pieces;
        packed.wait(piece.chain, packs);
        forward_panels(pass, piece.chain / pass.p.G, head,
                       {(last - 1) * together, std::min(panels, last * together)},
                       slots[piece.slot], groups.stretch(), worker);
    };
    return parallel_for(
        chains.pieces(), count,
        [&](int64_t, int worker) {
            const Chains::Piece piece = chains.take(worker);
            if (!pass.worth[piece.chain]) return;
            if (piece.index < packs) {
                slots.pack(piece.chain, piece.index, slots[piece.slot]);
                packed.add(piece.chain);
            } else {
                attend(piece, workers[worker]);
            }
        },
        pass.interrupted);
}

}  // namespace

bool forward_by_dots(const Problem& p, const Part& part, const Kernels& kernels,
                     const std::vector<uint8_t>& worth, const std::function<bool()>& interrupted,
                     std::vector<uint8_t>& left) {
    const Dots& dots = *kernels.dots[static_cast<int>(p.q.dtype)];
    const Groups groups(p, dots.parts, part.keys);
    const Pass pass = {p, part, kernels, dots, groups, worth, interrupted, left};
    const int64_t panels = pass.shared() * pass.panels();
    left.assign(pass.heads() * panels, 0);
    for (int64_t head = 0; head < pass.heads(); ++head) {
        if (!worth[head]) std::fill_n(&left[head * panels], panels, 1);
    }
    if (std::none_of(worth.begin(), worth.end(), [](uint8_t w) { return w; })) return true;
    const int64_t fit = groups.stretch();
    if (groups.count <= fit) return by_chains(pass);
    const int64_t room =
        std::max<int64_t>(most_groups_seen(p, part, groups, fit + 1), kGroupsOfBlock);
    return room <= fit ? by_slides(pass, room) : by_chains(pass);
}

}  // namespace clearhead
