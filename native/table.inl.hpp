// Every kernel of an instruction set, in float and in double. A new kernel is one more line here
// and reaches all of them.
#pragma once
#include "backward.inl.hpp"
#include "decode.inl.hpp"
#include "forward.inl.hpp"
#include "observe.inl.hpp"
#include "probes.inl.hpp"

namespace clearhead {
namespace {

constexpr Kernels table(const char* isa) {
    return {
        .isa = isa,
        .begin = {begin<float>, begin<double>},
        .attend = {attend<float>, attend<double>},
        .finish = {finish<float>, finish<double>},
        .strip_rows = {strip_rows<float>(), strip_rows<double>()},
        .strip_attend = {strip_attend<float>, strip_attend<double>},
        .copy_rows = {copy_rows<float>, copy_rows<double>},
        .merge_row = {merge_row<float>, merge_row<double>},
        .lay_out_bias = {lay_out_bias<float>, lay_out_bias<double>},
        .observe = {observe<float>, observe<double>},
        .observe_end = {observe_end<float>, observe_end<double>},
        .gradient_begin = {gradient_begin<float>, gradient_begin<double>},
        .gradient_block = {gradient_block<float>, gradient_block<double>},
        .gradient_rows = {gradient_rows<float>, gradient_rows<double>},
        .rows_out = {rows_out<float>, rows_out<double>},
        .transpose_out = {transpose_out<float>, transpose_out<double>},
        .row_products = {row_products<float>, row_products<double>},
        .multiply_adds = {multiply_adds<float>, multiply_adds<double>},
        .weights = {weights<float>, weights<double>},
        .read_all = {read_all<float>, read_all<double>},
    };
}

}  // namespace
}  // namespace clearhead
