#include "groups.hpp"

#include "caches.hpp"

namespace clearhead {
namespace {

constexpr int64_t kGroupsOfPiece = 16;  // that are packed at a time
constexpr int64_t kSquare = kTile * kTile;
constexpr int64_t kScores = kGroupsOfScores * kGroup * kPanel;

// Floats that a panel takes for its queries, its weights and its outputs.
int64_t of_queries(const Problem& p, int64_t parts) {
    return parts * tiles(p.D, 32) * kTile * kPanel;
}
int64_t of_weights(int64_t parts) {
    return kGroupsOfBlock * parts * kTile * kPanel;
}
int64_t of_outputs(const Problem& p) {
    return tiles(p.E + 1, kTile) * kTile * kPanel;
}

}  // namespace

int64_t Groups::stretch(int64_t block) const {
    const int64_t fit = second_level_bytes() / 2 * count / std::max<int64_t>(1, bytes());
    return std::max(fit / block, int64_t{1}) * block;
}

int64_t Groups::pieces() const {
    return tiles(count, kGroupsOfPiece);
}

PackedHeads::PackedHeads(const Problem& p, const Dots& dots, const Groups& groups, int64_t count)
    : p_(p),
      dots_(dots),
      groups_(groups),
      numbers_({count * (groups.k + groups.v)}),
      sizes_({2 * count * groups.count}),
      packed_(numbers_.take(count * (groups.k + groups.v))),
      of_groups_(sizes_.take(2 * count * groups.count)) {}

Packed PackedHeads::operator[](int64_t i) const {
    uint16_t* k = packed_ + i * (groups_.k + groups_.v);
    float* length = of_groups_ + 2 * i * groups_.count;
    return {k, k + groups_.k, length, length + groups_.count, std::max<int64_t>(1, groups_.count)};
}

void PackedHeads::pack(int64_t head, int64_t piece, const Packed& out) const {
    const int64_t group = head % p_.G, keys = groups_.keys.end - groups_.keys.begin;
    const Place at = p_.place(head / p_.G, 0, 0);
    const Matrix k = matrix(p_, p_.k, at, group, groups_.keys.begin);
    const Matrix v = matrix(p_, p_.v, at, group, groups_.keys.begin);
    const int64_t begin = piece * kGroupsOfPiece;
    for (int64_t g = begin; g < std::min(groups_.count, begin + kGroupsOfPiece); ++g) {
        dots_.pack(k, v, keys, p_.D, p_.E, g, out);
    }
}

// A block of groups that begins at the end of the ring goes on behind it, where the first ones lie
// again; so do the sizes of all.
Ring::Ring(const Problem& p, const Dots& dots, const Groups& groups, int64_t room)
    : p_(p),
      dots_(dots),
      groups_(groups),
      k_(groups.k / groups.count),
      v_(groups.v / groups.count),
      numbers_({(room + kGroupsOfBlock - 1) * (k_ + v_)}),
      sizes_({4 * room}) {
    uint16_t* const k = numbers_.take((room + kGroupsOfBlock - 1) * (k_ + v_));
    float* const length = sizes_.take(4 * room);
    packed_ = {k, k + (room + kGroupsOfBlock - 1) * k_, length, length + 2 * room, room};
}

void Ring::start(int64_t head) {
    head_ = head;
    held_ = {0, 0};
}

void Ring::reach(Range wanted) {
    if (wanted.begin == wanted.end) return;
    if (wanted.begin < held_.begin || held_.end < wanted.begin) {
        held_ = {wanted.begin, wanted.begin};
    }
    while (held_.end < wanted.end) pack(held_.end++);
    held_.begin = std::max(held_.begin, held_.end - packed_.room);
}

Range Ring::missing(Range wanted) const {
    const int64_t begin = groups_.first_key(std::max(wanted.begin, held_.end));
    return {begin, std::min(groups_.first_key(wanted.end), groups_.keys.end)};
}

void Ring::pack(int64_t group) const {
    const Place at = p_.place(head_ / p_.G, 0, 0);
    const int64_t first = groups_.first_key(group), head = head_ % p_.G;
    const Matrix k = matrix(p_, p_.k, at, head, first), v = matrix(p_, p_.v, at, head, first);
    const auto pack_at = [&](int64_t i) {
        dots_.pack(
            k, v, groups_.keys.end - first, p_.D, p_.E, 0,
            {packed_.k + i * k_, packed_.v + i * v_, packed_.length + i, packed_.magnitude + i, 1});
    };
    const int64_t i = group % packed_.room, again = i + packed_.room;
    pack_at(i);
    if (i + 1 < kGroupsOfBlock) pack_at(again);
    packed_.length[again] = packed_.length[i];
    packed_.magnitude[again] = packed_.magnitude[i];
}

DotWorker::DotWorker(const Problem& p, int64_t parts, int64_t together, int64_t most)
    : panels(together),
      runs(together),
      seen(together),
      veil(p, most * kGroup),
      scratch({together * of_queries(p, parts), kScores, of_weights(parts),
               together * of_outputs(p), 4 * kSquare, together * kPanel, together * kPanel,
               2 * kPanel}) {
    places.reserve(together);
    float* const qt = scratch.take(together * of_queries(p, parts));
    float* const s = scratch.take(kScores);
    float* const weighed = scratch.take(of_weights(parts));
    float* const o = scratch.take(together * of_outputs(p));
    float* const fresh = scratch.take(4 * kSquare);
    float* const m = scratch.take(together * kPanel);
    float* const l = scratch.take(together * kPanel);
    float* const sums = scratch.take(2 * kPanel);
    for (int64_t i = 0; i < together; ++i) {
        DotPanel& panel = panels[i];
        panel.qt = reinterpret_cast<uint16_t*>(qt + i * of_queries(p, parts));
        panel.s = s;
        panel.p = reinterpret_cast<uint16_t*>(weighed);
        panel.o = o + i * of_outputs(p);
        panel.fresh = fresh;
        panel.m = m + i * kPanel;
        panel.l = l + i * kPanel;
        panel.sums = sums;
        panel.ahead = nullptr;
    }
}

void set_up(const Problem& p, const Place& at, const Packed& kv, Range seen, DotPanel& panel) {
    panel.rows = at.rows;
    panel.first = seen.begin % kv.room;
    panel.groups = seen.end - seen.begin;
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

void ask_for(const Matrix& m, int64_t count, int64_t size, Ahead& ahead) {
    if (m.col != 1 || count <= 0 || size <= 0) return;
    const int64_t number = bytes(m.dtype);
    ahead.rows[ahead.count++] = {static_cast<const char*>(m.data), m.row * number, size * number,
                                 count};
}

bool lay_out(const Problem& p, const Kernels& kernels, const Place& at, const Groups& groups,
             bool all_seen, Veil<float>& veil, DotBlock& block) {
    const int64_t first = groups.first_key(block.begin), count = block.groups * kGroup;
    const int64_t present = std::min(count, groups.keys.end - first);
    const bool biased = p.bias.kind != BiasKind::none;
    if (all_seen && present == count && !biased) return true;
    uint64_t* visible = veil.visible.data();
    const uint64_t rows = first_bits(at.rows);
    std::fill_n(visible, count, 0);
    for (int64_t i = 0; i < present; i += kPanel) {
        const int64_t n = std::min(kPanel, present - i);
        if (all_seen) {
            std::fill_n(visible + i, n, rows);
        } else {
            veil.mask->bits(at, first + i, n, visible + i);
        }
        if (biased) {
            lay_out_bias(p, kernels, at, at.t0, at.rows, first + i, n, false,
                         veil.bias.data() + i * kPanel, visible + i);
        }
    }
    if (biased) fetch_bias(p, at, first + count, count);
    if (biased) std::fill_n(veil.bias.data() + present * kPanel, (count - present) * kPanel, 0);
    block.visible = visible;
    block.bias = biased ? veil.bias.data() : nullptr;
    return std::any_of(visible, visible + count, [&](uint64_t bits) { return bits & rows; });
}

Range groups_seen(const Groups& groups, const std::vector<Run>& runs) {
    if (runs.empty()) return {0, groups.count};
    const auto group_of = [&](int64_t key) {
        return std::clamp(key, groups.keys.begin, groups.keys.end) - groups.keys.begin;
    };
    Range seen = {0, 0};
    int64_t begin = 0;
    for (const Run& run : runs) {
        if (run.seen != Seen::none) {
            if (seen.end == 0) seen.begin = group_of(begin) / kGroup;
            seen.end = tiles(group_of(run.end), kGroup);
        }
        begin = run.end;
    }
    return seen;
}

// Heads do not differ in it: where a mask does, its runs say that any key may be seen.
int64_t most_groups_seen(const Problem& p, const Part& part, const Groups& groups, int64_t enough) {
    if (!p.mask) return std::min(groups.count, enough);
    Mask mask = *p.mask;
    int64_t most = 0;
    for (int64_t batch = 0; batch < p.batches(); ++batch) {
        for (int64_t panel = 0; panel < part.panels(p) && most < enough; ++panel) {
            const Range seen = groups_seen(groups, mask.runs(part.place(p, batch, 0, panel)));
            most = std::max(most, seen.end - seen.begin);
        }
    }
    return std::min(most, enough);
}

}  // namespace clearhead
