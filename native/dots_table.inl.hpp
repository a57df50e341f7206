// What a unit for dot-product instructions gives: numbers as they are, or as sums of N.
#pragma once
#include "observe_sums.inl.hpp"

namespace clearhead {
namespace {

constexpr Dots dots() {
    return {.parts = 1,
            .pack = pack<Whole>,
            .begin = begin,
            .attend = attend,
            .finish = finish,
            .observe = observe_sums<1>,
            .multiply_adds = Tiles::multiply_adds};
}

template <int N>
constexpr Dots sums() {
    return {.parts = N,
            .pack = pack<Sum<N>>,
            .begin = begin_sums<N>,
            .attend = attend_sums<N>,
            .finish = finish_sums,
            .observe = observe_sums<N>,
            .multiply_adds = Tiles::multiply_adds};
}

}  // namespace
}  // namespace clearhead
