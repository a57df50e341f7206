#include "mask.hpp"

#include <algorithm>
#include <utility>

namespace clearhead {
namespace {

using Runs = std::vector<Run>;

// Appends keys up to `end`, joining equal neighbours and dropping empty stretches.
void extend(Runs& runs, int64_t end, Seen seen, int64_t S) {
    end = std::min(end, S);
    if (end <= (runs.empty() ? 0 : runs.back().end)) return;
    if (!runs.empty() && runs.back().seen == seen) {
        runs.back().end = end;
    } else {
        runs.push_back({end, seen});
    }
}

Seen both(Seen a, Seen b) {
    return std::min(a, b);
}
Seen either(Seen a, Seen b) {
    return std::max(a, b);
}
Seen negation(Seen a) {
    return a == Seen::none ? Seen::all : a == Seen::all ? Seen::none : Seen::some;
}

template <class Join>
void join(const Runs& a, const Runs& b, int64_t S, Runs& out, Join join) {
    out.clear();
    for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
        const int64_t end = std::min(a[i].end, b[j].end);
        extend(out, end, join(a[i].seen, b[j].seen), S);
        i += a[i].end == end;
        j += b[j].end == end;
    }
}

// lo <= s <= hi for the rows whose limits run from (lo_min, hi_min) to (lo_max, hi_max).
void band_runs(int64_t lo_min, int64_t lo_max, int64_t hi_min, int64_t hi_max, int64_t S,
               Runs& runs) {
    extend(runs, lo_min, Seen::none, S);
    if (lo_max <= hi_min) {
        extend(runs, lo_max, Seen::some, S);
        extend(runs, hi_min + 1, Seen::all, S);
    }
    extend(runs, hi_max + 1, Seen::some, S);
    extend(runs, S, Seen::none, S);
}

// Limits such as "no limit to the left" are +-2^62: adding a row index must not overflow.
int64_t clamp(int64_t x, int64_t S) {
    return std::clamp<int64_t>(x, -1, S);
}

uint64_t rows_mask(int64_t rows) {
    return rows >= 64 ? ~uint64_t{0} : (uint64_t{1} << rows) - 1;
}

// Bits from r on.
uint64_t bits_from(int64_t r) {
    return r >= 64 ? 0 : ~uint64_t{0} << std::max<int64_t>(r, 0);
}

// What two bands both allow is a band.
std::vector<MaskOp> with_bands_joined(const std::vector<MaskOp>& program) {
    std::vector<MaskOp> out;
    for (const MaskOp& op : program) {
        const size_t n = out.size();
        if (op.kind == MaskKind::both && out[n - 1].kind == MaskKind::band &&
            out[n - 2].kind == MaskKind::band) {
            out[n - 2].a = std::max(out[n - 2].a, out[n - 1].a);
            out[n - 2].b = std::min(out[n - 2].b, out[n - 1].b);
            out.pop_back();
        } else {
            out.push_back(op);
        }
    }
    return out;
}

const int64_t* integers(const Array& a) {
    return static_cast<const int64_t*>(a.data);
}
const uint8_t* booleans(const Array& a) {
    return static_cast<const uint8_t*>(a.data);
}

// Bytes of booleans as NumPy writes them are 0 or 1; any other that is not 0 is true as well. It
// has its top bit set, or sets it when 127 is added to the rest.
constexpr uint64_t kOnes = 0x0101010101010101u;

uint64_t zero_or_one(uint64_t x) {
    constexpr uint64_t rest = 127 * kOnes;
    return (x | ((x & rest) + rest)) >> 7 & kOnes;
}

// Eight booleans to eight bits: the multiplication moves bit 8i to bit 56 + i.
uint64_t pack8(const uint8_t* p) {
    uint64_t x;
    __builtin_memcpy(&x, p, 8);
    return (zero_or_one(x) * 0x0102040810204080u) >> 56;
}

// One step of transposing bytes, of eight words: swaps the upper bytes of words i with the lower
// ones of words i + Half.
template <int Half, int Words>
void swap_bytes(uint64_t (&x)[8][Words]) {
    constexpr uint64_t low = ~uint64_t{0} / ((uint64_t{1} << 8 * Half) + 1);  // every other Half
    for (int first = 0; first < 8; first += 2 * Half) {
        for (int i = first; i < first + Half; ++i) {
            for (int c = 0; c < Words; ++c) {
                const uint64_t a = x[i][c], b = x[i + Half][c];
                x[i][c] = (a & low) | (b & low) << 8 * Half;
                x[i + Half][c] = (a >> 8 * Half & low) | (b & ~low);
            }
        }
    }
}

// Rows of 8 * Words booleans to a word for each of their columns. Eight rows at a time are laid
// over each other, each one bit further to the left, so that a byte then is eight rows of a column;
// what is left is to bring the bytes of a column together. Words stand side by side in every step,
// which the compiler turns into vectors: about 0.4 operations a boolean, where D = 64 spends 256 on
// its products.
template <int Words>
void pack_columns(const uint8_t* data, int64_t row, int64_t rows, uint64_t* bits) {
    uint64_t packed[8][Words] = {}, any[Words] = {};
    const auto lay_over = [&](auto truth) {
        for (int64_t r = 0; r < rows; r += 8) {
            uint64_t eight[Words] = {};
            for (int64_t i = std::min<int64_t>(8, rows - r); i-- > 0;) {
                const uint8_t* p = data + (r + i) * row;
                for (int c = 0; c < Words; ++c) {
                    uint64_t x;
                    __builtin_memcpy(&x, p + 8 * c, 8);
                    any[c] |= x;
                    eight[c] = eight[c] << 1 | truth(x);
                }
            }
            __builtin_memcpy(packed[r / 8], eight, sizeof eight);
        }
    };
    lay_over([](uint64_t x) { return x; });
    uint64_t beyond = 0;
    for (int c = 0; c < Words; ++c) beyond |= any[c];
    if (beyond & ~kOnes) lay_over(zero_or_one);
    swap_bytes<4>(packed);
    swap_bytes<2>(packed);
    swap_bytes<1>(packed);
    for (int c = 0; c < Words; ++c) {
        for (int i = 0; i < 8; ++i) bits[8 * c + i] = packed[i][c];
    }
}

// 64 booleans to the bits of a word. Words laid over each other as above are the transpose, as a
// square of eight by eight bits, of what is wanted.
uint64_t pack64(const uint8_t* p) {
    uint64_t x = 0, beyond = 0;
    for (int k = 8; k-- > 0;) {
        uint64_t word;
        __builtin_memcpy(&word, p + 8 * k, 8);
        beyond |= word;
        x = x << 1 | word;
    }
    if (beyond & ~kOnes) {
        x = 0;
        for (int k = 0; k < 8; ++k) x |= pack8(p + 8 * k) << 8 * k;
        return x;
    }
    const auto swap = [&](int by, uint64_t low) {
        const uint64_t y = (x ^ x >> by) & low;
        x ^= y ^ y << by;
    };
    swap(7, 0x00aa00aa00aa00aau);
    swap(14, 0x0000cccc0000ccccu);
    swap(28, 0x00000000f0f0f0f0u);
    return x;
}

// The same for booleans at any distance, a key at a time.
void gather_bits(const uint8_t* data, int64_t row, int64_t col, int64_t rows, int64_t count,
                 uint64_t* bits) {
    for (int64_t i = 0; i < count; ++i) {
        const uint8_t* p = data + i * col;
        uint64_t word = 0;
        if (row == 1 && rows == 64) {
            word = pack64(p);
        } else {
            for (int64_t r = 0; r < rows; ++r) word |= uint64_t{p[r * row] != 0} << r;
        }
        bits[i] = word;
    }
}

// Keys: a block of the drivers, who may ask for it in halves.
constexpr int64_t kAhead = 128;

// Bytes that the next block will read come closer while the kernel is at work on this one: they lie
// in as many places as there are rows (or keys, where the rows stand together), which the processor
// does not foresee.
void prefetch(const uint8_t* data, int64_t step, int64_t times, int64_t bytes) {
    for (int64_t i = 0; i < times; ++i) {
        for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(data + i * step + at, 0, 2);
    }
}

// Mask bits of `count` keys of the `left` there are still. What is repeated along rows or keys is
// read once.
void array_bits(const uint8_t* data, int64_t row, int64_t col, int64_t rows, int64_t count,
                int64_t left, uint64_t* bits) {
    const int64_t next = std::min(count, left - kAhead);
    if (row == 0) {
        for (int64_t i = 0; i < count; ++i) bits[i] = data[i * col] ? rows_mask(rows) : 0;
    } else if (col == 0) {
        gather_bits(data, row, 0, rows, 1, bits);
        std::fill_n(bits + 1, count - 1, bits[0]);
    } else if (col != 1) {
        gather_bits(data, row, col, rows, count, bits);
        if (row == 1) prefetch(data + kAhead * col, col, next, rows);
    } else {
        prefetch(data + kAhead, row, rows, next);
        int64_t s = 0;
        for (; s + 64 <= count; s += 64) pack_columns<8>(data + s, row, rows, bits + s);
        for (; s + 16 <= count; s += 16) pack_columns<2>(data + s, row, rows, bits + s);
        for (; s + 8 <= count; s += 8) pack_columns<1>(data + s, row, rows, bits + s);
        gather_bits(data + s, row, 1, rows, count - s, bits + s);
    }
}

}  // namespace

// Swaps halves, then quarters, and so on (Hacker's Delight, 7-3).
void transpose_bits(uint64_t* x) {
    uint64_t low = 0x00000000ffffffffu;
    for (int half = 32; half; half >>= 1, low ^= low << half) {
        for (int i = 0; i < 64; i = ((i | half) + 1) & ~half) {
            const uint64_t swap = ((x[i] >> half) ^ x[i | half]) & low;
            x[i] ^= swap << half;
            x[i | half] ^= swap;
        }
    }
}

Mask::Mask(const std::vector<MaskOp>& program, int64_t lead_rank, int64_t S)
    : program_(with_bands_joined(program)), lead_rank_(lead_rank), S_(S) {
    stack_.resize(program_.size() + 1);
    documents_.resize(program_.size());
    tile_.assign(program_.size(), std::vector<uint64_t>(kBlock));
}

int64_t Mask::lead_offset(const Array& a, const Place& at) const {
    int64_t offset = 0;
    for (int64_t i = 0; i < lead_rank_; ++i) offset += at.lead[i] * a.lead[i];
    return offset;
}

const std::vector<Mask::Document>& Mask::documents_of(const MaskOp& op, const int64_t* key) {
    auto& [of, documents] = documents_[&op - program_.data()];
    if (of == key) return documents;
    of = key;
    documents.clear();
    for (int64_t s = 0; s < S_; ++s) {
        const int64_t id = key[s * op.other.row];
        if (documents.empty() || documents.back().id != id) documents.push_back({s, id});
        documents.back().end = s + 1;
    }
    return documents;
}

void Mask::primitive_runs(const MaskOp& op, const Place& at, Runs& runs) {
    const int64_t first = at.t0, last = at.t0 + at.rows - 1;
    switch (op.kind) {
        case MaskKind::band:
            return band_runs(clamp(first + op.a, S_), clamp(last + op.a, S_),
                             clamp(first + op.b, S_), clamp(last + op.b, S_), S_, runs);
        case MaskKind::first_keys:
            extend(runs, op.a, Seen::all, S_);
            break;
        case MaskKind::prefix:
            if (first + op.b < op.a) {
                extend(runs, op.a, last + op.b < op.a ? Seen::all : Seen::some, S_);
            }
            break;
        case MaskKind::lengths:
            extend(runs, integers(op.array)[lead_offset(op.array, at)], Seen::all, S_);
            break;
        case MaskKind::documents: {
            const int64_t* query = integers(op.array) + lead_offset(op.array, at);
            const int64_t* key = integers(op.other) + lead_offset(op.other, at);
            int64_t low = query[first * op.array.row], high = low;
            for (int64_t t = first + 1; t <= last; ++t) {
                low = std::min(low, query[t * op.array.row]);
                high = std::max(high, query[t * op.array.row]);
            }
            for (const Document& d : documents_of(op, key)) {
                const bool within = low <= d.id && d.id <= high;
                extend(runs, d.end,
                       !within       ? Seen::none
                       : low == high ? Seen::all
                                     : Seen::some,
                       S_);
            }
            return;
        }
        case MaskKind::pattern:
            for (int64_t s = 0; s < S_; s += op.a) {
                bool all = true, any = false;
                for (int64_t t = first / op.a; t <= last / op.a; ++t) {
                    const bool seen =
                        booleans(op.array)[t * op.array.row + s / op.a * op.array.col];
                    all &= seen;
                    any |= seen;
                }
                extend(runs, s + op.a, all ? Seen::all : any ? Seen::some : Seen::none, S_);
            }
            return;
        case MaskKind::dilated:
            return extend(runs, S_, op.a == 1 ? Seen::all : Seen::some, S_);
        default:
            return extend(runs, S_, Seen::some, S_);
    }
    extend(runs, S_, Seen::none, S_);
}

const Runs& Mask::runs(const Place& at) {
    size_t top = 0;  // one above the last operand; stack_[top] is free
    for (const MaskOp& op : program_) {
        switch (op.kind) {
            case MaskKind::both:
            case MaskKind::either:
                --top;
                join(stack_[top - 1], stack_[top], S_, stack_.back(),
                     op.kind == MaskKind::both ? both : either);
                stack_[top - 1].swap(stack_.back());
                break;
            case MaskKind::negation:
                for (Run& run : stack_[top - 1]) run.seen = negation(run.seen);
                break;
            default:
                stack_[top].clear();
                primitive_runs(op, at, stack_[top++]);
        }
    }
    return stack_[0];
}

void Mask::primitive_bits(const MaskOp& op, const Place& at, int64_t s0, int64_t count,
                          uint64_t* bits) const {
    const uint64_t rows = rows_mask(at.rows);
    const bool arrays = op.kind == MaskKind::array || op.kind == MaskKind::words;
    for (int64_t i = 0; i < count && !arrays; ++i) {
        const int64_t s = s0 + i;
        switch (op.kind) {
            case MaskKind::band:  // s - b <= t <= s - a
                bits[i] = bits_from(s - op.b - at.t0) & ~bits_from(s - op.a - at.t0 + 1);
                break;
            case MaskKind::first_keys:
                bits[i] = s < op.a ? rows : 0;
                break;
            case MaskKind::prefix:
                bits[i] = s < op.a ? ~bits_from(op.a - op.b - at.t0) : 0;
                break;
            case MaskKind::lengths:
                bits[i] = s < integers(op.array)[lead_offset(op.array, at)] ? rows : 0;
                break;
            case MaskKind::documents: {
                const int64_t* query =
                    integers(op.array) + lead_offset(op.array, at) + at.t0 * op.array.row;
                const int64_t* key = integers(op.other) + lead_offset(op.other, at);
                const int64_t id = key[s * op.other.row];
                if (i > 0 && id == key[(s - 1) * op.other.row]) {
                    bits[i] = bits[i - 1];
                    break;
                }
                uint64_t word = 0;
                for (int64_t r = 0; r < at.rows; ++r) {
                    word |= uint64_t{query[r * op.array.row] == id} << r;
                }
                bits[i] = word;
                break;
            }
            case MaskKind::dilated: {
                uint64_t word = 0;
                int64_t r = (s - op.b - at.t0) % op.a;  // the first row with t + b = s (mod a)
                for (r = r < 0 ? r + op.a : r; r < at.rows; r += op.a) word |= uint64_t{1} << r;
                bits[i] = word;
                break;
            }
            case MaskKind::pattern: {
                uint64_t word = 0;
                for (int64_t r = 0; r < at.rows; ++r) {
                    const int64_t cell =
                        (at.t0 + r) / op.a * op.array.row + s / op.a * op.array.col;
                    word |= uint64_t{booleans(op.array)[cell] != 0} << r;
                }
                bits[i] = word;
                break;
            }
            default:
                break;
        }
    }
    if (op.kind == MaskKind::words) {
        const Array& a = op.array;  // asked for panels only: at.t0 is a multiple of kPanel
        const int64_t start = lead_offset(a, at) + at.head * a.head + at.t0 / kPanel * a.row + s0;
        std::copy_n(static_cast<const uint64_t*>(a.data) + start, count, bits);
    }
    if (op.kind == MaskKind::array) {
        const Array& a = op.array;
        const int64_t start = lead_offset(a, at) + at.head * a.head + at.t0 * a.row + s0 * a.col;
        array_bits(booleans(a) + start, a.row, a.col, at.rows, count, S_ - s0, bits);
    }
}

void Mask::bits(const Place& at, int64_t s0, int64_t count, uint64_t* bits) {
    size_t top = 0;
    for (const MaskOp& op : program_) {
        switch (op.kind) {
            case MaskKind::both:
                --top;
                for (int64_t i = 0; i < count; ++i) tile_[top - 1][i] &= tile_[top][i];
                break;
            case MaskKind::either:
                --top;
                for (int64_t i = 0; i < count; ++i) tile_[top - 1][i] |= tile_[top][i];
                break;
            case MaskKind::negation:
                for (int64_t i = 0; i < count; ++i) tile_[top - 1][i] = ~tile_[top - 1][i];
                break;
            default:
                primitive_bits(op, at, s0, count, tile_[top++].data());
        }
    }
    std::copy_n(tile_[0].data(), count, bits);
}

}  // namespace clearhead
