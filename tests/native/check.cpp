// The core without Python: every instruction set of the machine against the formula in long double,
// on one thread and on several, and several calls at once. Built by the sanitizers' flags and by
// cross-compilers (tests/test_native.py), where no interpreter would run.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "attention.hpp"
#include "backward.hpp"
#include "caches.hpp"
#include "dispatch.hpp"
#include "mask.hpp"
#include "memory.hpp"
#include "observe.hpp"
#include "threads.hpp"

using namespace clearhead;

static_assert(block_keys(48 << 10, 4) == 96 && block_keys(32 << 10, 4) == 60);
static_assert(block_keys(1 << 10, 4) == 24 && block_keys(1 << 20, 4) == kBlock);

namespace {

struct Size {
    int64_t B, H, G, T, S, D, E;
};

// Distinct primes where the size is not itself the point, so that no mix-up of axes passes.
constexpr Size kSizes[] = {
    {1, 1, 1, 1, 1, 1, 1},       {2, 6, 3, 71, 101, 13, 19}, {1, 4, 2, 1, 307, 64, 33},
    {1, 8, 2, 5, 1201, 64, 64},  {3, 2, 2, 67, 7, 5, 3},     {1, 2, 1, 131, 197, 96, 64},
    {1, 4, 1, 131, 331, 64, 40},  // large enough to be packed for tiles
};

struct Numbers {
    std::vector<double> exact;
    std::vector<char> stored;
    DType dtype;

    const void* data() const { return stored.data(); }
};

void put(char* at, DType dtype, double x) {
    if (dtype == DType::f64) {
        *reinterpret_cast<double*>(at) = x;
    } else if (dtype == DType::f32) {
        *reinterpret_cast<float*>(at) = static_cast<float>(x);
    } else {
        // Numbers here are multiples of 1/32 up to 2: seven bits, exact in both half types.
        uint16_t bits = 0;
        if (dtype == DType::bf16) {
            bits = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, static_cast<float>(x)) >> 16);
        } else if (x != 0) {
            int exponent;
            const double fraction = std::frexp(std::fabs(x), &exponent);
            bits = static_cast<uint16_t>((x < 0 ? 0x8000 : 0) | (exponent + 14) << 10 |
                                         static_cast<int>(fraction * 2048 - 1024));
        }
        *reinterpret_cast<uint16_t*>(at) = bits;
    }
}

class Random {
  public:
    double next() {  // a multiple of 1/32 in (-2, 2]
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        return static_cast<double>(static_cast<int64_t>(state_ >> 57) - 63) / 32;
    }
    Numbers numbers(int64_t count, DType dtype) {
        Numbers out = {{}, std::vector<char>(count * bytes(dtype)), dtype};
        for (int64_t i = 0; i < count; ++i) {
            out.exact.push_back(next());
            put(out.stored.data() + i * bytes(dtype), dtype, out.exact.back());
        }
        return out;
    }

  private:
    uint64_t state_ = 7;
};

Array array(const void* data, DType dtype, int64_t heads, int64_t rows, int64_t cols) {
    Array a;
    a.data = data;
    a.dtype = dtype;
    a.lead[0] = heads * rows * cols;
    a.head = rows * cols;
    a.row = cols;
    a.col = 1;
    return a;
}

int failures = 0;

void expect(bool good, const std::string& what) {
    if (good) return;
    ++failures;
    std::printf("wrong: %s\n", what.c_str());
}

double furthest(const std::vector<double>& want, const void* got, DType dtype) {
    double most = 0;
    for (size_t i = 0; i < want.size(); ++i) {
        const double off = std::fabs(read(got, dtype, static_cast<int64_t>(i)) - want[i]);
        if (!(off <= most)) most = off;  // a NaN is as far as can be
    }
    return most;
}

// What the formula gives for one problem, in long double.
struct Expected {
    std::vector<double> out, lse, entropy, dq, dk, dv;
};

Expected formula(const Size& n, bool causal, double scale, const Numbers& q, const Numbers& k,
                 const Numbers& v, const Numbers& dout) {
    Expected e;
    e.dq.resize(q.exact.size());
    e.dk.resize(k.exact.size());
    e.dv.resize(v.exact.size());
    std::vector<long double> p(n.S), dp(n.S);
    for (int64_t bh = 0; bh < n.B * n.H; ++bh) {
        const int64_t group = bh / n.H * n.G + bh % n.H / (n.H / n.G);
        for (int64_t t = 0; t < n.T; ++t) {
            const double* query = &q.exact[(bh * n.T + t) * n.D];
            const double* upper = &dout.exact[(bh * n.T + t) * n.E];
            const int64_t seen = causal ? std::clamp(t + n.S - n.T + 1, int64_t{0}, n.S) : n.S;
            long double sum = 0, top = -INFINITY, entropy = 0, delta = 0;
            for (int64_t s = 0; s < seen; ++s) {
                p[s] = 0;
                for (int64_t d = 0; d < n.D; ++d)
                    p[s] += static_cast<long double>(scale) * query[d] *
                            k.exact[(group * n.S + s) * n.D + d];
                top = std::max(top, p[s]);
            }
            for (int64_t s = 0; s < seen; ++s) sum += p[s] = std::exp(p[s] - top);
            for (int64_t s = 0; s < seen; ++s) {
                p[s] /= sum;
                if (p[s] > 0) entropy -= p[s] * std::log(p[s]);
                dp[s] = 0;
                for (int64_t c = 0; c < n.E; ++c)
                    dp[s] +=
                        static_cast<long double>(upper[c]) * v.exact[(group * n.S + s) * n.E + c];
                delta += p[s] * dp[s];
            }
            for (int64_t c = 0; c < n.E; ++c) {
                long double o = 0;
                for (int64_t s = 0; s < seen; ++s) {
                    o += p[s] * v.exact[(group * n.S + s) * n.E + c];
                    e.dv[(group * n.S + s) * n.E + c] += static_cast<double>(p[s] * upper[c]);
                }
                e.out.push_back(static_cast<double>(o));
            }
            for (int64_t s = 0; s < seen; ++s) {
                const long double ds = p[s] * (dp[s] - delta) * scale;
                for (int64_t d = 0; d < n.D; ++d) {
                    double& dk = e.dk[(group * n.S + s) * n.D + d];
                    dk += static_cast<double>(ds * query[d]);
                    e.dq[(bh * n.T + t) * n.D + d] +=
                        static_cast<double>(ds * k.exact[(group * n.S + s) * n.D + d]);
                }
            }
            e.lse.push_back(static_cast<double>(top + std::log(sum)));
            e.entropy.push_back(static_cast<double>(entropy));
        }
    }
    return e;
}

bool never() {
    return false;
}

// A few roundings of the working precision on numbers below 2, and one of what is stored; in
// bfloat16 the weights of a row may be rounded to it as well.
double allowed(DType dtype) {
    return dtype == DType::f64   ? 1e-12
           : dtype == DType::f32 ? 2e-5
           : dtype == DType::f16 ? 2e-5 + 2 * 0x1p-11
                                 : 2e-5 + 2 * 0x1p-8;
}

void check(const Size& n, DType dtype, bool causal) {
    Random random;
    const Numbers q = random.numbers(n.B * n.H * n.T * n.D, dtype);
    const Numbers k = random.numbers(n.B * n.G * n.S * n.D, dtype);
    const Numbers v = random.numbers(n.B * n.G * n.S * n.E, dtype);
    const Numbers dout = random.numbers(n.B * n.H * n.T * n.E, dtype);
    Problem p;
    p.lead = {n.B};
    p.H = n.H, p.G = n.G, p.T = n.T, p.S = n.S, p.D = n.D, p.E = n.E;
    p.q = array(q.data(), dtype, n.H, n.T, n.D);
    p.k = array(k.data(), dtype, n.G, n.S, n.D);
    p.v = array(v.data(), dtype, n.G, n.S, n.E);
    p.scale = 1 / std::sqrt(static_cast<double>(n.D));
    Mask mask({{MaskKind::band, -n.S - n.T, n.S - n.T, {}, {}}}, 1, n.S);
    if (causal) p.mask = &mask;
    const Expected want = formula(n, causal, p.scale, q, k, v, dout);
    const DType real = dtype == DType::f64 ? DType::f64 : DType::f32;
    const std::string about = " T=" + std::to_string(n.T) + " S=" + std::to_string(n.S) +
                              " dtype " + std::to_string(static_cast<int>(dtype)) +
                              (causal ? " causal" : "") + " on ";

    for (const std::string& isa : available_isas()) {
        choose_isa(isa);
        std::vector<char> one_thread;
        for (const int threads : {1, 3}) {
            set_thread_count(threads);
            std::vector<char> out(want.out.size() * bytes(dtype), 1);
            std::vector<char> lse(want.lse.size() * bytes(real), 1);
            p.out = array(out.data(), dtype, n.H, n.T, n.E);
            p.lse = array(lse.data(), real, n.H, n.T, 1);
            expect(forward(p, kernels(), never), "forward" + about + isa);
            expect(furthest(want.out, out.data(), dtype) <= allowed(dtype), "out" + about + isa);
            expect(furthest(want.lse, lse.data(), real) <= allowed(real), "lse" + about + isa);

            std::vector<double> entropy(want.entropy.size());
            std::vector<int64_t> target(n.B * n.H);
            for (int64_t i = 0; i < n.B * n.H; ++i) target[i] = i;
            ObservationRequest request;
            request.target = target.data();
            request.entropy = entropy.data();
            expect(observe(p, request, kernels(), [](int64_t, int64_t) { return false; }),
                   "observe" + about + isa);
            // Entropy multiplies each weight's rounding by its logarithm.
            expect(furthest(want.entropy, entropy.data(), DType::f64) <= 10 * allowed(real),
                   "entropy" + about + isa);

            std::vector<char> dq(q.stored.size()), dk(k.stored.size()), dv(v.stored.size());
            if (dtype <= DType::f32) {
                Gradients g = {array(dq.data(), dtype, n.H, n.T, n.D),
                               array(dk.data(), dtype, n.G, n.S, n.D),
                               array(dv.data(), dtype, n.G, n.S, n.E),
                               {},
                               {}};
                const Array upper = array(dout.data(), dtype, n.H, n.T, n.E);
                expect(backward(p, upper, g, kernels(), never), "backward" + about + isa);
                // Sums over up to H / G * T rows.
                const double most = 40 * allowed(dtype);
                expect(furthest(want.dq, dq.data(), dtype) <= most, "dq" + about + isa);
                expect(furthest(want.dk, dk.data(), dtype) <= most, "dk" + about + isa);
                expect(furthest(want.dv, dv.data(), dtype) <= most, "dv" + about + isa);
            }
            for (const auto* part : {&lse, &dq, &dk, &dv})
                out.insert(out.end(), part->begin(), part->end());
            if (threads == 1) one_thread = out;
            expect(out == one_thread, "the same bits for any number of threads" + about + isa);
        }
    }
}

constexpr int64_t kMiB = int64_t{1} << 20;

void check_memory() {
    const auto starts = [](const Memory& m) { return reinterpret_cast<uintptr_t>(m.get()); };
    Memory first = borrow(3 * kMiB), second = borrow(5 * kMiB);
    std::memset(first.get(), 1, 3 * kMiB);
    std::memset(second.get(), 2, 5 * kMiB);
    expect(starts(first) % 64 == 0 && starts(second) % 64 == 0, "memory is aligned");
    expect(*static_cast<char*>(first.get()) == 1, "two that are borrowed at once share nothing");
    const uintptr_t of_first = starts(first), of_second = starts(second);
    first.reset();
    second.reset();
    const int64_t kept = kept_bytes(Use::scratch);
    expect(kept >= 8 * kMiB, "what is given back is kept");
    first = borrow(5 * kMiB);
    expect(starts(first) == of_second, "who wants as much gets it again");
    second = borrow(2 * kMiB + 1);
    expect(starts(second) == of_first && kept_bytes(Use::scratch) == kept - 4 * kMiB - 6 * kMiB,
           "and so does who wants a little less");
    second.reset();
    const Memory small = borrow(kMiB);
    expect(starts(small) != of_first, "but not who wants less than half");
    first.reset();

    std::vector<Memory> many;
    for (int64_t i = 0; i < 9; ++i) many.push_back(borrow(7 * kMiB));
    many.clear();
    expect(kept_bytes(Use::scratch) <= 32 * kMiB, "at most 32 MiB are kept");
    const int64_t before = kept_bytes(Use::scratch);
    borrow(33 * kMiB).reset();
    expect(kept_bytes(Use::scratch) == before, "what is larger is not kept at all");
    for (int64_t i = 0; i < 200; ++i) many.push_back(borrow(64 * (1 + i)));
    many.clear();
    expect(kept_bytes(Use::scratch) <= 32 * kMiB, "nor too many small ones");

    const int64_t of_scratch = kept_bytes(Use::scratch);
    for (int64_t i = 0; i < 9; ++i) many.push_back(borrow(8 * kMiB, Use::result));
    many.clear();
    expect(kept_bytes(Use::result) == 64 * kMiB, "of results 64 MiB are kept");
    expect(kept_bytes(Use::scratch) == of_scratch, "which drive out no scratch");
}

// Several threads borrow at once, and a child is forked from among them.
void check_memory_of_many() {
    std::atomic<bool> overwritten = false, enough = false;
    std::vector<std::thread> borrowers;
    for (int who = 1; who <= 4; ++who) {
        borrowers.emplace_back([&, who] {
            for (int64_t round = 0; round < 300 || !enough; ++round) {
                const int64_t bytes = 64 + round * who * 7919 % 50'000;
                const Memory mine = borrow(bytes);
                char* const at = static_cast<char*>(mine.get());
                std::memset(at, who, bytes);
                if (at[0] != who || at[bytes - 1] != who || at[bytes / 2] != who) {
                    overwritten = true;
                }
            }
        });
    }
    // Not under a sanitizer with an allocator of its own, which a fork may leave locked (GCC 12):
    // the child would wait for ever.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    constexpr int kChildren = 0;
#else
    constexpr int kChildren = 20;
#endif
    for (int i = 0; i < kChildren; ++i) {
        const pid_t child = fork();
        if (child == 0) {
            for (int64_t size = 64; size < 4 * kMiB; size *= 3)
                *static_cast<char*>(borrow(size).get()) = 1;
            _exit(0);
        }
        int status = 1;
        expect(child > 0 && waitpid(child, &status, 0) == child && status == 0,
               "a forked child borrows, whoever held the lock");
    }
    enough = true;
    for (std::thread& borrower : borrowers) borrower.join();
    expect(!overwritten, "no two threads have the same memory");
}

}  // namespace

int main() {
    check_memory();
    check_memory_of_many();
    for (const Size& size : kSizes) {
        for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
            // Causal with more queries than keys leaves rows without a key; tests in Python see
            // to those.
            for (const bool causal : {false, true}) {
                if (!causal || size.S >= size.T) check(size, dtype, causal);
            }
        }
    }
    // Several callers at once: one has the pool, the others run alone.
    set_thread_count(3);
    std::vector<std::thread> callers;
    std::atomic<int64_t> done = 0;
    for (int caller = 0; caller < 4; ++caller) {
        callers.emplace_back([&] {
            for (int round = 0; round < 50; ++round) {
                parallel_for(20, workers_for(20), [&](int64_t, int) { done.fetch_add(1); }, never);
            }
        });
    }
    for (std::thread& caller : callers) caller.join();
    expect(done == 4 * 50 * 20, "every task of every caller runs once");

    std::string names;
    for (const std::string& isa : available_isas()) names += " " + isa;
    std::printf("%s on%s\n", failures ? "FAILED" : "right", names.c_str());
    return failures != 0;
}
