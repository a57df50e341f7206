#include "worth.hpp"

#include <algorithm>
#include <optional>

#include "dots.hpp"
#include "mask.hpp"

namespace clearhead {
namespace {

// Cycles of two units for 16 floats each, as docs/speed.md counts them.
constexpr double kProduct = 17;     // of two tiles
constexpr double kWeights = 26;     // a key of a panel, by multiply-adds
constexpr double kConverted = 0.4;  // a number of a key or value that is no float, for each panel
constexpr double kSplit = 0.6;      // a number into one part that is packed; queries, outputs
constexpr int64_t kSamples = 8;     // panels whose mask is looked at

// What tiles save on a key of a panel.
double saved(const Problem& p, int parts) {
    const double numbers = static_cast<double>(p.D + p.E), products = parts * (parts + 1) / 2;
    const double steps = static_cast<double>(tiles(p.D, 2 * kTile));
    const double columns = static_cast<double>(tiles(p.E, kTile));
    const double tile_products = products * kColumns * (steps / kTile + columns / kGroup);
    const double weights = 50 + 12 * parts;  // each rounded, and what that leaves
    return 2 * numbers + kWeights + (p.q.dtype == DType::f32 ? 0 : kConverted * numbers) -
           kProduct * tile_products - weights;
}

// Keys that a panel shares with others. Along an edge, as that of a causal mask, half of the lanes
// see a key, and multiply-adds leave the others out: tiles save nothing there.
int64_t keys_of(const Place& at, int64_t S, Mask* mask) {
    if (!mask) return S;
    int64_t begin = 0, seen = 0;
    for (const Run& run : mask->runs(at)) {
        const int64_t keys = run.end - begin;
        if (run.seen == Seen::all || (run.seen == Seen::some && keys > kPanel)) seen += keys;
        begin = run.end;
    }
    return seen;
}

bool is_worth_packing(const Problem& p, int parts, const Place& first, int64_t shared, Mask* mask) {
    const double numbers = static_cast<double>(p.D + p.E), of_key = saved(p, parts);
    const int64_t panels = p.panels(), samples = mask ? std::min(panels, kSamples) : 1;
    double seen = 0;  // keys, by panels of 64 rows
    for (int64_t i = 0; i < samples; ++i) {
        const Place at =
            p.place(first.batch, first.head, (2 * i + 1) * panels / (2 * samples) * kPanel);
        seen += static_cast<double>(keys_of(at, p.S, mask)) / static_cast<double>(samples);
    }
    const double rows = static_cast<double>(shared * p.T), full = rows / kPanel;
    return full * seen * of_key > kSplit * numbers * (parts * static_cast<double>(p.S) + rows);
}

}  // namespace

std::vector<uint8_t> heads_worth_packing(const Problem& p, int parts) {
    const int64_t heads = p.batches() * p.G, shared = p.H / p.G;
    std::vector<uint8_t> worth(heads, 1);
    if (heads == 0 || parts == 1) return worth;  // packing then moves numbers and does no more
    std::optional<Mask> mask;
    if (p.mask) mask = *p.mask;
    for (int64_t head = 0; head < heads; ++head) {
        const Place first = p.place(head / p.G, head % p.G * shared, 0);
        // Heads differ in their masks only.
        worth[head] = head == 0 || mask
                          ? is_worth_packing(p, parts, first, shared, mask ? &*mask : nullptr)
                          : worth[0];
    }
    return worth;
}

}  // namespace clearhead
