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
    // Each rounded, and what that leaves; where scores alone are wanted, all beside the products.
    const double weights = p.E > 0 ? 50 + 12 * parts : kWeights / 2;
    return 2 * numbers + kWeights + (p.q.dtype == DType::f32 ? 0 : kConverted * numbers) -
           kProduct * tile_products - weights;
}

// Keys that a panel shares with others. Along an edge, as that of a causal mask, half of the lanes
// see a key, and multiply-adds leave the others out: tiles save nothing there.
int64_t keys_of(const Place& at, Range within, Mask* mask) {
    if (!mask) return within.end - within.begin;
    int64_t begin = within.begin, seen = 0;
    for (const Run& run : mask->runs(at)) {
        const int64_t keys = std::min(run.end, within.end) - begin;
        if (run.seen == Seen::all || (run.seen == Seen::some && keys > kPanel)) {
            seen += std::max(keys, int64_t{0});
        }
        begin = std::max(begin, run.end);
    }
    return seen;
}

bool is_worth_packing(const Problem& p, const Part& part, int parts, const Place& first,
                      int64_t shared, Mask* mask) {
    const double numbers = static_cast<double>(p.D + p.E), of_key = saved(p, parts);
    const int64_t panels = part.panels(p), samples = mask ? std::min(panels, kSamples) : 1;
    const auto [rows, keys] = part.within(p);
    double seen = 0;  // keys, by panels of 64 rows
    for (int64_t i = 0; i < samples; ++i) {
        const Place at =
            part.place(p, first.batch, first.head, (2 * i + 1) * panels / (2 * samples));
        seen += static_cast<double>(keys_of(at, keys, mask)) / static_cast<double>(samples);
    }
    const double queries = static_cast<double>(shared * (rows.end - rows.begin));
    const double packed = parts * static_cast<double>(keys.end - keys.begin);
    return queries / kPanel * seen * of_key > kSplit * numbers * (packed + queries);
}

}  // namespace

std::vector<uint8_t> heads_worth_packing(const Problem& p, const Part& part, int parts) {
    const int64_t heads = p.batches() * p.G, shared = p.H / p.G;
    std::vector<uint8_t> worth(heads, 1);
    if (heads * part.panels(p) == 0 || parts == 1)
        return worth;  // packing then moves numbers and does no more
    std::optional<Mask> mask;
    if (p.mask) mask = *p.mask;
    for (int64_t head = 0; head < heads; ++head) {
        const Place first = p.place(head / p.G, head % p.G * shared, 0);
        // Heads differ in their masks only.
        worth[head] = head == 0 || mask
                          ? is_worth_packing(p, part, parts, first, shared, mask ? &*mask : nullptr)
                          : worth[0];
    }
    return worth;
}

}  // namespace clearhead
