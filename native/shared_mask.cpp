#include "shared_mask.hpp"

#include <algorithm>
#include <utility>

#include "threads.hpp"

namespace clearhead {
namespace {

constexpr int64_t kMostBytes = int64_t{32} << 20;  // of bits, an eighth of the booleans' own size

// How often the array is read: once for every head and batch that it is repeated for.
int64_t readings(const Problem& p, const Array& a) {
    int64_t n = a.head == 0 ? p.H : 1;
    for (size_t i = 0; i < p.lead.size(); ++i) n *= a.lead[i] == 0 ? p.lead[i] : 1;
    return n;
}

// The array as words: their strides. What it has of its own is [lead..., head], as far as it
// differs along them, [panel][S].
MaskOp words_of(const Problem& p, const Array& a, const uint64_t* bits) {
    MaskOp op = {MaskKind::words, 0, 0, {}, {}};
    op.array.data = bits;
    op.array.row = p.S;
    int64_t stride = p.panels() * p.S;
    if (a.head != 0) op.array.head = std::exchange(stride, stride * p.H);
    for (size_t i = p.lead.size(); i-- > 0;) {
        if (a.lead[i] != 0) op.array.lead[i] = std::exchange(stride, stride * p.lead[i]);
    }
    return op;
}

// The n-th panel in that order.
Place own_panel(const Problem& p, const Array& a, int64_t n) {
    int64_t rest = n / p.panels(), head = 0;
    if (a.head != 0) head = std::exchange(rest, rest / p.H) % p.H;
    Place at = p.place(0, head, n % p.panels() * kPanel);
    for (size_t i = p.lead.size(); i-- > 0;) {
        if (a.lead[i] != 0) at.lead[i] = std::exchange(rest, rest / p.lead[i]) % p.lead[i];
    }
    return at;
}

bool write_words(const Problem& p, const MaskOp& op, int64_t tasks, uint64_t* out,
                 const std::function<bool()>& interrupted) {
    const double booleans = static_cast<double>(tasks * p.S) * kPanel;
    const int count = workers_for(tasks, booleans);
    std::vector<Mask> readers(count, Mask({op}, static_cast<int64_t>(p.lead.size()), p.S));
    return parallel_for(
        tasks, count,
        [&](int64_t task, int worker) {
            const Place at = own_panel(p, op.array, task);
            for (int64_t s = 0; s < p.S; s += kBlock) {
                readers[worker].bits(at, s, std::min(kBlock, p.S - s), out + task * p.S + s);
            }
        },
        interrupted);
}

}  // namespace

SharedMask::SharedMask(const Problem& p, const std::function<bool()>& interrupted) {
    if (!p.mask) return;
    std::vector<MaskOp> program = p.mask->program();
    int64_t room = kMostBytes / 8;
    for (MaskOp& op : program) {
        // One row for all is read as fast as its bits.
        if (op.kind != MaskKind::array || op.array.row == 0) continue;
        const int64_t times = readings(p, op.array);
        const int64_t panels = p.batches() * p.H / times * p.panels(), size = panels * p.S;
        if (times < 2 || size > room) continue;
        room -= size;
        uint64_t* const out = bits.emplace_back(size).data();
        complete = complete && write_words(p, op, panels, out, interrupted);
        op = words_of(p, op.array, out);
    }
    if (!bits.empty()) mask.emplace(program, static_cast<int64_t>(p.lead.size()), p.S);
}

}  // namespace clearhead
