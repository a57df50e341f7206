#include "dispatch.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace clearhead {

extern const Kernels kernels_scalar;
#if defined(__x86_64__)
extern const Kernels kernels_avx512, kernels_avx2;
#elif defined(__aarch64__)
extern const Kernels kernels_neon;
#endif

namespace {

#if defined(__x86_64__)
// Not every compiler's __builtin_cpu_supports knows this one.
bool has_f16c() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

struct Candidate {
    const Kernels* table;
    bool (*supported)();
};

// Best first. __builtin_cpu_supports reads CPUID and XGETBV: an instruction set counts only where
// the operating system saves its registers too.
const Candidate kCandidates[] = {
#if defined(__x86_64__)
    {&kernels_avx512,
     [] {
         return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
     }},
    {&kernels_avx2,
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }},
#elif defined(__aarch64__)
    {&kernels_neon, [] { return true; }},  // a part of the architecture
#endif
    {&kernels_scalar, [] { return true; }},
};

std::atomic<const Kernels*> chosen{nullptr};

std::string listed() {
    std::string names;
    for (const std::string& name : available_isas()) names += (names.empty() ? "" : ", ") + name;
    return names;
}

}  // namespace

std::vector<std::string> available_isas() {
    std::vector<std::string> names;
    for (const Candidate& c : kCandidates) {
        if (c.supported()) names.emplace_back(c.table->isa);
    }
    return names;
}

void choose_isa(const std::string& name) {
    for (const Candidate& c : kCandidates) {
        if (c.table->isa != name) continue;
        if (!c.supported()) {
            throw std::runtime_error("CLEARHEAD_ISA: this machine cannot run '" + name +
                                     "', it can run: " + listed());
        }
        chosen.store(c.table);
        return;
    }
    throw std::invalid_argument("CLEARHEAD_ISA: is '" + name + "', must be one of: " + listed());
}

const Kernels& kernels() {
    if (!chosen.load()) {
        const char* forced = std::getenv("CLEARHEAD_ISA");
        choose_isa(forced && *forced ? forced : available_isas().front());
    }
    return *chosen.load();
}

}  // namespace clearhead
