// Work in chains, whose pieces follow each other: who does what next.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace clearhead {

// A worker stays with the chain that it has begun, whose data then lie in its own cache and whose
// pieces need not wait for each other; only where no chain is left to begin does it help others.
// Pieces of a chain are taken in order, so the first of those at work waits for none.
class Chains {
  public:
    struct Piece {
        int64_t chain, index;
        int slot;  // of the chain, below workers and chains: no other at work has the same
    };

    Chains(int64_t chains, int64_t length, int workers)
        : chains_(chains),
          length_(length),
          few_(chains < workers),
          own_(workers, -1),
          taken_(chains),
          slot_(chains) {}

    int64_t pieces() const { return chains_ * length_; }

    // To be called once for each piece that there is.
    Piece take(int worker) {
        const std::lock_guard lock(mutex_);
        int64_t& chain = own_[worker];
        if (!has_more(chain)) {
            chain = begun_ < chains_ ? begun_++ : longest();
            if (taken_[chain] == 0) slot_[chain] = static_cast<int>(few_ ? chain : worker);
        }
        return {chain, taken_[chain]++, slot_[chain]};
    }

  private:
    bool has_more(int64_t chain) const { return chain >= 0 && taken_[chain] < length_; }

    // Of the chains that somebody is in, that with the most pieces left.
    int64_t longest() const {
        int64_t best = -1;
        for (const int64_t chain : own_) {
            if (has_more(chain) && (best < 0 || taken_[chain] < taken_[best])) best = chain;
        }
        return best;
    }

    const int64_t chains_, length_;
    const bool few_;  // fewer chains than workers
    int64_t begun_ = 0;
    std::vector<int64_t> own_;    // the chain that a worker is in; -1: none yet
    std::vector<int64_t> taken_;  // pieces of each chain
    std::vector<int> slot_;
    std::mutex mutex_;
};

// How far each task has come. Where tasks add to the same places, one may add at a step once the
// one before it has passed that step: the order of the sums is fixed, whatever the number of
// threads. Tasks start in order, so the first of those at work never waits.
class Turns {
  public:
    explicit Turns(int64_t tasks) : steps_(tasks) {}

    // Until a task has passed `count` steps.
    void wait(int64_t task, int64_t count) const {
        for (int spin = 0; steps_[task].load(std::memory_order_acquire) < count; ++spin) {
            if (spin > kSpins) std::this_thread::yield();
        }
    }
    // It has passed that many.
    void pass(int64_t task, int64_t count) { steps_[task].store(count, std::memory_order_release); }
    // One more, in no set order.
    void add(int64_t task) { steps_[task].fetch_add(1, std::memory_order_acq_rel); }

  private:
    static constexpr int kSpins = 1000;
    std::vector<std::atomic<int64_t>> steps_;
};

}  // namespace clearhead
