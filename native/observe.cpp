#include "observe.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "chains.hpp"
#include "eye.hpp"
#include "groups.hpp"
#include "means.hpp"
#include "threads.hpp"
#include "worth.hpp"

namespace clearhead {
namespace {

// A task is a chunk of panels of one head. Its sums are its own until it is its turn to add them to
// the results: the order of additions, and so every bit, is the same for any number of threads.
// Tasks start in their order, so that whoever waits for a turn waits for a running task.
class InTurn {
  public:
    template <class F>
    void take(int64_t number, F f) {
        std::unique_lock lock(mutex_);
        turned_.wait(lock, [&] { return next_ == number; });
        f();
        ++next_;
        lock.unlock();
        turned_.notify_all();
    }

  private:
    std::mutex mutex_;
    std::condition_variable turned_;
    int64_t next_ = 0;
};

constexpr int64_t kMostPanels = 8;                // of a chunk: 512 rows
constexpr int64_t kFinds = kBlock * kPanel + 16;  // scores of a block that may pass, and a vector
constexpr int64_t kGroupsAtOnce = 16;  // the weights of the last have no products to hide behind
constexpr int64_t kTaskProducts = int64_t{1} << 32;  // some 50 ms: how long Ctrl-C may take

int64_t panels_of_chunk(const Problem& p) {
    const int64_t products = std::max<int64_t>(1, p.S * p.D) * kPanel;
    return std::clamp<int64_t>(kTaskProducts / products, 1, kMostPanels);
}

struct Band {
    int64_t first = 0, count = 0;  // rows of a grid that rows [t0, t1) of the matrix may touch
};

Band band(const GridRequest& grid, int64_t t0, int64_t t1) {
    int64_t low = grid.R, high = -1;
    for (int64_t t = t0; t < t1; ++t) {
        if (grid.rows[t] < 0) continue;
        low = std::min(low, grid.rows[t]);
        high = std::max(high, grid.rows[t]);
    }
    return high < 0 ? Band{} : Band{low, high - low + 1};
}

// Sums of one chunk over its part of a grid. Its rows are no power of two apart, or those that one
// panel adds to would drive each other out of a cache.
constexpr int64_t kApart = 16;

template <class Real>
struct GridPart {
    Band band;
    int64_t stride;
    const int64_t* run_end;
    std::vector<double> sum;
    std::vector<Real> largest;
};

// Adds a chunk's sums to the results and leaves them zero for the next.
void move_sums(double* from, int64_t n, double* to) {
    for (int64_t i = 0; i < n; ++i) {
        to[i] += from[i];
        from[i] = 0;
    }
}

// A NaN stays.
template <class Real>
void raise(Real& most, Real x) {
    most = (x > most) | std::isnan(x) ? x : most;
}

int64_t key_of(float bits) {
    return __builtin_bit_cast(int32_t, bits);
}

int64_t key_of(double bits) {
    return __builtin_bit_cast(int64_t, bits);
}

// One worker: it looks at the panels of a chunk with as many eyes as there are panels.
template <class Real>
struct Observer {
    const Problem& p;
    const ObservationRequest& request;
    Veil<Real> veil;
    Scratch<Real> scratch;
    std::vector<Eye<Real>> eyes;
    GridPart<Real> parts[kMaxGrids];
    std::vector<double> columns, distance, entropy;
    std::vector<Real> largest;
    std::vector<std::pair<Real, int64_t>> ranking;
    int64_t first_key, last_key;     // the keys that the chunk has met
    std::optional<DotWorker> tiles;  // where scores may be products of tiles

    // `parts` of a number: 0 where there are no tiles.
    Observer(const Problem& problem, const ObservationRequest& wanted, int64_t rows, int parts);

    // Rows [t0, t1) of a head, whose keys are packed in `kv` if that is given.
    void run(const Kernels& kernels, int64_t batch, int64_t head, int64_t t0, int64_t t1,
             const Groups& groups, const Packed* kv);
    // `means` of each grid, where it wants them.
    void add_to_results(int64_t batch, int64_t head, int64_t t0, int64_t t1,
                        std::optional<Means> (&means)[kMaxGrids]);

  private:
    void lay_out_grid(const GridRequest& wanted, const Place& at, Grid& grid, GridPart<Real>& part);
    void look(const Kernels& kernels, Eye<Real>& eye);
    void look_by_tiles(const Kernels& kernels, int64_t count, const Groups& groups,
                       const Packed& kv);
    void meet(int64_t begin, int64_t end) {
        first_key = std::min(first_key, begin);
        last_key = std::max(last_key, end);
    }
    void write_rows(const Eye<Real>& eye, int64_t t0);
    void write_top(const Eye<Real>& eye, int64_t r, bool poisoned);
};

template <class Real>
Observer<Real>::Observer(const Problem& problem, const ObservationRequest& wanted, int64_t rows,
                         int parts_of_number)
    : p(problem),
      request(wanted),
      veil(problem),
      scratch({(kBlock + 2) * kPanel, kBlock * p.D, Eye<Real>::room(p, wanted), kFinds, kFinds}),
      columns(wanted.columns * p.S),
      distance(wanted.distances),
      entropy(wanted.entropy ? rows : 0),
      largest(wanted.largest ? rows : 0),
      ranking(Eye<Real>::kept(p, wanted)) {
    // A row to spare on either side: diagonals are read across the edges.
    Real* const weights = scratch.take((kBlock + 2) * kPanel) + kPanel;
    Real* const k_rows = scratch.take(kBlock * p.D);
    Real* const spare = scratch.take(Eye<Real>::room(p, wanted));
    Real* const found_score = scratch.take(kFinds);
    Real* const found_place = scratch.take(kFinds);
    for (int64_t i = 0; i < rows / kPanel; ++i) {
        Eye<Real>& eye = eyes.emplace_back(p, wanted);
        eye.panel.p = weights;
        eye.panel.k_rows = k_rows;
        eye.watch.top_spare = spare;
        eye.watch.found_score = found_score;
        eye.watch.found_place = found_place;
        eye.watch.column_sum = columns.data();
        eye.watch.distance = distance.data();
    }
    for (size_t g = 0; g < wanted.grids.size(); ++g) {
        const GridRequest& grid = wanted.grids[g];
        int64_t most = 0;
        const int64_t n = wanted.part.rows.end - wanted.part.rows.begin;
        for (int64_t t = 0; t < n; t += rows) {
            most = std::max(most, band(grid, t, std::min(n, t + rows)).count);
        }
        parts[g].run_end = grid.run_end.data();
        parts[g].stride = grid.C + kApart;
        parts[g].sum.resize(most * parts[g].stride);
        if (grid.largest) parts[g].largest.resize(most * parts[g].stride);
    }
    if (parts_of_number > 0) {
        tiles.emplace(p, parts_of_number, rows / kPanel, kGroupsAtOnce);
    }
}

template <class Real>
void Observer<Real>::lay_out_grid(const GridRequest& wanted, const Place& at, Grid& grid,
                                  GridPart<Real>& part) {
    const int64_t* labels = wanted.rows + (at.t0 - request.part.rows.begin);
    grid.first = request.part.keys.begin;
    grid.label = wanted.cols;
    grid.run_end = part.run_end;
    grid.pending = grid.slots = 0;
    for (int64_t r = 0; r < at.rows; ++r) {
        const int64_t label = labels[r];
        const bool same = r > 0 && label == labels[r - 1];
        if (label < 0) {
            grid.slot[r] = -1;
            continue;
        }
        if (!same) {
            const int64_t start = (label - part.band.first) * part.stride;
            grid.sum[grid.slots] = part.sum.data() + start;
            grid.largest[grid.slots] = wanted.largest ? part.largest.data() + start : nullptr;
            ++grid.slots;
        }
        grid.slot[r] = static_cast<int8_t>(grid.slots - 1);
    }
}

template <class Real>
void Observer<Real>::run(const Kernels& kernels, int64_t batch, int64_t head, int64_t t0,
                         int64_t t1, const Groups& groups, const Packed* kv) {
    first_key = p.S;
    last_key = 0;
    for (size_t g = 0; g < request.grids.size(); ++g) {
        const int64_t top = request.part.rows.begin;
        parts[g].band = band(request.grids[g], t0 - top, t1 - top);
    }
    const int64_t count = (t1 - t0 + kPanel - 1) / kPanel;
    for (int64_t i = 0; i < count; ++i) {
        Eye<Real>& eye = eyes[i];
        Place at = p.place(batch, head, t0 + i * kPanel);
        at.rows = std::min(at.rows, t1 - at.t0);
        eye.aim(p, request, at);
        eye.watch.entropy = request.entropy ? entropy.data() + i * kPanel : nullptr;
        for (size_t g = 0; g < request.grids.size(); ++g) {
            lay_out_grid(request.grids[g], at, eye.grids[g], parts[g]);
        }
    }
    if (kv) {
        look_by_tiles(kernels, count, groups, *kv);
    } else {
        for (int64_t i = 0; i < count; ++i) look(kernels, eyes[i]);
    }
    for (int64_t i = 0; i < count; ++i) {
        kernels.observe_end[sizeof(Real) == 8](eyes[i].panel, eyes[i].watch);
        write_rows(eyes[i], t0);
    }
}

template <class Real>
void Observer<Real>::look(const Kernels& kernels, Eye<Real>& eye) {
    constexpr int precision = sizeof(Real) == 8;
    kernels.begin[precision](eye.panel);
    eye.take_lse(p);
    for_blocks(p, kernels, eye.at, veil, request.part.keys, [&](const Block& block) {
        meet(block.begin, block.begin + block.count);
        kernels.observe[precision](eye.panel, eye.watch, block);
    });
}

// The first `count` panels, but for those whose numbers parts cannot hold. The keys come in
// stretches that stay in a cache while all the panels pass.
template <class Real>
void Observer<Real>::look_by_tiles(const Kernels& kernels, int64_t count, const Groups& groups,
                                   const Packed& kv) {
    const Dots& dots = *kernels.dots[static_cast<int>(p.q.dtype)];
    for (int64_t i = 0; i < count; ++i) {
        if (tiles->veil.mask) tiles->runs[i] = tiles->veil.mask->runs(eyes[i].at);
        tiles->seen[i] = groups_seen(groups, tiles->runs[i]);
        set_up(p, eyes[i].at, kv, tiles->seen[i], tiles->panels[i]);
        if (dots.begin(tiles->panels[i])) {
            eyes[i].take_lse(p);
        } else {
            look(kernels, eyes[i]);
            tiles->seen[i] = {0, 0};
        }
    }
    const int64_t stretch = groups.stretch(kGroupsAtOnce);
    for (int64_t first = 0; first < groups.count; first += stretch) {
        for (int64_t i = 0; i < count; ++i) {
            const Range within = {std::max(first, tiles->seen[i].begin),
                                  std::min(first + stretch, tiles->seen[i].end)};
            for_groups(p, kernels, eyes[i].at, groups, tiles->runs[i], within, kGroupsAtOnce,
                       tiles->veil, [&](const DotBlock& block) {
                           const int64_t begin = groups.first_key(block.begin);
                           meet(begin, std::min(groups.keys.end, begin + block.groups * kGroup));
                           dots.observe(tiles->panels[i], block, eyes[i].panel, eyes[i].watch,
                                        begin, groups.keys.end);
                       });
        }
    }
}

// What belongs to single rows: to the results where nothing is added up, else to the chunk's part.
template <class Real>
void Observer<Real>::write_rows(const Eye<Real>& eye, int64_t t0) {
    const Place& at = eye.at;
    const int64_t start = p.offset(p.lse, at, at.head);
    for (int64_t r = 0; r < at.rows; ++r) {
        const double lse = read(p.lse.data, p.lse.dtype, start + (at.t0 + r) * p.lse.row);
        if (request.entropy) {
            // A weight of 1 may come out a rounding above 1, and its entropy below 0.
            double& nats = entropy[at.t0 - t0 + r];
            nats = nats < 0 ? 0 : nats * kLn2;
        }
        if (request.largest) {
            const Real most = std::exp2(eye.largest[r]);
            largest[at.t0 - t0 + r] = std::isnan(lse) ? Real(NAN) : most;
        }
        if (request.top > 0) write_top(eye, r, std::isnan(lse));
    }
}

template <class Real>
void Observer<Real>::write_top(const Eye<Real>& eye, int64_t r, bool poisoned) {
    const Place& at = eye.at;
    const int64_t k = request.top, out = ((at.batch * p.H + at.head) * p.T + at.t0 + r) * k;
    int64_t listed = 0;
    if (const int64_t room = eye.watch.top_room; room > 0) {
        for (; listed < eye.top_count[r]; ++listed) {
            const int64_t i = r * room + listed;
            ranking[listed] = {-eye.top_score[i], eye.top_key[i]};
        }
        std::sort(ranking.begin(), ranking.begin() + listed);
    } else {
        for (; listed < k && eye.top_score[listed * kPanel + r] > -INFINITY; ++listed) {
            const int64_t i = listed * kPanel + r;
            ranking[listed] = {-eye.top_score[i], key_of(eye.top_place[i])};
        }
    }
    if (poisoned) listed = 0;
    Real* weight = static_cast<Real*>(request.top_weight) + out;
    for (int64_t i = 0; i < k; ++i) {
        weight[i] = poisoned ? Real(NAN) : i < listed ? std::exp2(-ranking[i].first) : Real(0);
        request.top_key[out + i] = i < listed ? ranking[i].second : -1;
    }
}

template <class Real>
void Observer<Real>::add_to_results(int64_t batch, int64_t head, int64_t t0, int64_t t1,
                                    std::optional<Means> (&means)[kMaxGrids]) {
    const int64_t target = request.target[batch * p.H + head];
    if (last_key > first_key) {
        const int64_t n = last_key - first_key;
        for (int64_t c = 0; c < request.columns; ++c) {
            move_sums(columns.data() + c * p.S + first_key, n,
                      request.column_sum + (target * request.columns + c) * p.S + first_key);
        }
    }
    move_sums(distance.data(), request.distances, request.distance + target * request.distances);
    if (request.entropy) {
        move_sums(entropy.data(), t1 - t0, request.entropy + target * p.T + t0);
    }
    if (request.largest) {
        Real* out = static_cast<Real*>(request.largest) + target * p.T + t0;
        for (int64_t i = 0; i < t1 - t0; ++i) raise(out[i], largest[i]);
    }
    for (size_t g = 0; g < request.grids.size(); ++g) {
        const GridRequest& grid = request.grids[g];
        GridPart<Real>& part = parts[g];
        for (int64_t row = 0; row < part.band.count; ++row) {
            const int64_t in_grid = part.band.first + row;
            const int64_t at = (target * grid.R + in_grid) * grid.C;
            if (means[g]) means[g]->begin(target, in_grid, static_cast<Real*>(grid.largest));
            double* const sum = part.sum.data() + row * part.stride;
            if (grid.largest) {
                Real* const out = static_cast<Real*>(grid.largest) + at;
                Real* const largest = part.largest.data() + row * part.stride;
                for (int64_t i = 0; i < grid.C; ++i) {
                    // The kernel's maximum may lose a NaN; the sum cannot.
                    raise(out[i], std::isnan(sum[i]) ? Real(NAN) : largest[i]);
                    largest[i] = 0;
                }
            }
            move_sums(sum, grid.C, grid.sum + at);
            if (means[g]) means[g]->end(target, in_grid);
        }
    }
}

template <class Real>
bool observe_in(const Problem& p, ObservationRequest request, const Kernels& kernels,
                const std::function<bool(int64_t, int64_t)>& stop) {
    request.part = request.part.within(p);
    for (GridRequest& grid : request.grids) {
        const auto [begin, end] = request.part.keys;
        grid.run_end.resize(end - begin);
        for (int64_t i = end - begin - 1; i >= 0; --i) {
            const bool last = begin + i + 1 == end || grid.cols[i + 1] != grid.cols[i];
            grid.run_end[i] = last ? begin + i + 1 : grid.run_end[i + 1];
        }
    }
    const Dots* dots = sizeof(Real) == 8 ? nullptr : kernels.dots[static_cast<int>(p.q.dtype)];
    const int parts = dots ? dots->parts : 0;
    const Groups groups(p, std::max(1, parts), request.part.keys);
    const std::vector<uint8_t> worth = dots ? heads_worth_packing(p, request.part, parts)
                                            : std::vector<uint8_t>(p.batches() * p.G, 0);
    // Heads of keys follow each other: each is packed, and then the chunks of its queries' rows are
    // looked at. A head takes the place of one that is done: since tasks start in order, whoever
    // waits for that waits for running tasks.
    const auto [top, bottom] = request.part.rows;
    const int64_t rows = panels_of_chunk(p) * kPanel, chunks = (bottom - top + rows - 1) / rows;
    const int64_t heads = p.batches() * p.G, shared = p.H / p.G, tasks = heads * shared * chunks;
    const int64_t packs = dots ? groups.pieces() : 0, of_head = packs + shared * chunks;
    const int count = workers_for(heads * of_head);
    const bool any = std::any_of(worth.begin(), worth.end(), [](uint8_t w) { return w; });
    std::optional<PackedHeads> slots;
    if (any) slots.emplace(p, *dots, groups, std::min<int64_t>(count, heads));
    std::vector<Observer<Real>> workers;
    workers.reserve(count);
    for (int i = 0; i < count; ++i) workers.emplace_back(p, request, rows, any ? parts : 0);
    std::optional<Means> means[kMaxGrids];
    for (size_t g = 0; g < request.grids.size(); ++g) {
        if (!request.grids[g].means) continue;
        means[g].emplace(request, request.grids[g], p.batches() * p.H);
        for (int64_t t = 0; t < bottom - top; t += rows) {
            const Band own = band(request.grids[g], t, std::min(bottom - top, t + rows));
            means[g]->expect(own.first, own.count);
        }
    }
    Turns packed(heads), looked(heads);
    InTurn turns;
    std::atomic<int64_t> done{0};
    const auto pack = [&](int64_t head, int64_t piece) {
        if (head >= count) looked.wait(head - count, shared * chunks);
        if (worth[head]) slots->pack(head, piece, (*slots)[head % count]);
        packed.add(head);
    };
    const auto look = [&](int64_t head, int64_t index, Observer<Real>& worker) {
        const int64_t chunk = chunks - 1 - index % chunks, query = index / chunks;
        const int64_t batch = head / p.G, h = head % p.G * shared + query;
        const int64_t t0 = top + chunk * rows, t1 = std::min(bottom, t0 + rows);
        Packed kv;
        if (worth[head]) kv = (*slots)[head % count];
        packed.wait(head, packs);
        worker.run(kernels, batch, h, t0, t1, groups, worth[head] ? &kv : nullptr);
        turns.take(head * shared * chunks + index,
                   [&] { worker.add_to_results(batch, h, t0, t1, means); });
        looked.add(head);
        done.fetch_add(1, std::memory_order_relaxed);
    };
    return parallel_for(
        heads * of_head, count,
        [&](int64_t task, int worker) {
            const int64_t head = task / of_head, index = task % of_head;
            if (index < packs) return pack(head, index);
            look(head, index - packs, workers[worker]);
        },
        [&] { return stop(done.load(std::memory_order_relaxed), tasks); });
}

}  // namespace

bool observe(const Problem& p, const ObservationRequest& request, const Kernels& kernels,
             const std::function<bool(int64_t, int64_t)>& stop) {
    const auto [begin, end] = request.part.rows;
    if (p.batches() * p.H * p.T == 0 || begin >= end) return true;
    return p.q.dtype == DType::f64 ? observe_in<double>(p, request, kernels, stop)
                                   : observe_in<float>(p, request, kernels, stop);
}

}  // namespace clearhead
