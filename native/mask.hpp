// Masks as a small program: primitives joined by and, or, not, in postfix order. The driver asks it
// two questions about a panel of query rows: which stretches of keys are seen by all of its rows,
// by some or by none; and, for a stretch of the middle kind, which row sees which key.
// clearhead.masks writes the program; the meaning of each primitive is in its docstring there.
#pragma once
#include <cstdint>
#include <vector>

#include "problem.hpp"

namespace clearhead {

enum class Seen : uint8_t { none, some, all };

// Keys from the previous run's end up to `end`.
struct Run {
    int64_t end;
    Seen seen;
};

enum class MaskKind : int32_t {
    band,        // t + a <= s <= t + b
    first_keys,  // s < a
    prefix,      // t + b < a and s < a
    lengths,     // s < array[lead]
    documents,   // array[lead, t] == other[lead, s]
    dilated,     // (t + b - s) % a == 0
    pattern,     // array[t / a, s / a]
    array,       // array[lead, head, t, s]
    words,       // the same as bits: bit t % kPanel of array[lead, head, t / kPanel, s], uint64
    both,
    either,
    negation,
};

// Integer arrays are int64, boolean ones bytes; strides in elements.
struct MaskOp {
    MaskKind kind;
    int64_t a = 0, b = 0;
    Array array, other;
};

// In place: bit r of word i becomes bit i of word r.
void transpose_bits(uint64_t* words);

class Mask {
  public:
    Mask(const std::vector<MaskOp>& program, int64_t lead_rank, int64_t S);

    const std::vector<MaskOp>& program() const { return program_; }

    // The keys [0, S) as runs, for the rows of `at`.
    const std::vector<Run>& runs(const Place& at);

    // bits[i] has bit r set where row at.t0 + r may attend to key s0 + i; i < count <= kBlock.
    void bits(const Place& at, int64_t s0, int64_t count, uint64_t* bits);

  private:
    // Keys from the previous document's end up to `end`.
    struct Document {
        int64_t end, id;
    };
    struct Documents {
        const int64_t* of = nullptr;  // ids of keys
        std::vector<Document> each;
    };

    void primitive_runs(const MaskOp& op, const Place& at, std::vector<Run>& runs);
    const std::vector<Document>& documents_of(const MaskOp& op, const int64_t* key);
    void primitive_bits(const MaskOp& op, const Place& at, int64_t s0, int64_t count,
                        uint64_t* bits) const;
    int64_t lead_offset(const Array& a, const Place& at) const;

    std::vector<MaskOp> program_;
    int64_t lead_rank_, S_;
    std::vector<std::vector<Run>> stack_;      // scratch of runs()
    std::vector<std::vector<uint64_t>> tile_;  // scratch of bits()
    std::vector<Documents> documents_;         // of an op of that kind, as runs() met them last
};

}  // namespace clearhead
