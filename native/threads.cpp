#include "threads.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace clearhead {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPoll = std::chrono::milliseconds(50);
constexpr int kSpins = 4000;  // about 50 us: a loop of small calls finds the workers awake
constexpr int kMaxThreads = 1024;

// To hand work to a thread that is awake takes 1 to 2 us; to wake one keeps the caller for about
// 15, and the work waits for longer. One core does this many operations in 5 to 10 us: with fewer,
// a second one saves nothing.
constexpr double kAlone = 1e6;

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

struct Job {
    int64_t n;
    const std::function<void(int64_t, int)>* task;
    std::atomic<int64_t> next{0};
    std::atomic<bool> cancelled{false};

    // Takes tasks until none is left. `between` runs after each one.
    template <class F>
    void work(int worker, F between) {
        while (!cancelled.load(std::memory_order_relaxed)) {
            const int64_t i = next.fetch_add(1, std::memory_order_relaxed);
            if (i >= n) return;
            (*task)(i, worker);
            between();
        }
    }
};

// A mutex here is held for a few instructions: whoever finds it taken is served sooner by asking
// again than by sleeping.
std::unique_lock<std::mutex> hold(std::mutex& mutex) {
    std::unique_lock lock(mutex, std::try_to_lock);
    for (int spin = 0; !lock && spin < kSpins; ++spin) {
        pause();
        (void)lock.try_lock();
    }
    if (!lock) lock.lock();
    return lock;
}

class Pool {
  public:
    std::mutex busy;  // held by the one call that has the workers

    void run(Job& job, int workers, const std::function<void()>& between) {
        {
            const auto lock = hold(mutex_);
            while (static_cast<int>(threads_.size()) < workers - 1) {
                const int number = static_cast<int>(threads_.size()) + 1;
                threads_.emplace_back([this, number] { loop(number); });
                threads_.back().detach();
            }
            job_ = &job;
            wanted_ = workers - 1;
            round_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        job.work(0, between);
        // Who has not woken by now finds nothing left to do, and need not be waited for: a short
        // job costs no more than it takes alone.
        {
            const auto lock = hold(mutex_);
            job_ = nullptr;
        }
        for (int spin = 0; working_.load(std::memory_order_acquire) > 0; ++spin) {
            if (spin < kSpins) {
                pause();
                continue;
            }
            std::unique_lock lock(mutex_);
            done_.wait_for(lock, kPoll, [this] { return working_.load() == 0; });
            lock.unlock();
            between();
        }
    }

  private:
    void loop(int number) {
        uint64_t seen = 0;
        for (;;) {
            for (int spin = 0; spin < kSpins && round_.load(std::memory_order_acquire) == seen;
                 ++spin) {
                pause();
            }
            Job* job;
            {
                auto lock = hold(mutex_);
                wake_.wait(lock, [&] { return round_.load() != seen; });
                seen = round_.load();
                job = job_;
                if (number > wanted_ || !job) continue;
                working_.fetch_add(1, std::memory_order_relaxed);
            }
            job->work(number, [] {});
            if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
                const auto lock = hold(mutex_);
                done_.notify_one();
            }
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::vector<std::thread> threads_;
    std::atomic<uint64_t> round_{0};
    std::atomic<int> working_{0};  // inside of job_; grows only while there is one
    Job* job_ = nullptr;           // null between calls
    int wanted_ = 0;
};

// Never destroyed: detached workers may outlive main.
std::atomic<Pool*> pool_pointer{nullptr};

Pool& pool() {
    static const bool made = (pool_pointer.store(new Pool), true);
    (void)made;
    return *pool_pointer.load();
}

int cpus_by_affinity() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1u, std::thread::hardware_concurrency());
}

// cgroup v2: "max 100000" or "200000 100000" (quota and period in microseconds).
int cpus_by_quota() {
    std::ifstream file("/sys/fs/cgroup/cpu.max");
    std::string quota;
    double period = 0;
    if (!(file >> quota >> period) || quota == "max" || period <= 0) return kMaxThreads;
    return std::max(1, static_cast<int>(std::atof(quota.c_str()) / period + 0.5));
}

int count_from(const char* text) {
    char* end = nullptr;
    const long count = std::strtol(text, &end, 10);
    const bool whole = end != text && (*end == '\0' || *end == ',');
    return whole && count >= 1 && count <= kMaxThreads ? static_cast<int>(count) : 0;
}

int initial_count() {
    if (const char* own = std::getenv("CLEARHEAD_NUM_THREADS"); own && *own) {
        if (const int count = count_from(own)) return count;
        throw std::invalid_argument("CLEARHEAD_NUM_THREADS: is '" + std::string(own) +
                                    "', must be a whole number from 1 to 1024");
    }
    if (const char* omp = std::getenv("OMP_NUM_THREADS")) {
        if (const int count = count_from(omp)) return count;
    }
    return std::min(cpus_by_affinity(), cpus_by_quota());
}

std::atomic<int> chosen{0};
std::atomic<bool> by_hand{false};  // by set_thread_count

// After fork the child has none of the threads and may have inherited locked mutexes, so it starts
// afresh and forgets the parent's pool. It has brothers, as a rule, which fork was for: unless
// somebody chose a count, it takes one core and leaves them theirs.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] {
    if (pool_pointer.load()) pool_pointer.store(new Pool);
    const char* own = std::getenv("CLEARHEAD_NUM_THREADS");
    const char* omp = std::getenv("OMP_NUM_THREADS");
    const bool named = (own && *own) || (omp && count_from(omp));
    if (!by_hand.load()) chosen.store(named ? 0 : 1);
});

}  // namespace

int thread_count() {
    int count = chosen.load();
    if (count == 0) chosen.store(count = initial_count());
    return count;
}

void set_thread_count(int count) {
    if (count < 1 || count > kMaxThreads) {
        throw std::invalid_argument("count: is " + std::to_string(count) +
                                    ", must be a whole number from 1 to 1024");
    }
    by_hand.store(true);
    chosen.store(count);
}

int workers_for(int64_t n, double operations) {
    if (operations < kAlone) return 1;
    return static_cast<int>(std::clamp<int64_t>(n, 1, thread_count()));
}

bool parallel_for(int64_t n, int workers, const std::function<void(int64_t, int)>& task,
                  const std::function<bool()>& interrupted) {
    Job job{n, &task};
    auto next_poll = Clock::now() + kPoll;
    const auto between = [&] {
        if (job.cancelled.load(std::memory_order_relaxed) || Clock::now() < next_poll) return;
        next_poll = Clock::now() + kPoll;
        if (interrupted()) job.cancelled.store(true, std::memory_order_relaxed);
    };
    if (workers > 1) {
        Pool& shared = pool();
        if (std::unique_lock mine(shared.busy, std::try_to_lock); mine) {
            shared.run(job, workers, between);
            return !job.cancelled.load();
        }
    }
    job.work(0, between);
    return !job.cancelled.load();
}

}  // namespace clearhead
