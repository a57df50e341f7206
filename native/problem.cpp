#include "problem.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "panels.hpp"

namespace clearhead {

int64_t bytes(DType dtype) {
    return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2;
}

const char* advance(const void* data, DType dtype, int64_t elements) {
    return static_cast<const char*>(data) + elements * bytes(dtype);
}

double read(const void* data, DType dtype, int64_t at) {
    switch (dtype) {
        case DType::f64:
            return static_cast<const double*>(data)[at];
        case DType::f32:
            return static_cast<const float*>(data)[at];
        case DType::bf16: {
            const uint32_t bits = static_cast<const uint16_t*>(data)[at];
            return __builtin_bit_cast(float, bits << 16);
        }
        case DType::f16: {
            const uint16_t h = static_cast<const uint16_t*>(data)[at];
            const int exponent = h >> 10 & 31, fraction = h & 1023;
            const double sign = h & 0x8000 ? -1 : 1;
            if (exponent == 31) return fraction ? NAN : sign * INFINITY;
            if (exponent == 0) return sign * std::ldexp(fraction, -24);
            return sign * std::ldexp(1024 + fraction, exponent - 25);
        }
    }
    return 0;
}

int64_t Problem::batches() const {
    int64_t n = 1;
    for (const int64_t size : lead) n *= size;
    return n;
}

double Problem::operations() const {
    constexpr double weight = 32;  // a score to its weight: 2^x, reference, sum
    const double scores = static_cast<double>(batches() * H * T) * static_cast<double>(S);
    return scores * (2 * static_cast<double>(D + E) + weight);
}

Place Problem::place(int64_t batch, int64_t head, int64_t t0) const {
    Place at = {};
    at.batch = batch;
    at.head = head;
    at.t0 = t0;
    at.rows = std::min(kPanel, T - t0);
    for (size_t i = lead.size(); i-- > 0; batch /= lead[i]) at.lead[i] = batch % lead[i];
    return at;
}

int64_t Problem::offset(const Array& a, const Place& at, int64_t head) const {
    int64_t offset = head * a.head;
    for (size_t i = 0; i < lead.size(); ++i) offset += at.lead[i] * a.lead[i];
    return offset;
}

double Problem::q_factor() const {
    return softcap != 0 ? scale / softcap : scale * kLog2e;
}

double Problem::sink_at(const Place& at) const {
    return sink ? read(sink.data, sink.dtype, offset(sink, at, at.head)) : -INFINITY;
}

Matrix matrix(const Problem& p, const Array& a, const Place& at, int64_t head, int64_t row) {
    const int64_t start = p.offset(a, at, head) + row * a.row;
    return {advance(a.data, a.dtype, start), a.row, a.col, a.dtype};
}

Part Part::within(const Problem& p) const {
    const auto up_to = [](Range range, int64_t end) {
        return Range{range.begin, std::max(range.begin, std::min(range.end, end))};
    };
    return {up_to(rows, p.T), up_to(keys, p.S)};
}

int64_t Part::panels(const Problem& p) const {
    const Range all = within(p).rows;
    return (all.end - all.begin + kPanel - 1) / kPanel;
}

Place Part::place(const Problem& p, int64_t batch, int64_t head, int64_t panel) const {
    Place at = p.place(batch, head, rows.begin + panel * kPanel);
    at.rows = std::min(at.rows, rows.end - at.t0);
    return at;
}

Array doubles_of_rows(const Problem& p, double* data) {
    Array a;
    a.data = data;
    a.dtype = DType::f64;
    a.row = 1;
    a.head = p.T;
    int64_t stride = p.H * p.T;
    for (size_t i = p.lead.size(); i-- > 0; stride *= p.lead[i]) a.lead[i] = stride;
    return a;
}

}  // namespace clearhead
