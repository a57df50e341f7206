#include "observe.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <vector>

#include "panels.hpp"
#include "threads.hpp"
#include "watch.hpp"

namespace clearhead {
namespace {

// A task is a chunk of panels of one head. Its sums are its own until it is its turn to add them to
// the results: the order of additions, and so every bit, is the same for any number of threads.
// Tasks start in their order, so that whoever waits for a turn waits for a running task.
class Turns {
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

constexpr int64_t kFew = 32;        // of the largest weights: above, a list per row is cheaper
constexpr int64_t kMostPanels = 4;  // of a chunk: 256 rows
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

// Sums of one chunk over its part of a grid.
template <class Real>
struct GridPart {
    Band band;
    const int64_t* run_end;
    std::vector<Real> pending;
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
    if (x > most || std::isnan(x)) most = x;
}

int64_t key_of(float bits) {
    return __builtin_bit_cast(int32_t, bits);
}

int64_t key_of(double bits) {
    return __builtin_bit_cast(int64_t, bits);
}

template <class Real>
struct Observer {
    const Problem& p;
    const ObservationRequest& request;
    const int64_t top_room;
    Veil<Real> veil;
    Scratch<Real> scratch;
    Panel panel = {};
    Watch watch = {};
    Real *low, *weights, *top_score, *top_place, *threshold, *panel_largest;
    std::vector<int64_t> top_key, top_count;
    Grid grids[kMaxGrids];
    GridPart<Real> parts[kMaxGrids];
    std::vector<double> columns, distance, entropy;
    std::vector<Real> largest;
    std::vector<std::pair<Real, int64_t>> ranking;
    int64_t first_key, last_key;  // the keys that the chunk has met

    Observer(const Problem& problem, const ObservationRequest& wanted, int64_t rows)
        : Observer(problem, wanted, rows, problem.q.dtype > DType::f32) {}

    void run(const Kernels& kernels, int64_t batch, int64_t head, int64_t t0, int64_t t1);
    void add_to_results(int64_t batch, int64_t head, int64_t t0, int64_t t1);

  private:
    // Whether the largest weights are kept in lists: where they are many, and where the number of a
    // key does not fit the bits of a float.
    static bool lists(const Problem& p, const ObservationRequest& wanted) {
        return wanted.top > kFew || (wanted.top > 0 && p.S > INT32_MAX);
    }
    int64_t finds() const { return top_room > 0 ? kBlock * kPanel + 16 : 0; }
    int64_t scores() const { return top_room > 0 ? top_room : request.top; }
    Observer(const Problem& problem, const ObservationRequest& wanted, int64_t rows, bool converts);
    void aim(const Place& at, int64_t t0);
    void lay_out_grid(const GridRequest& wanted, const Place& at, Grid& grid, GridPart<Real>& part);
    void write_rows(const Place& at, int64_t t0);
    void write_top(const Place& at, int64_t r, bool poisoned);
};

template <class Real>
Observer<Real>::Observer(const Problem& problem, const ObservationRequest& wanted, int64_t rows,
                         bool converts)
    : p(problem),
      request(wanted),
      top_room(lists(problem, wanted) ? 2 * wanted.top : 0),
      veil(problem),
      scratch({p.D * kPanel, (kBlock + 2) * kPanel, kPanel, 2 * kPanel, converts * kBlock * p.D,
               kPanel, wanted.columns * kPanel, scores() * kPanel, scores() * kPanel, kPanel,
               kPanel, top_room, finds(), finds()}),
      top_key(top_room * kPanel),
      top_count(kPanel),
      columns(wanted.columns * p.S),
      distance(wanted.distances),
      entropy(wanted.entropy ? rows : 0),
      largest(wanted.largest ? rows : 0),
      ranking(scores()) {
    panel.D = p.D;
    panel.qt = scratch.take(p.D * kPanel);
    // A row to spare on either side: diagonals are read across the edges.
    panel.p = scratch.take((kBlock + 2) * kPanel) + kPanel;
    panel.m = scratch.take(kPanel);
    panel.l = panel.ot = scratch.take(2 * kPanel);
    panel.k_rows = scratch.take(converts * kBlock * p.D);
    panel.q_factor = p.q_factor();
    panel.s_factor = 1;
    panel.cap_factor = p.softcap * kLog2e;
    panel.sink = -INFINITY;
    low = scratch.take(kPanel);
    weights = scratch.take(wanted.columns * kPanel);
    top_score = scratch.take(scores() * kPanel);
    top_place = scratch.take(scores() * kPanel);
    threshold = scratch.take(kPanel);
    panel_largest = scratch.take(kPanel);

    watch.low = low;
    watch.grids = grids;
    watch.grid_count = static_cast<int64_t>(wanted.grids.size());
    watch.columns = wanted.columns;
    watch.weights = wanted.weights ? weights : nullptr;
    watch.column_sum = columns.data();
    watch.S = p.S;
    watch.largest = wanted.largest ? panel_largest : nullptr;
    watch.top = wanted.top;
    watch.top_score = top_score;
    watch.top_key = top_key.data();
    watch.top_room = top_room;
    watch.top_count = top_count.data();
    watch.threshold =
        top_room > 0 || wanted.top == 0 ? threshold : top_score + (wanted.top - 1) * kPanel;
    watch.top_place = top_room > 0 ? nullptr : top_place;
    watch.top_spare = scratch.take(top_room);
    watch.found_score = scratch.take(finds());
    watch.found_place = scratch.take(finds());
    watch.distances = wanted.distances;
    watch.distance = distance.data();
    for (size_t g = 0; g < wanted.grids.size(); ++g) {
        const GridRequest& grid = wanted.grids[g];
        int64_t most = 0;
        const int64_t n = wanted.part.rows.end - wanted.part.rows.begin;
        for (int64_t t = 0; t < n; t += rows) {
            most = std::max(most, band(grid, t, std::min(n, t + rows)).count);
        }
        parts[g].run_end = grid.run_end.data();
        parts[g].pending.resize(2 * kPending * kPanel);
        parts[g].sum.resize(most * grid.C);
        if (grid.largest) parts[g].largest.resize(most * grid.C);
    }
}

// Points the panel and what is watched at the rows of `at`, a part of the chunk that starts at t0.
template <class Real>
void Observer<Real>::aim(const Place& at, int64_t t0) {
    panel.rows = at.rows;
    panel.q = matrix(p, p.q, at, at.head, at.t0);
    panel.k = matrix(p, p.k, at, at.head / (p.H / p.G), 0);
    watch.rows = at.rows;
    watch.position = at.t0 + p.S - p.T;
    watch.entropy = request.entropy ? entropy.data() + (at.t0 - t0) : nullptr;
    for (size_t g = 0; g < request.grids.size(); ++g) {
        lay_out_grid(request.grids[g], at, grids[g], parts[g]);
    }
    if (request.weights) {
        const Array& a = request.weights;
        const int64_t start = p.offset(a, at, at.head);
        for (int64_t c = 0; c < request.columns; ++c) {
            for (int64_t r = 0; r < kPanel; ++r) {
                const int64_t from = start + c * a.row + (at.t0 + r) * a.col;
                weights[c * kPanel + r] =
                    r < at.rows ? static_cast<const Real*>(a.data)[from] : Real(0);
            }
        }
    }
    std::fill_n(panel_largest, kPanel, Real(-INFINITY));
    std::fill_n(threshold, kPanel, Real(-INFINITY));
    std::fill(top_count.begin(), top_count.end(), 0);
    std::fill_n(top_score, scores() * kPanel, Real(-INFINITY));
}

template <class Real>
void Observer<Real>::lay_out_grid(const GridRequest& wanted, const Place& at, Grid& grid,
                                  GridPart<Real>& part) {
    const int64_t* labels = wanted.rows + (at.t0 - request.part.rows.begin);
    grid.first = request.part.keys.begin;
    grid.label = wanted.cols;
    grid.run_end = part.run_end;
    grid.pending_sum = part.pending.data();
    grid.pending_largest = part.pending.data() + kPending * kPanel;
    grid.pending = grid.slots = 0;
    for (int64_t r = 0; r < at.rows; ++r) {
        const int64_t label = labels[r];
        const bool same = r > 0 && label == labels[r - 1];
        if (label < 0) {
            grid.slot[r] = -1;
            continue;
        }
        if (!same) {
            const int64_t start = (label - part.band.first) * wanted.C;
            grid.sum[grid.slots] = part.sum.data() + start;
            grid.largest[grid.slots] = wanted.largest ? part.largest.data() + start : nullptr;
            ++grid.slots;
        }
        grid.slot[r] = static_cast<int8_t>(grid.slots - 1);
    }
}

template <class Real>
void Observer<Real>::run(const Kernels& kernels, int64_t batch, int64_t head, int64_t t0,
                         int64_t t1) {
    constexpr int precision = sizeof(Real) == 8;
    first_key = p.S;
    last_key = 0;
    for (size_t g = 0; g < request.grids.size(); ++g) {
        const int64_t top = request.part.rows.begin;
        parts[g].band = band(request.grids[g], t0 - top, t1 - top);
    }
    for (int64_t t = t0; t < t1; t += kPanel) {
        Place at = p.place(batch, head, t);
        at.rows = std::min(at.rows, t1 - t);
        aim(at, t0);
        kernels.begin[precision](panel);
        Real* lse = static_cast<Real*>(panel.m);
        const int64_t start = p.offset(p.lse, at, head);
        for (int64_t r = 0; r < kPanel; ++r) {
            lse[r] = INFINITY;
            low[r] = 0;
            if (r >= at.rows) continue;
            const double nats = read(p.lse.data, p.lse.dtype, start + (t + r) * p.lse.row);
            if (nats == -INFINITY) continue;  // sees no key: +inf makes every weight 0
            lse[r] = in_log2<Real>(nats);
            if (std::abs(nats) < 1e30) low[r] = static_cast<Real>(nats * kLog2e - lse[r]);
        }
        for_blocks(p, kernels, at, veil, request.part.keys, [&](const Block& block) {
            first_key = std::min(first_key, block.begin);
            last_key = std::max(last_key, block.begin + block.count);
            kernels.observe[precision](panel, watch, block);
        });
        kernels.observe_end[precision](panel, watch);
        write_rows(at, t0);
    }
}

// What belongs to single rows: to the results where nothing is added up, else to the chunk's part.
template <class Real>
void Observer<Real>::write_rows(const Place& at, int64_t t0) {
    const int64_t start = p.offset(p.lse, at, at.head);
    for (int64_t r = 0; r < at.rows; ++r) {
        const double lse = read(p.lse.data, p.lse.dtype, start + (at.t0 + r) * p.lse.row);
        if (request.entropy) {
            // A weight of 1 may come out a rounding above 1, and its entropy below 0.
            double& nats = entropy[at.t0 - t0 + r];
            nats = nats < 0 ? 0 : nats * kLn2;
        }
        if (request.largest) {
            const Real most = std::exp2(panel_largest[r]);
            largest[at.t0 - t0 + r] = std::isnan(lse) ? Real(NAN) : most;
        }
        if (request.top > 0) write_top(at, r, std::isnan(lse));
    }
}

template <class Real>
void Observer<Real>::write_top(const Place& at, int64_t r, bool poisoned) {
    const int64_t k = request.top, out = ((at.batch * p.H + at.head) * p.T + at.t0 + r) * k;
    int64_t listed = 0;
    if (top_room > 0) {
        for (; listed < top_count[r]; ++listed) {
            const int64_t at = r * top_room + listed;
            ranking[listed] = {-top_score[at], top_key[at]};
        }
        std::sort(ranking.begin(), ranking.begin() + listed);
    } else {
        for (; listed < k && top_score[listed * kPanel + r] > -INFINITY; ++listed) {
            const int64_t at = listed * kPanel + r;
            ranking[listed] = {-top_score[at], key_of(top_place[at])};
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
void Observer<Real>::add_to_results(int64_t batch, int64_t head, int64_t t0, int64_t t1) {
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
        const int64_t n = part.band.count * grid.C;
        const int64_t at = (target * grid.R + part.band.first) * grid.C;
        if (grid.largest) {
            Real* out = static_cast<Real*>(grid.largest) + at;
            for (int64_t i = 0; i < n; ++i) {
                // The kernel's maximum may lose a NaN; the sum cannot.
                raise(out[i], std::isnan(part.sum[i]) ? Real(NAN) : part.largest[i]);
                part.largest[i] = 0;
            }
        }
        move_sums(part.sum.data(), n, grid.sum + at);
    }
}

template <class Real>
bool observe_in(const Problem& p, ObservationRequest request, const Kernels& kernels,
                const std::function<bool(int64_t, int64_t)>& stop) {
    request.part.rows.end = std::min(request.part.rows.end, p.T);
    request.part.keys.end = std::min(request.part.keys.end, p.S);
    for (GridRequest& grid : request.grids) {
        const auto [begin, end] = request.part.keys;
        grid.run_end.resize(end - begin);
        for (int64_t i = end - begin - 1; i >= 0; --i) {
            const bool last = begin + i + 1 == end || grid.cols[i + 1] != grid.cols[i];
            grid.run_end[i] = last ? begin + i + 1 : grid.run_end[i + 1];
        }
    }
    const auto [top, bottom] = request.part.rows;
    const int64_t rows = panels_of_chunk(p) * kPanel, chunks = (bottom - top + rows - 1) / rows;
    const int64_t tasks = p.batches() * p.H * chunks;
    const int count = workers_for(tasks);
    std::vector<Observer<Real>> workers;
    workers.reserve(count);
    for (int i = 0; i < count; ++i) workers.emplace_back(p, request, rows);
    Turns turns;
    std::atomic<int64_t> done{0};
    return parallel_for(
        tasks, count,
        [&](int64_t task, int number) {
            const int64_t chunk = chunks - 1 - task % chunks, head = task / chunks;
            const int64_t t0 = top + chunk * rows, t1 = std::min(bottom, t0 + rows);
            Observer<Real>& worker = workers[number];
            worker.run(kernels, head / p.H, head % p.H, t0, t1);
            turns.take(task, [&] { worker.add_to_results(head / p.H, head % p.H, t0, t1); });
            done.fetch_add(1, std::memory_order_relaxed);
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
