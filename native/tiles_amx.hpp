// The tile registers of AMX: eight of 16 rows of 64 bytes. Written in assembly: the compilers' own
// loads do not say that they read memory.
#pragma once
#include <cstdint>

#include "dots.hpp"

namespace clearhead {
namespace {

class TileRegisters {
  protected:
    static constexpr int64_t kSize = kTile * 32;       // bfloat16 of a tile
    static constexpr int64_t kFloats = kTile * kTile;  // floats of one

    template <int T>
    static void zero() {
        asm volatile("tilezero %%tmm%c0" ::"i"(T));
    }
    // Rows `stride` bytes apart.
    template <int T>
    static void load(const void* from, int64_t stride = 64) {
        asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(from), "r"(stride) : "memory");
    }
    template <int T>
    static void store(void* to) {
        asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(to), "r"(int64_t{64})
                     : "memory");
    }
    // C += A B, of registers.
    template <int C, int A, int B>
    static void dot() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    }
};

}  // namespace
}  // namespace clearhead
