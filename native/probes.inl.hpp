// The machine's own limits, by the instructions that the kernels use; see Kernels.
#pragma once
#include "tile.inl.hpp"

namespace clearhead {
namespace {

// Uses what a probe has added up, so that the compiler cannot leave the work out.
template <class Vector, int Rows, int Cols>
void keep(const Vector (&sum)[Rows][Cols]) {
    for (const auto& row : sum) {
        for (const Vector& x : row) {
            volatile Vector kept = x;
            (void)kept;
        }
    }
}

template <class Real>
int64_t multiply_adds(int64_t n) {
    using S = Simd<Real>;
    constexpr int R = S::kTileRows, V = S::kTileVecs;
    Vec<Real> sum[R][V];
    for (auto& row : sum) {
        for (auto& x : row) x = S::set1(1);
    }
    // Opaque to the compiler, so that it cannot work the loop out.
    volatile Real half = Real(0.5);
    const Vec<Real> a = S::set1(half), b = S::set1(half);
    for (int64_t round = 0; round < n; ++round) {
#pragma GCC unroll 8
        for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
            for (int j = 0; j < V; ++j) sum[i][j] = S::fma(a, sum[i][j], b);
        }
    }
    keep(sum);
    return 2 * n * R * V * S::kLanes;
}

// What stands between the products, for each score: factor, reference, 2^x, sum. The results feed
// the next round, where they stay between 0 and 1.
template <class Real>
int64_t weights(int64_t n) {
    using S = Simd<Real>;
    constexpr int Vecs = 12, Sums = 4;
    Vec<Real> x[1][Vecs], sum[1][Sums];
    for (Vec<Real>& each : x[0]) each = S::set1(1);
    for (Vec<Real>& each : sum[0]) each = S::set1(0);
    volatile Real half = Real(0.5);
    const Vec<Real> factor = S::set1(half), reference = S::set1(half);
    for (int64_t round = 0; round < n; ++round) {
#pragma GCC unroll 16
        for (int j = 0; j < Vecs; ++j) {
            x[0][j] = exp2_of_any<Real>(S::sub(S::mul(x[0][j], factor), reference));
            sum[0][j % Sums] = S::add(sum[0][j % Sums], x[0][j]);
        }
    }
    keep(sum);
    return n * Vecs * S::kLanes;
}

// One stream: two, four or sixteen at once, with and without prefetch, read no faster.
template <class Real>
int64_t read_all(const void* data, int64_t bytes) {
    using S = Simd<Real>;
    constexpr int Vecs = 8;
    const Real* from = static_cast<const Real*>(data);
    const int64_t count = bytes / static_cast<int64_t>(sizeof(Real));
    Vec<Real> sum[1][Vecs];
    for (Vec<Real>& x : sum[0]) x = S::set1(0);
    int64_t done = 0;
    for (; done + Vecs * S::kLanes <= count; done += Vecs * S::kLanes) {
#pragma GCC unroll 8
        for (int j = 0; j < Vecs; ++j) {
            sum[0][j] = S::add(sum[0][j], S::load(from + done + j * S::kLanes));
        }
    }
    keep(sum);
    return done * static_cast<int64_t>(sizeof(Real));
}

}  // namespace
}  // namespace clearhead
