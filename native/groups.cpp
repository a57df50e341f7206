#include "groups.hpp"

#include "caches.hpp"

namespace clearhead {
namespace {

constexpr int64_t kGroupsOfPiece = 16;  // that are packed at a time

}  // namespace

int64_t Groups::stretch() const {
    const int64_t fit = second_level_bytes() / 2 * count / std::max<int64_t>(1, bytes());
    return std::max(fit / kGroupsOfBlock, int64_t{1}) * kGroupsOfBlock;
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
    return {k, k + groups_.k, length, length + groups_.count};
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

void set_up(const Problem& p, const Place& at, const Groups& groups, const Packed& kv,
            DotPanel& panel) {
    panel.rows = at.rows;
    panel.S = groups.keys.end - groups.keys.begin;
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

}  // namespace clearhead
