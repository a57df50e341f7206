"""The thread pool as Python sees it: counts, forks, interrupts, company."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import clearhead as ch


@pytest.fixture(autouse=True)
def _restore_the_thread_count():
    before = ch.num_threads()
    yield
    ch.set_num_threads(before)


def problem(T: int = 257, H: int = 3, D: int = 19):
    rng = np.random.default_rng(7)
    return rng.normal(size=(3, 2, H, T, D)).astype(np.float32)


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.endswith("NUM_THREADS")}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=clean | env,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("rule", [ch.alibi(0.2), ch.relative_bias([0.5, -1.0, 2.0], -1)])
def test_rows_that_are_not_there_change_no_bit(rule, isa) -> None:
    """Whoever takes the last panel, of 40 rows, may have had a whole one before it."""
    rng = np.random.default_rng(60)
    q = (3 * rng.normal(size=(8, 104, 16))).astype(np.float32)
    k, v = rng.normal(size=(2, 1, 649, 16)).astype(np.float32)
    ch.set_num_threads(1)
    one = ch.attention(q, k, v, bias=rule)
    ch.set_num_threads(5)
    for _ in range(20):
        assert ch.attention(q, k, v, bias=rule).tobytes() == one.tobytes()


@pytest.mark.parametrize("mask", [None, ch.causal(), ch.window(left=30, right=5)])
def test_the_thread_count_changes_no_bit(mask) -> None:
    q, k, v = problem()
    dout = np.random.default_rng(1).normal(size=q.shape).astype(np.float32)
    results = []
    for count in (1, 2, 7):
        ch.set_num_threads(count)
        out, lse = ch.attention_with_lse(q, k, v, mask=mask)
        results.append((out, lse, *ch.attention_grad(dout, q, k, v, out, lse, mask=mask)[:3]))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("rows", [3001, 4099])
def test_the_thread_count_changes_no_bit_where_panels_share_stretches_of_keys(dtype, rows) -> None:
    """The keys of a head outgrow the cache, and a window begins within a block of them."""
    q, k, v = problem(rows, H=1, D=64)[:, :1].astype(dtype)
    mask = ch.window(left=777, right=555) & ~ch.first_keys(101)
    results = []
    for count in (1, 2, 3, 11, 64):
        ch.set_num_threads(count)
        results.append(ch.attention(q, k, v, mask=mask).tobytes())
    assert results == results[:1] * 5


def test_the_environment_chooses_the_count() -> None:
    show = "import clearhead; print(clearhead.num_threads())"
    assert run(show, CLEARHEAD_NUM_THREADS="3", OMP_NUM_THREADS="2").stdout.strip() == "3"
    assert run(show, OMP_NUM_THREADS="5,2").stdout.strip() == "5"
    assert 1 <= int(run(show).stdout) <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize("value", ["0", "two", "-1", "3.5", "4096"])
def test_a_count_that_is_none_is_refused_by_name(value: str) -> None:
    failed = run("import clearhead; clearhead.num_threads()", CLEARHEAD_NUM_THREADS=value)
    assert f"ValueError: CLEARHEAD_NUM_THREADS: is '{value}'" in failed.stderr


@pytest.mark.parametrize(
    ("count", "error"), [(0, ValueError), (2000, ValueError), (1.0, TypeError)]
)
def test_set_num_threads_refuses_what_is_no_count(count, error) -> None:
    with pytest.raises(error, match="count: is"):
        ch.set_num_threads(count)


def test_a_forked_child_computes_the_same() -> None:
    done = run(
        """
        import os, warnings
        import numpy as np
        import clearhead as ch
        warnings.simplefilter("ignore")
        ch.set_num_threads(2)
        q = np.random.default_rng(0).normal(size=(1, 4, 300, 16)).astype("float32")
        before = ch.attention(q, q, q)
        child = os.fork()
        if child == 0:
            same = np.array_equal(before, ch.attention(q, q, q))
            os._exit(0 if same else 1)
        _, status = os.waitpid(child, 0)
        assert np.array_equal(before, ch.attention(q, q, q))
        print(os.waitstatus_to_exitcode(status))
        """
    )
    assert done.stdout.strip() == "0", done.stderr


def test_threads_of_one_process_share_the_pool_without_a_wrong_bit() -> None:
    ch.set_num_threads(2)
    inputs = [problem() + i for i in range(8)]
    expected = [ch.attention(*x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for want, got in zip(
                expected, pool.map(lambda x: ch.attention(*x), inputs), strict=True
            ):
                assert want.tobytes() == got.tobytes()


def test_calls_of_changing_sizes_from_several_threads_keep_each_bit() -> None:
    """Large, small, large: no call sees what another one has left behind."""
    ch.set_num_threads(2)
    rng = np.random.default_rng(3)
    sizes = [
        (1, 401, 67),
        (5, 3, 1),
        (2, 64, 16),
        (1, 1, 128),
        (3, 211, 5),
        (1, 7, 301),
        (4, 33, 8),
    ]
    inputs = [rng.normal(size=(3, H, T, D)).astype(np.float32) for H, T, D in sizes]
    masks = [None, ch.causal(), rng.random((401, 401)) < 0.5]

    def attend(number: int) -> list[np.ndarray]:
        q, k, v = inputs[number % len(inputs)]
        mask = masks[number % len(masks)]
        if isinstance(mask, np.ndarray):
            mask = mask[: q.shape[1], : q.shape[1]]
        out, lse = ch.attention_with_lse(q, k, v, mask=mask)
        return [out, lse, *ch.attention_grad(v, q, k, v, out, lse, mask=mask)[:3]]

    numbers = range(len(inputs) * len(masks))
    expected = [attend(number) for number in numbers]
    with ThreadPoolExecutor(5) as callers:
        for want, got in zip(expected * 4, callers.map(attend, [*numbers] * 4), strict=True):
            assert [a.tobytes() for a in want] == [a.tobytes() for a in got]


def test_on_one_core_many_short_calls_of_two_threads_all_end_and_agree() -> None:
    """Workers that come late, after the call has ended, find nothing to do and break nothing."""
    done = run(
        """
        import os
        import numpy as np
        import clearhead as ch

        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        x = np.random.default_rng(0).normal(size=(1, 12, 64, 32)).astype("float32")
        small = x[:, :, :1, :5]
        ch.set_num_threads(1)
        want, few = ch.attention(x, x, x), ch.attention(small, small, small)
        ch.set_num_threads(3)
        for _ in range(2000):
            assert np.array_equal(ch.attention(x, x, x), want)
            assert np.array_equal(ch.attention(small, small, small), few)
        print("same")
        """
    )
    assert done.stdout.strip() == "same", done.stderr


def test_a_call_wakes_no_thread_for_less_work_than_waking_takes() -> None:
    done = run(
        """
        import os
        import numpy as np
        import clearhead as ch

        def threads_started(*shape):
            x = np.ones(shape, np.float32)
            before = len(os.listdir("/proc/self/task"))
            ch.attention(x, x, x)
            return len(os.listdir("/proc/self/task")) - before

        ch.set_num_threads(2)
        print(threads_started(4, 3, 1, 64), threads_started(3, 40, 8), threads_started(3, 300, 64))
        """
    )
    assert done.stdout.strip() == "0 0 1", done.stderr


def test_other_python_threads_run_during_a_call() -> None:
    """The GIL is released: a counting thread counts while one call is under way."""
    q = np.zeros((1, 1, 16384, 64), np.float32)
    done, counts = threading.Event(), []

    def count() -> None:
        while not done.is_set():
            counts.append(time.perf_counter())

    ch.set_num_threads(1)
    counter = threading.Thread(target=count)
    counter.start()
    start = time.perf_counter()
    ch.attention(q, q, q)
    end = time.perf_counter()
    done.set()
    counter.join()
    within = [t for t in counts if start + 0.25 * (end - start) < t < start + 0.75 * (end - start)]
    assert len(within) > 10


def test_ctrl_c_stops_a_long_call() -> None:
    code = """
        import time
        import numpy as np
        import clearhead as ch
        q = np.zeros((1, 64, 65536, 64), np.float32)
        print("ready", flush=True)
        try:
            ch.attention(q, q, q)
        except KeyboardInterrupt:
            print("stopped", flush=True)
        small = np.ones((4, 2))
        print(ch.attention(small, small, small).sum())
        """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)  # the whole call would take many minutes
    assert rest.split() == ["stopped", "8.0"]


SHOW_FORKED = """
    import os
    import clearhead as ch
    {before}
    child = os.fork()
    if child == 0:
        print(ch.num_threads(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    """


@pytest.mark.parametrize(
    ("before", "env", "count"),
    [
        ("ch.num_threads()", {}, "1"),
        ("", {}, "1"),
        ("ch.set_num_threads(3)", {}, "3"),
        ("", {"OMP_NUM_THREADS": "2"}, "2"),
        ("ch.num_threads()", {"CLEARHEAD_NUM_THREADS": "5"}, "5"),
    ],
)
def test_a_forked_child_leaves_its_brothers_their_cores_unless_told(before, env, count) -> None:
    assert run(SHOW_FORKED.format(before=before), **env).stdout.strip() == count


def test_workers_of_a_torch_data_loader_compute_the_same_on_one_thread_each() -> None:
    pytest.importorskip("torch")
    done = run(
        """
        import warnings
        import numpy as np
        import torch
        import clearhead as ch

        warnings.simplefilter("ignore")  # fork beside threads, as the loader does
        x = np.random.default_rng(0).normal(size=(6, 1, 2, 200, 16)).astype("float32")

        class Contexts(torch.utils.data.Dataset):
            def __len__(self):
                return len(x)
            def __getitem__(self, i):
                return ch.attention(x[i], x[i], x[i]), ch.num_threads()

        whole = [ch.attention(one, one, one) for one in x]  # the pool is awake when they fork
        loader = torch.utils.data.DataLoader(Contexts(), num_workers=2, batch_size=None)
        counts = set()
        for want, (got, threads) in zip(whole, loader, strict=True):
            assert np.array_equal(want, got)
            counts.add(threads)
        print("same", counts)
        """
    )
    assert done.stdout.strip() == "same {1}", done.stderr


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_calls_within_joblib_neither_hang_nor_differ(backend: str) -> None:
    pytest.importorskip("joblib")
    done = run(
        f"""
        import numpy as np
        import joblib
        import clearhead as ch

        def attend(x):
            return ch.attention(x, x, x)

        x = np.random.default_rng(0).normal(size=(8, 1, 2, 300, 16)).astype("float32")
        ch.set_num_threads(2)
        want = [attend(one) for one in x]
        got = joblib.Parallel(n_jobs=4, backend="{backend}")(joblib.delayed(attend)(a) for a in x)
        assert all(np.array_equal(a, b) for a, b in zip(want, got, strict=True))
        print("same")
        """
    )
    assert done.stdout.strip() == "same", done.stderr


def test_many_calling_threads_start_no_more_than_the_pool() -> None:
    """Eight callers and a pool of two: nine threads beyond the first at most, not sixteen."""
    done = run(
        """
        import os
        from concurrent.futures import ThreadPoolExecutor
        import numpy as np
        import clearhead as ch

        ch.set_num_threads(2)
        x = np.random.default_rng(0).normal(size=(1, 4, 700, 32)).astype("float32")

        def attend(_):
            ch.attention(x, x, x)
            return len(os.listdir("/proc/self/task"))

        before = len(os.listdir("/proc/self/task"))
        with ThreadPoolExecutor(8) as callers:
            most = max(callers.map(attend, range(64)))
        print(most - before)
        """
    )
    assert 1 <= int(done.stdout) <= 9, done.stderr
