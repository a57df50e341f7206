// The only file that knows Python. clearhead.ops has checked every argument; what is refused here
// would be a bug there.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "attention.hpp"
#include "backward.hpp"
#include "dispatch.hpp"
#include "dots.hpp"
#include "mask.hpp"
#include "memory.hpp"
#include "observe.hpp"
#include "threads.hpp"

namespace nb = nanobind;

namespace clearhead {
namespace {

using Input = nb::ndarray<nb::ro, nb::device::cpu>;
using Output = nb::ndarray<nb::device::cpu>;

// NumPy has no bfloat16 of its own: it arrives as uint16 bits.
template <class Any>
DType dtype_of(const Any& a) {
    const auto dtype = a.dtype();
    if (dtype == nb::dtype<double>()) return DType::f64;
    if (dtype == nb::dtype<float>()) return DType::f32;
    if (dtype == nb::dtype<uint16_t>()) return DType::bf16;
    if (dtype.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float) && dtype.bits == 16) {
        return DType::f16;
    }
    throw std::invalid_argument("an array of an unsupported dtype reached the core");
}

// The array's last dimensions are (head, row, col), as many of them as `inner` says; what stands
// before them is aligned from the right with `lead`, a size of 1 being repeated.
template <class Any>
Array view(const Any& a, const std::vector<int64_t>& lead, const std::string& inner) {
    Array out;
    out.data = a.data();
    const auto stride = [&](size_t i) { return a.shape(i) == 1 ? 0 : a.stride(i); };
    size_t rank = a.ndim();
    for (size_t i = inner.size(); i-- > 0 && rank > 0;) {
        --rank;
        (inner[i] == 'h' ? out.head : inner[i] == 'r' ? out.row : out.col) = stride(rank);
    }
    for (size_t i = lead.size(); i-- > 0 && rank > 0;) out.lead[i] = stride(--rank);
    return out;
}

template <class Any>
Array floats(const Any& a, const std::vector<int64_t>& lead, const std::string& inner) {
    Array out = view(a, lead, inner);
    out.dtype = dtype_of(a);
    return out;
}

// (kind, a, b, array, other): see MaskKind.
using MaskTuple =
    std::tuple<std::string, int64_t, int64_t, std::optional<Input>, std::optional<Input>>;

MaskOp mask_op(const MaskTuple& t, const std::vector<int64_t>& lead) {
    struct Kind {
        const char* name;
        MaskKind kind;
        const char* inner;  // the array's dimensions behind the leading ones
    };
    static constexpr Kind kKinds[] = {
        {"band", MaskKind::band, ""},
        {"first_keys", MaskKind::first_keys, ""},
        {"prefix", MaskKind::prefix, ""},
        {"lengths", MaskKind::lengths, ""},
        {"documents", MaskKind::documents, "r"},
        {"dilated", MaskKind::dilated, ""},
        {"pattern", MaskKind::pattern, "rc"},
        {"array", MaskKind::array, "hrc"},
        {"and", MaskKind::both, ""},
        {"or", MaskKind::either, ""},
        {"not", MaskKind::negation, ""},
    };
    const auto& [name, a, b, array, other] = t;
    for (const Kind& kind : kKinds) {
        if (kind.name != name) continue;
        MaskOp op = {kind.kind, a, b, {}, {}};
        if (array) op.array = view(*array, lead, kind.inner);
        if (other) op.other = view(*other, lead, kind.inner);
        return op;
    }
    throw std::invalid_argument("the mask operation '" + name + "' is unknown to the core");
}

// (kind, array, reach): see BiasKind.
using BiasTuple = std::tuple<std::string, Input, int64_t>;

Bias bias_of(const BiasTuple& t, const std::vector<int64_t>& lead) {
    const auto& [name, array, reach] = t;
    if (name == "array") return {BiasKind::array, floats(array, lead, "hrc")};
    if (name == "alibi") return {BiasKind::alibi, floats(array, {}, "h")};
    if (name == "distance") {
        const int64_t entries = static_cast<int64_t>(array.shape(array.ndim() - 1));
        return {BiasKind::distance, floats(array, {}, "hc"), reach, entries - 1};
    }
    throw std::invalid_argument("the bias '" + name + "' is unknown to the core");
}

template <class Out>
Problem problem_of(const Input& q, const Input& k, const Input& v, const Out& out,
                   const std::optional<BiasTuple>& bias, const std::optional<Input>& sink,
                   double scale, double softcap) {
    Problem p;
    const size_t rank = out.ndim();
    const std::string inner = rank > 2 ? "hrc" : "rc";
    for (size_t i = 0; i + 3 < rank; ++i) p.lead.push_back(static_cast<int64_t>(out.shape(i)));
    const auto size = [](const auto& a, size_t back) {
        return back <= a.ndim() ? static_cast<int64_t>(a.shape(a.ndim() - back)) : 1;
    };
    p.H = size(q, 3);
    p.G = size(k, 3);
    p.T = size(q, 2);
    p.S = size(k, 2);
    p.D = size(q, 1);
    p.E = size(v, 1);
    p.q = floats(q, p.lead, inner);
    p.k = floats(k, p.lead, inner);
    p.v = floats(v, p.lead, inner);
    p.out = floats(out, p.lead, inner);
    if (bias) p.bias = bias_of(*bias, p.lead);
    if (sink) p.sink = floats(*sink, p.lead, "h");
    p.scale = scale;
    p.softcap = softcap;
    return p;
}

void set_mask(Problem& p, const std::optional<std::vector<MaskTuple>>& steps,
              std::optional<Mask>& program) {
    if (!steps) return;
    std::vector<MaskOp> ops;
    for (const MaskTuple& step : *steps) ops.push_back(mask_op(step, p.lead));
    p.mask = &program.emplace(std::move(ops), static_cast<int64_t>(p.lead.size()), p.S);
}

// The runs of keys for rows [t0, t0 + rows), as (end, 0 none, 1 some, 2 all).
std::vector<std::tuple<int64_t, int>> mask_runs_py(const std::vector<MaskTuple>& steps, int64_t S,
                                                   int64_t t0, int64_t rows) {
    std::vector<MaskOp> ops;
    for (const MaskTuple& step : steps) ops.push_back(mask_op(step, {}));
    Mask mask(std::move(ops), 0, S);
    Place at = {};
    at.t0 = t0;
    at.rows = rows;
    std::vector<std::tuple<int64_t, int>> runs;
    for (const Run& run : mask.runs(at)) runs.emplace_back(run.end, static_cast<int>(run.seen));
    return runs;
}

// Asks Python, on the thread that called us, whether Ctrl-C was pressed.
bool interrupted() {
    const nb::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
}

// Runs without the GIL; an interruption has left its exception with Python.
template <class F>
void run(F f) {
    const Kernels& chosen = kernels();
    bool finished;
    {
        const nb::gil_scoped_release release;
        finished = f(chosen);
    }
    if (!finished) throw nb::python_error();
}

// A probe of the machine: pieces small enough to share out evenly, large enough to cost no start.
int64_t read_all_py(const Input& data) {
    constexpr int64_t kPiece = int64_t{1} << 20;
    const auto* from = static_cast<const char*>(data.data());
    const int64_t bytes = static_cast<int64_t>(data.nbytes()), n = (bytes + kPiece - 1) / kPiece;
    std::atomic<int64_t> done{0};
    run([&](const Kernels& kernels) {
        const auto piece = [&](int64_t i, int) {
            done += kernels.read_all[0](from + i * kPiece, std::min(kPiece, bytes - i * kPiece));
        };
        return parallel_for(n, workers_for(n), piece, interrupted);
    });
    return done;
}

// Memory for a result, which goes back to the shelf with the last array that sees it.
nb::ndarray<nb::numpy, uint8_t> result_memory_py(int64_t bytes) {
    auto memory = std::make_unique<Memory>(borrow(bytes, Use::result));
    void* const data = memory->get();
    const nb::capsule owner(memory.release(),
                            [](void* it) noexcept { delete static_cast<Memory*>(it); });
    return {data, {static_cast<size_t>(bytes)}, owner};
}

void forward_py(const Input& q, const Input& k, const Input& v, const Output& out,
                const std::optional<Output>& lse, const std::optional<std::vector<MaskTuple>>& mask,
                const std::optional<BiasTuple>& bias, const std::optional<Input>& sink,
                double scale, double softcap) {
    Problem p = problem_of(q, k, v, out, bias, sink, scale, softcap);
    if (lse) p.lse = floats(*lse, p.lead, out.ndim() > 2 ? "hr" : "r");
    std::optional<Mask> program;
    set_mask(p, mask, program);
    run([&](const Kernels& kernels) { return forward(p, kernels, interrupted); });
}

// dq, dk, dv: [lead..., heads, rows, cols], or of rank 2 as the inputs.
void backward_py(const Input& dout, const Input& q, const Input& k, const Input& v,
                 const Input& out, const Input& lse, const Output& dq, const Output& dk,
                 const Output& dv, const std::optional<Output>& dbias,
                 const std::optional<Output>& dsink,
                 const std::optional<std::vector<MaskTuple>>& mask,
                 const std::optional<BiasTuple>& bias, const std::optional<Input>& sink,
                 double scale, double softcap) {
    Problem p = problem_of(q, k, v, out, bias, sink, scale, softcap);
    const std::string inner = out.ndim() > 2 ? "hrc" : "rc";
    p.lse = floats(lse, p.lead, out.ndim() > 2 ? "hr" : "r");
    std::optional<Mask> program;
    set_mask(p, mask, program);
    Gradients gradients = {
        floats(dq, p.lead, inner), floats(dk, p.lead, inner), floats(dv, p.lead, inner), {}, {}};
    if (dbias) gradients.bias = floats(*dbias, p.lead, "hrc");
    if (dsink) gradients.sink = floats(*dsink, p.lead, "h");
    const Array dout_view = floats(dout, p.lead, inner);
    run([&](const Kernels& kernels) {
        return backward(p, dout_view, gradients, kernels, interrupted);
    });
}

// (first row, row end, first key, key end) of what is looked at; none: all.
using PartTuple = std::tuple<int64_t, int64_t, int64_t, int64_t>;

Part part_of(const Problem& p, const std::optional<PartTuple>& part) {
    if (!part) return {{0, p.T}, {0, p.S}};
    const auto& [t0, t1, s0, s1] = *part;
    if (t0 < 0 || t1 > p.T || s0 < 0 || s1 > p.S) {
        throw std::invalid_argument("part: lies outside of the matrix");
    }
    return {{t0, t1}, {s0, s1}};
}

void row_lse_py(const Input& q, const Input& k, const Output& lse,
                const std::optional<std::vector<MaskTuple>>& mask,
                const std::optional<BiasTuple>& bias, const std::optional<Input>& sink,
                double scale, double softcap, const std::optional<PartTuple>& part) {
    Problem p = problem_of(q, k, k, q, bias, sink, scale, softcap);
    std::optional<Mask> program;
    set_mask(p, mask, program);
    const Part seen = part_of(p, part);
    run([&](const Kernels& kernels) {
        return row_lse(p, static_cast<double*>(lse.data()), seen, kernels, interrupted);
    });
}

// Calls progress(done, total) about every 100 ms, and asks for Ctrl-C twice as often. An exception
// of either stays with Python and stops the pass.
class Watcher {
  public:
    explicit Watcher(nb::object progress) : progress_(std::move(progress)) {}

    bool operator()(int64_t done, int64_t total) {
        const nb::gil_scoped_acquire gil;
        if (PyErr_CheckSignals() != 0) return true;
        const auto now = std::chrono::steady_clock::now();
        if (progress_.is_none() || now < next_) return false;
        next_ = now + std::chrono::milliseconds(100);
        try {
            progress_(done, total);
        } catch (nb::python_error& error) {
            error.restore();
            return true;
        }
        return false;
    }

  private:
    nb::object progress_;
    std::chrono::steady_clock::time_point next_;
};

// (rows, cols, sum, largest, means): see GridRequest.
using GridTuple = std::tuple<Input, Input, Output, std::optional<Output>, bool>;

// q has the leading dimensions of the result; results are C-contiguous.
void observe_py(const Input& q, const Input& k, const Input& lse,
                const std::optional<std::vector<MaskTuple>>& mask,
                const std::optional<BiasTuple>& bias, double scale, double softcap,
                const Input& target, const std::vector<GridTuple>& grids,
                const std::optional<Input>& weights, const std::optional<Output>& column_sum,
                const std::optional<Output>& entropy, const std::optional<Output>& largest,
                const std::optional<std::tuple<Output, Output>>& top,
                const std::optional<Output>& distance, nb::object progress,
                const std::optional<PartTuple>& part) {
    Problem p = problem_of(q, k, k, q, bias, {}, scale, softcap);
    p.lse = floats(lse, p.lead, q.ndim() > 2 ? "hr" : "r");
    std::optional<Mask> program;
    set_mask(p, mask, program);
    const auto doubles = [](const std::optional<Output>& a) {
        return a ? static_cast<double*>(a->data()) : nullptr;
    };
    ObservationRequest wanted;
    wanted.target = static_cast<const int64_t*>(target.data());
    for (const auto& [rows, cols, sum, most, means] : grids) {
        wanted.grids.push_back(
            {static_cast<const int64_t*>(rows.data()), static_cast<const int64_t*>(cols.data()),
             static_cast<int64_t>(sum.shape(1)), static_cast<int64_t>(sum.shape(2)),
             static_cast<double*>(sum.data()), most ? most->data() : nullptr, means});
    }
    if (wanted.grids.size() > kMaxGrids) throw std::invalid_argument("too many grids for the core");
    if (weights) wanted.weights = floats(*weights, p.lead, q.ndim() > 2 ? "hrc" : "rc");
    if (column_sum) wanted.columns = static_cast<int64_t>(column_sum->shape(1));
    wanted.column_sum = doubles(column_sum);
    wanted.entropy = doubles(entropy);
    wanted.largest = largest ? largest->data() : nullptr;
    if (top) {
        const auto& [values, keys] = *top;
        wanted.top = static_cast<int64_t>(values.shape(values.ndim() - 1));
        wanted.top_weight = values.data();
        wanted.top_key = static_cast<int64_t*>(keys.data());
    }
    if (distance) wanted.distances = static_cast<int64_t>(distance->shape(1));
    wanted.distance = doubles(distance);
    wanted.part = part_of(p, part);
    Watcher watcher(std::move(progress));
    run([&](const Kernels& kernels) { return observe(p, wanted, kernels, std::ref(watcher)); });
}

}  // namespace
}  // namespace clearhead

NB_MODULE(_native, m) {
    using namespace clearhead;
    m.doc() = "The native core of clearhead; see native/kernels.hpp and native/attention.hpp.";
    m.def("forward", forward_py, nb::arg("q").noconvert(), nb::arg("k").noconvert(),
          nb::arg("v").noconvert(), nb::arg("out").noconvert(), nb::arg("lse").none(),
          nb::arg("mask").none(), nb::arg("bias").none(), nb::arg("sink").none(), nb::arg("scale"),
          nb::arg("softcap"),
          nb::sig("def forward(q: Array, k: Array, v: Array, out: Array, lse: Array | None, "
                  "mask: Sequence[MaskStep] | None, bias: BiasRule | None, sink: Array | None, "
                  "scale: float, softcap: float) -> None"),
          "Writes out, and lse where it is wanted. All arguments have been checked.");
    m.def("backward", backward_py, nb::arg("dout").noconvert(), nb::arg("q").noconvert(),
          nb::arg("k").noconvert(), nb::arg("v").noconvert(), nb::arg("out").noconvert(),
          nb::arg("lse").noconvert(), nb::arg("dq").noconvert(), nb::arg("dk").noconvert(),
          nb::arg("dv").noconvert(), nb::arg("dbias").none(), nb::arg("dsink").none(),
          nb::arg("mask").none(), nb::arg("bias").none(), nb::arg("sink").none(), nb::arg("scale"),
          nb::arg("softcap"),
          nb::sig("def backward(dout: Array, q: Array, k: Array, v: Array, out: Array, lse: Array, "
                  "dq: Array, dk: Array, dv: Array, dbias: Array | None, dsink: Array | None, "
                  "mask: Sequence[MaskStep] | None, bias: BiasRule | None, sink: Array | None, "
                  "scale: float, softcap: float) -> None"),
          "Writes dq, dk, dv; adds to dbias and writes dsink where they are wanted.");
    m.def("row_lse", row_lse_py, nb::arg("q").noconvert(), nb::arg("k").noconvert(),
          nb::arg("lse").noconvert(), nb::arg("mask").none(), nb::arg("bias").none(),
          nb::arg("sink").none(), nb::arg("scale"), nb::arg("softcap"), nb::arg("part").none(),
          nb::sig("def row_lse(q: Array, k: Array, lse: Array, mask: Sequence[MaskStep] | None, "
                  "bias: BiasRule | None, sink: Array | None, scale: float, softcap: float, "
                  "part: Part | None) -> None"),
          "Writes lse, float64 whatever the dtype of q. q has the leading axes of lse.");
    m.def("observe", observe_py, nb::arg("q").noconvert(), nb::arg("k").noconvert(),
          nb::arg("lse").noconvert(), nb::arg("mask").none(), nb::arg("bias").none(),
          nb::arg("scale"), nb::arg("softcap"), nb::arg("target").noconvert(), nb::arg("grids"),
          nb::arg("weights").none(), nb::arg("column_sum").none(), nb::arg("entropy").none(),
          nb::arg("largest").none(), nb::arg("top").none(), nb::arg("distance").none(),
          nb::arg("progress").none(), nb::arg("part").none(),
          nb::sig("def observe(q: Array, k: Array, lse: Array, mask: Sequence[MaskStep] | None, "
                  "bias: BiasRule | None, scale: float, softcap: float, target: Array, "
                  "grids: Sequence[tuple[Array, Array, Array, Array | None, bool]], "
                  "weights: Array | None, column_sum: Array | None, entropy: Array | None, "
                  "largest: Array | None, top: tuple[Array, Array] | None, "
                  "distance: Array | None, progress: Callable[[int, int], object] | None, "
                  "part: Part | None) -> None"),
          "Adds to the results that are wanted; native/observe.hpp says what they are.");
    m.def("mask_runs", mask_runs_py, nb::arg("mask"), nb::arg("S"), nb::arg("t0"), nb::arg("rows"),
          nb::sig("def mask_runs(mask: Sequence[MaskStep], S: int, t0: int, rows: int) -> "
                  "list[tuple[int, int]]"));
    m.def(
        "multiply_adds",
        [](int64_t n) {
            const nb::gil_scoped_release release;
            return kernels().multiply_adds[0](n);
        },
        nb::arg("n"));
    m.def(
        "weights",
        [](int64_t n) {
            const nb::gil_scoped_release release;
            return kernels().weights[0](n);
        },
        nb::arg("n"));
    m.def(
        "dot_products",
        [](int64_t n) {
            const nb::gil_scoped_release release;
            const Dots* dots = kernels().dots[static_cast<int>(DType::bf16)];
            return dots ? dots->multiply_adds(n) : 0;
        },
        nb::arg("n"), "multiply_adds of the instructions for bfloat16; 0 where there are none.");
    m.def("read_all", read_all_py, nb::arg("data").noconvert(),
          nb::sig("def read_all(data: Array) -> int"),
          "Reads a contiguous float32 array once, by all threads; returns the bytes.");
    m.def("result_memory", result_memory_py, nb::arg("bytes"),
          nb::sig("def result_memory(bytes: int) -> Array"),
          "Bytes with whatever stands in them, warm if a result that is gone left some.");
    m.def(
        "kept_bytes", [] { return kept_bytes(Use::result); },
        "Bytes of results that are gone, kept for those to come.");
    m.def("isa", [] { return std::string(kernels().isa); });
    m.def("available_isas", available_isas);
    m.def("choose_isa", choose_isa, nb::arg("name"));
    m.def("num_threads", thread_count);
    m.def("set_num_threads", set_thread_count, nb::arg("count"));
}
