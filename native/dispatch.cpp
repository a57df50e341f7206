#include "dispatch.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace clearhead {

extern const Kernels kernels_scalar;
#if defined(__x86_64__)
extern const Kernels kernels_avx512, kernels_avx2;
extern const Dots bfloats_amx, halves_amx, floats_amx;
extern const StripDots bfloats_strip_amx, halves_strip_amx, floats_strip_amx;
extern const DotsBackward bfloats_backward_amx, halves_backward_amx, floats_backward_amx;
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

#if defined(__x86_64__)
bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

// The tile registers are 8 KiB that Linux saves only for processes that have asked: once, for all
// threads and those that are forked from them. It may refuse.
bool may_use_tiles() {
#if defined(__linux__)
    constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool granted = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
    return granted;
#else
    return false;
#endif
}

bool has_amx() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
    if (!has_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    return (d & kBf16) && (d & kTile) && may_use_tiles();
}

// AVX-512, with products of bfloat16 by tiles.
const Kernels& kernels_amx() {
    static const Kernels kernels = [] {
        Kernels both = kernels_avx512;
        both.isa = "amx";
        both.dots[static_cast<int>(DType::f32)] = &floats_amx;
        both.dots[static_cast<int>(DType::f16)] = &halves_amx;
        both.dots[static_cast<int>(DType::bf16)] = &bfloats_amx;
        both.strip_dots[static_cast<int>(DType::f32)] = &floats_strip_amx;
        both.strip_dots[static_cast<int>(DType::f16)] = &halves_strip_amx;
        both.strip_dots[static_cast<int>(DType::bf16)] = &bfloats_strip_amx;
        both.dots_backward[static_cast<int>(DType::f32)] = &floats_backward_amx;
        both.dots_backward[static_cast<int>(DType::f16)] = &halves_backward_amx;
        both.dots_backward[static_cast<int>(DType::bf16)] = &bfloats_backward_amx;
        return both;
    }();
    return kernels;
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
    {&kernels_amx(), has_amx},
    {&kernels_avx512, has_avx512},
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
