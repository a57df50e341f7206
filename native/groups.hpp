// What every pass by tiles shares: heads packed for them, and the walk over the groups of keys that
// a panel of queries may see.
#pragma once
#include <algorithm>
#include <vector>

#include "dots.hpp"
#include "panels.hpp"

namespace clearhead {

// The keys that are looked at, cut into groups from the first on, and what they take when packed.
struct Groups {
    Range keys;
    int64_t count, k, v;  // groups of a head; bfloat16 of its keys, of its values

    Groups(const Problem& p, int64_t parts, Range within)
        : keys{within.begin, std::max(within.begin, std::min(p.S, within.end))},
          count(tiles(keys.end - keys.begin, kGroup)),
          k(count * parts * 2 * tiles(p.D, 32) * kTile * 32),
          v(count * parts * tiles(p.E, kTile) * kTile * 32) {}
    int64_t bytes() const { return 2 * (k + v) + 8 * count; }
    int64_t first_key(int64_t group) const { return keys.begin + group * kGroup; }

    // Groups that take half of a core's second cache: whole blocks of so many.
    int64_t stretch(int64_t block = kGroupsOfBlock) const;
    // A head is packed in so many pieces.
    int64_t pieces() const;
};

// Packed heads of keys and values, [count].
class PackedHeads {
  public:
    PackedHeads(const Problem& p, const Dots& dots, const Groups& groups, int64_t count);

    Packed operator[](int64_t i) const;
    // One piece of a head of keys, counted over batches.
    void pack(int64_t head, int64_t piece, const Packed& out) const;

  private:
    const Problem& p_;
    const Dots& dots_;
    Groups groups_;
    Scratch<uint16_t> numbers_;
    Scratch<float> sizes_;
    uint16_t* packed_;
    float* of_groups_;
};

// Packed groups of one head, for panels that follow each other and see few keys each: a group is
// packed just before its first use, and lies in a cache for as long as it is needed.
class Ring {
  public:
    Ring(const Problem& p, const Dots& dots, const Groups& groups, int64_t room);

    const Packed& packed() const { return packed_; }
    // Begins anew with a head of keys, counted over batches.
    void start(int64_t head);
    // Packs what is missing of the groups `wanted`, no more than there is room for. Panels may come
    // in any order; in that of the keys nothing is packed twice.
    void reach(Range wanted);
    // The keys that reach(wanted) would pack, but for what it would pack again.
    Range missing(Range wanted) const;

  private:
    void pack(int64_t group) const;

    const Problem& p_;
    const Dots& dots_;
    Groups groups_;
    int64_t k_, v_;  // bfloat16 of a group
    Scratch<uint16_t> numbers_;
    Scratch<float> sizes_;
    Packed packed_;
    int64_t head_ = 0;
    Range held_ = {0, 0};
};

// Panels of one head at work together, and what belongs to the places that they are at.
struct DotWorker {
    std::vector<DotPanel> panels;
    std::vector<Place> places;
    std::vector<std::vector<Run>> runs;  // of a place's keys, where there is a mask
    std::vector<Range> seen;             // groups from the first that a place sees to the last
    Veil<float> veil;                    // for blocks of up to `most` groups
    Scratch<float> scratch;

    DotWorker(const Problem& p, int64_t parts, int64_t together, int64_t most = kGroupsOfBlock);
};

// Points a panel at the rows of `at` and the groups that it may see.
void set_up(const Problem& p, const Place& at, const Packed& kv, Range seen, DotPanel& panel);

// Adds the first `size` numbers of `count` rows, if they lie side by side.
void ask_for(const Matrix& m, int64_t count, int64_t size, Ahead& ahead);

// Lays out mask bits and biases of the block's keys. Returns whether some row sees some key.
bool lay_out(const Problem& p, const Kernels& kernels, const Place& at, const Groups& groups,
             bool all_seen, Veil<float>& veil, DotBlock& block);

// Groups from the first that a place sees to the last, by what the mask says of its keys.
Range groups_seen(const Groups& groups, const std::vector<Run>& runs);
// The most groups that this is for a panel of the part, as far as it is below `enough`.
int64_t most_groups_seen(const Problem& p, const Part& part, const Groups& groups, int64_t enough);

// Calls f(block) for every block of the groups `within`, `most` at a time, that some row of `at`
// sees, in order. `runs` are what the mask says of the place's keys, if there is one.
template <class F>
void for_groups(const Problem& p, const Kernels& kernels, const Place& at, const Groups& groups,
                const std::vector<Run>& runs, Range within, int64_t most, Veil<float>& veil, F f) {
    size_t run = 0;
    const auto seen = [&](int64_t group) {  // by what the runs say of the group's keys
        if (!veil.mask) return Seen::all;
        const int64_t begin = groups.first_key(group);
        const int64_t end = std::min(groups.keys.end, begin + kGroup);
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
        if (block.groups > 0 && lay_out(p, kernels, at, groups, all_seen, veil, block)) f(block);
        block = {};
        all_seen = true;
    };
    for (int64_t group = within.begin; group < within.end; ++group) {
        const Seen it = seen(group);
        if (it == Seen::none || block.groups == most) flush();
        if (it == Seen::none) continue;
        if (block.groups++ == 0) block.begin = group;
        all_seen &= it == Seen::all;
    }
    flush();
}

}  // namespace clearhead
