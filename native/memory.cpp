#include "memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace clearhead {
namespace {

// Of results as much as the C library, too, keeps of what is freed, at the most; the four of a
// gradient step with 8 heads, 2048 tokens and D = 128 in float32 are 32 MiB.
constexpr int64_t kMostKept[] = {int64_t{32} << 20, int64_t{64} << 20};
constexpr int64_t kLargePage = int64_t{2} << 20;

struct Idle {
    void* memory;
    int64_t bytes;
};

// Whoever cannot have the lock at once goes to the system instead: nobody waits, and a child that
// was forked while another thread held it does not hang.
struct Shelf {
    std::mutex lock;
    std::vector<Idle> idle;  // the latest last
    int64_t bytes = 0;

    Shelf() { idle.reserve(64); }
};

Shelf& shelf(Use use) {
    static Shelf* const two = new Shelf[2];  // never destroyed: a thread may outlive static objects
    return two[static_cast<int>(use)];
}

void* allocate(int64_t bytes) {
    const bool large = bytes >= kLargePage;
    void* const memory = std::aligned_alloc(large ? kLargePage : 64, bytes);
    if (!memory) throw std::bad_alloc();
#if defined(__linux__)
    if (large) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return memory;
}

}  // namespace

Memory borrow(int64_t wanted, Use use) {
    const int64_t unit = wanted >= kLargePage ? kLargePage : 64;
    const int64_t bytes = (std::max<int64_t>(wanted, 1) + unit - 1) / unit * unit;
    Shelf& s = shelf(use);
    if (const std::unique_lock hold(s.lock, std::try_to_lock); hold) {
        // Not one that is twice as large: it would be missing where it is needed.
        const auto fits = [&](const Idle& i) { return i.bytes >= bytes && i.bytes <= 2 * bytes; };
        const auto found = std::find_if(s.idle.rbegin(), s.idle.rend(), fits);
        if (found != s.idle.rend()) {
            const Idle it = *found;
            s.idle.erase(std::next(found).base());
            s.bytes -= it.bytes;
            return Memory(it.memory, {it.bytes, use});
        }
    }
    return Memory(allocate(bytes), {bytes, use});
}

int64_t kept_bytes(Use use) {
    Shelf& s = shelf(use);
    const std::lock_guard hold(s.lock);
    return s.bytes;
}

void GiveBack::operator()(void* memory) const noexcept {
    Shelf& s = shelf(use);
    const int64_t most = kMostKept[static_cast<int>(use)];
    const std::unique_lock hold(s.lock, std::try_to_lock);
    if (!hold || bytes > most) return std::free(memory);
    while (s.bytes + bytes > most || s.idle.size() == s.idle.capacity()) {
        std::free(s.idle.front().memory);
        s.bytes -= s.idle.front().bytes;
        s.idle.erase(s.idle.begin());
    }
    s.idle.push_back({memory, bytes});
    s.bytes += bytes;
}

}  // namespace clearhead
