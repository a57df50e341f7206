// Memory that outlives a call, so that the next one finds it warm: a page that the system hands out
// anew costs more than the work that a small call does on it, and one of a large call's results as
// much as a tenth of that call.
#pragma once
#include <cstdint>
#include <memory>

namespace clearhead {

// What memory is kept for. Scratch is in use during a call, a result for as long as somebody holds
// it: each has a shelf of its own, that neither drives out the other.
enum class Use { scratch, result };

struct GiveBack {
    int64_t bytes = 0;
    Use use = Use::scratch;
    void operator()(void* memory) const noexcept;
};
using Memory = std::unique_ptr<void, GiveBack>;

// At least so many bytes, aligned to 64, with whatever stands in them. Throws std::bad_alloc. What
// is given back is kept, up to 32 MiB of scratch and 64 MiB of results, the latest first. Any
// thread may call, also in a forked child.
Memory borrow(int64_t bytes, Use use = Use::scratch);

// Bytes that wait for whoever borrows next.
int64_t kept_bytes(Use use);

}  // namespace clearhead
