// Memory for scratch that outlives a call, so that the next one finds it warm: a page that the
// system hands out anew costs more than the work that a small call does on it.
#pragma once
#include <cstdint>
#include <memory>

namespace clearhead {

struct GiveBack {
    int64_t bytes = 0;
    void operator()(void* memory) const noexcept;
};
using Memory = std::unique_ptr<void, GiveBack>;

// At least so many bytes, aligned to 64, with whatever stands in them. Throws std::bad_alloc. What
// is given back is kept, up to 32 MiB in all, the latest first. Any thread may call, also in a
// forked child.
Memory borrow(int64_t bytes);

// Bytes that wait for whoever borrows next.
int64_t kept_bytes();

}  // namespace clearhead
