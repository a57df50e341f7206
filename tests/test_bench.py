"""The benchmark: names of cases, limits, checks, the table and its file, the command."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from clearhead import cli
from clearhead.bench import cases, checks, command, limits, peers, report, run, table, turns, worker

TINY = "causal/2x6:3x37x16:8/float32"
NAMES = [
    "full/1x12x2048x64/float32",
    "causal/1x32:8x8:8192x128/bfloat16",
    "window1024/1x1x32768x64/float32",
    "packed8/2x3x100x64:32/float16/grad",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_says_all_of_a_case(name):
    assert cases.parse(name).name == name


@pytest.mark.parametrize(
    "mask", ["full", "causal", "window5", "window50", "packed3", "array", "bias"]
)
@pytest.mark.parametrize("shape", ["2x6:3x37x16:8", "1x4x11x8", "1x2x5:23x8"])
def test_a_case_states_its_mask_twice_and_alike(mask, shape):
    """Once for clearhead and once, row by row, for the reference and for the peers."""
    if mask.startswith("packed") and ":23" in shape:
        with pytest.raises(ValueError, match="T = S"):
            cases.parse(f"{mask}/{shape}/float32")
        return
    case = cases.parse(f"{mask}/{shape}/float32")
    inputs = case.inputs()
    own = case.own_mask(inputs)
    seen = case.seen(np.arange(case.T))
    if own is None:
        assert seen.all()
    else:
        np.testing.assert_array_equal(own.to_array(case.T, case.S), seen)
    assert case.pairs == np.count_nonzero(seen)


def test_operations_are_two_a_multiply_add_on_what_the_mask_allows():
    assert cases.parse("causal/2x6:3x37x16:8/float32").operations == 12 * 37 * 38 / 2 * 2 * (16 + 8)
    forward, both = (cases.parse(f"full/1x2x11x8/float32{g}").operations for g in ("", "/grad"))
    assert both == 3.5 * forward


# OpenVINO runs a program to ask about the processor, and JAX, if it was loaded before, minds forks.
@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.parametrize("name", ["causal/2x6:3x37x16:8/float32/grad", *NAMES[3:], TINY])
@pytest.mark.parametrize("library", list(worker.LIBRARIES))
def test_every_installed_library_is_right_or_says_why_not(name, library):
    """In this process: what is checked is that peers compute the same case."""
    if library not in turns.installed():
        pytest.skip(f"{library} is not installed")
    case = cases.parse(name)
    contenders = worker.LIBRARIES[library]
    found = worker.Stage(contenders).prepare(case, 1, list(contenders))
    for who, answer in found.items():
        assert answer.get("of_budget", 0) <= 1, who
        assert "wrong" not in answer.get("skip", ""), who
        assert answer.get("skip", "Error").count("Error") <= 1
    if library == "clearhead":
        assert "of_budget" in found["clearhead"]


def wrong(how):
    """A peer that is clearhead's, and then not quite."""

    def peer(case, inputs, threads):
        call, arrays = peers.clearhead(case, inputs, threads)
        return peers.Prepared(call, lambda result: how(*arrays(result)))

    return peer


@pytest.mark.parametrize(
    "how",
    [
        lambda out: (out * (1 + 3e-5),),
        lambda out: (np.roll(out, 1, axis=1),),
        lambda out: (np.where(np.arange(out.shape[2])[:, None] == 36, np.nan, out),),
        lambda out: (out[:, :, :, ::-1],),
        lambda out: (out[:, :, :5],),
        lambda out: (out, out),
        lambda out: 1 / 0,
    ],
    ids=["off by a little", "heads", "NaN", "columns", "shape", "too many", "raises"],
)
def test_a_wrong_result_is_not_timed(how):
    case = cases.parse(TINY)
    stage = worker.Stage({"right": peers.clearhead, "wrong": wrong(how)})
    found = stage.prepare(case, 1, ["right", "wrong"])
    assert found["right"]["of_budget"] <= 1
    assert "skip" in found["wrong"]
    assert set(stage.ready) == {"right"}


@pytest.mark.parametrize("which", range(3))
def test_a_wrong_gradient_is_not_timed(which):
    def how(*grads):
        return tuple(g * (1 + 1e-4 * (i == which)) for i, g in enumerate(grads))

    case = cases.parse(TINY + "/grad")
    found = worker.Stage({"wrong": wrong(how)}).prepare(case, 1, ["wrong"])
    assert found["wrong"]["skip"].startswith("wrong: its error is")


def test_a_mask_that_is_off_by_one_is_found():
    case = cases.parse("window7/1x2x40x8/float32")
    other = cases.parse("window8/1x2x40x8/float32")
    inputs = case.inputs()
    result = peers.clearhead(other, inputs, 1)
    assert checks.of_budget(case, inputs, result.arrays(result.call())) > 100


def test_limits_are_positive_and_a_case_is_held_to_the_one_that_binds(monkeypatch):
    monkeypatch.setattr(limits, "_SECONDS", 0.05)
    monkeypatch.setattr(limits, "_MEMORY_BYTES", 2**24)
    found = limits.measure([1, 2])
    from clearhead import available_isas, isa

    names = {(name, n) for name in available_isas() for n in (1, 2)}
    assert names == set(found.weights)
    assert {key for key in found.flops if key[0].split()[0] == key[0]} == names
    assert all(x > 1e7 for x in found.weights.values())
    assert all(x > 1e8 for x in found.flops.values())
    assert all(x > 1e8 for x in found.bandwidth.values())
    best = isa()
    decode = cases.parse("full/1x4x1:4096x64/float32")
    least = found.least_seconds(decode, 1)
    assert least == decode.cache_bytes / found.bandwidth[2**23, 1]
    product = cases.parse("full/1x4x4096x64/float32")
    assert found.least_seconds(product, 1) == product.operations / found.flops[best, 1]


@pytest.fixture(scope="module")
def measured():
    """One real run: clearhead and NumPy, each in its process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "_SECONDS", 0.02)
        patch.setattr(limits, "_MEMORY_BYTES", 2**22)
        found = run.start([1], 1, lambda _: None)
        wanted = {"clearhead": ["clearhead"], "numpy": ["numpy"]}
        chosen = [cases.parse(TINY), cases.parse("full/1x2x8x8/float16")]
        run.measure(found, chosen, [1], wanted, 0.05, lambda _: None)
        run.memory(found, chosen[:1], 1, wanted, lambda _: None)
    return found


def test_a_run_times_whoever_can_and_says_why_the_others_cannot(measured):
    own, numpy = measured.find(TINY, 1), measured.find(TINY, 1, "numpy")
    assert own.median_s > 0 and numpy.median_s > 0 and len(own.seconds) >= 5
    assert own.quartiles_s[0] <= own.median_s <= own.quartiles_s[1]
    assert own.ratio is None and numpy.ratio > 0
    assert 0 < own.of_limit < 1
    assert own.of_budget <= 1 and numpy.of_budget <= 1
    assert own.peak_bytes < 64 << 20
    (skipped,) = (m for m in measured.measurements if m.skip)
    assert (skipped.who, skipped.skip) == ("numpy", "no matrix product for float16")


def test_the_file_says_what_the_run_said(measured):
    text = measured.to_json()
    whole = json.loads(text)
    assert set(whole) == {"format", "machine", "limits", "measurements"}
    assert {"cpu", "cpus", "isa", "versions", "date"} <= set(whole["machine"])
    assert whole["measurements"][0]["median_s"] == measured.measurements[0].median_s
    again = report.from_json(text)
    assert again.to_json() == text
    assert table.text(again) == table.text(measured)


def test_the_table_fits_and_marks_where_a_peer_wins(measured):
    shown = table.text(measured)
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "causal 2x6:3x37x16:8" in shown and "GFLOP/s" in shown
    again = report.from_json(measured.to_json())
    again.find(TINY, 1, "numpy").ratio = 0.5
    assert "<0.50" in table.text(again)
    assert "0.50  numpy: causal/2x6:3x37x16:8/float32" in table.losses(again)
    again.find(TINY, 1, "numpy").ratio = 1.5
    assert table.losses(again) == ""
    assert "| causal 2x6:3x37x16:8 |" in table.markdown(again)


def test_a_disturbed_run_says_so(measured):
    other = report.from_json(measured.to_json())
    assert measured.machine["others_cpus"] >= 0
    other.machine["others_cpus"] = 0.3
    assert "NOT QUIET: other programs used 0.30 CPUs" in table.text(other)
    assert table.about(report.merge([other, other])) == table.about(other)
    other.machine["others_cpus"] = 0.01
    assert "NOT QUIET" not in table.text(other)


def test_a_case_during_which_others_run_is_timed_again_and_named(measured, monkeypatch):
    spent = iter([0.0, 4.0, 4.0, 8.0, 8.0, 8.0])  # CPU seconds, before and after each attempt
    attempts = []
    monkeypatch.setattr(run, "_cpu_of_others", lambda crew: next(spent))
    monkeypatch.setattr(run.turns, "timed", lambda *_: attempts.append(0) or {"x": [len(attempts)]})
    assert run._timed_in_quiet({}, {}, 1.0) == (0.0, {"x": [3]})
    spent = iter([0.0, 4.0, 4.0, 6.0, 6.0, 9.0])  # never quiet: the second is the least disturbed
    ticks = iter([0.0, 1.0] * 3)
    monkeypatch.setattr(run.time, "perf_counter", lambda: next(ticks))
    attempts.clear()
    others, times = run._timed_in_quiet({}, {}, 1.0)
    assert times == {"x": [2]} and others == pytest.approx(1.95)

    other = report.from_json(measured.to_json())
    other.find(TINY, 1).others_cpus = 0.0
    assert TINY not in table.disturbed(other)
    other.find(TINY, 1).others_cpus = others
    assert f"1.95  {TINY}, 1 thread(s)" in table.disturbed(other)
    assert table.disturbed(other) in table.text(other)


def test_a_worker_says_how_much_cpu_it_has_had():
    crew = turns.Worker("numpy", 1)
    try:
        before = crew.cpu_s()
        crew.ask("prepare", case="full/1x4x700x64/float32", threads=1, who=["numpy"])
        assert crew.cpu_s() > before
    finally:
        crew.close()


def test_runs_are_put_together_and_the_higher_limit_counts(measured):
    other = report.from_json(measured.to_json())
    key = next(iter(other.limits.flops))
    other.limits.flops[key] *= 2
    both = report.merge([measured, other])
    assert both.limits.flops[key] == other.limits.flops[key]
    assert len(both.measurements) == 2 * len(measured.measurements)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "machine": {}}'])
def test_another_file_is_one_sentence(text):
    with pytest.raises(ValueError, match="show: is not a file that this benchmark wrote"):
        report.from_json(text)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--case", "nothing"], "case: is 'nothing', must match a listed name or be"),
        (["--case", "full/1x5:2x8x8/float32"], "H a multiple of G"),
        (["--case", "packed2/1x2x8:9x8/float32"], "so it must have T = S"),
        (["--threads", "0"], "threads: is 0, must be from 1 to"),
        (["--peers", "cupy"], "peers: is 'cupy', must be none or one of"),
        (["--seconds", "0"], "seconds: is 0.0, must be above 0"),
        (["--json", "no/such/folder/x.json"], "its folder is not there"),
    ],
)
def test_a_wrong_wish_is_one_sentence(arguments, sentence, capsys):
    assert cli.main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1


def test_the_command_lists_its_cases_and_every_one_can_be_parsed(capsys):
    assert cli.main(["bench", "--list"]) == 0
    assert [cases.parse(n).name for n in capsys.readouterr().out.split()] == command.SHORT


def test_the_command_prints_a_table_and_writes_the_numbers(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(limits, "_SECONDS", 0.02)
    monkeypatch.setattr(limits, "_MEMORY_BYTES", 2**22)
    file = tmp_path / "out.json"
    wish = ["--case", TINY, "--threads", "1", "--peers", "none", "--seconds", "0.01"]
    assert cli.main(["bench", *wish, "--json", str(file)]) == 0
    assert "causal 2x6:3x37x16:8" in capsys.readouterr().out
    assert report.from_json(file.read_text()).find(TINY, 1) is not None


def children_of(parent: int) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            ended = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has gone meanwhile
            continue
        if ended[1] == str(parent):
            found.append(stat.parent.name)
    return found


def test_interrupted_it_prints_what_is_there_and_leaves_no_process():
    """A long wish, Ctrl-C after its first case."""
    wish = ["--case", TINY, "--case", "full/1x1x16384x64/float32", "--seconds", "60"]
    command_line = [sys.executable, "-m", "clearhead", "bench", *wish, "--threads", "1"]
    with subprocess.Popen(
        [*command_line, "--peers", "none"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        for line in process.stderr:
            if line.startswith("2/2"):
                break
        late = time.monotonic() + 60
        while not (children := children_of(process.pid)) and time.monotonic() < late:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "causal 2x6:3x37x16:8" in out
    assert len(children) == 1
    assert not Path(f"/proc/{children[0]}").exists()
