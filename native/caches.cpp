#include "caches.hpp"

#include <unistd.h>

namespace clearhead {

int64_t first_level_bytes() {
    static const int64_t bytes = [] {
        int64_t found = 0;
#if defined(_SC_LEVEL1_DCACHE_SIZE)
        found = sysconf(_SC_LEVEL1_DCACHE_SIZE);
#endif
        return found > 0 ? found : int64_t{32} << 10;
    }();
    return bytes;
}

int64_t second_level_bytes() {
    static const int64_t bytes = [] {
        int64_t found = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
        found = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
        return found > 0 ? found : int64_t{256} << 10;
    }();
    return bytes;
}

}  // namespace clearhead
