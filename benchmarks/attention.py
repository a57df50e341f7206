"""How fast attention is: against this machine's limits, and against whoever else is installed.

    python benchmarks/attention.py                       every case, one thread and all
    python benchmarks/attention.py --quick --peers torch
    python benchmarks/attention.py --case 'causal/*' --threads 1 --json causal.json
    python benchmarks/attention.py --show causal.json decode.json --markdown

The limits are measured first, in the same run. Each result is checked against clearhead.reference
before it is timed. Contenders take turns, each in a process of its own; docs/speed.md says how.
At the end stand the goals, each with its number.

A case is MASK/BxHxTxD/DTYPE[/grad], H:G query and key heads, T:S queries and keys, D:E sizes of a
key and a value. `--case` takes a pattern of the listed ones, or any other name of this form.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

import goals

from clearhead.bench import command, table
from clearhead.bench.report import Report, from_json, merge

SHAPES = ["1x12x512x64", "1x12x2048x64", "1x8x8192x64", "1x8x2048x128", "1x32:8x2048x128"]
SMALL = ["8x12x128x32", "1x12x64x32"]
ODD = ["1x4x1000x80", "1x8x2048x96", "1x8x2048x100", "1x8x2048x64:128"]
BOTH = ["full", "causal"]

CASES = [f"{mask}/{shape}/float32" for shape in SHAPES + SMALL for mask in BOTH]
CASES += [f"{mask}/1x1x32768x64/float32" for mask in ("full", "causal", "window1024")]
CASES += ["packed8/1x12x2048x64/float32", "packed8/1x8x8192x64/float32"]
CASES += ["array/1x12x2048x64/float32", "bias/1x12x2048x64/float32"]
CASES += [f"{mask}/{shape}/float32" for shape in ODD for mask in BOTH]
CASES += [f"{mask}/{shape}/bfloat16" for shape in SHAPES[1:] for mask in BOTH]
CASES += ["full/8x12x128x32/bfloat16", "array/1x12x2048x64/bfloat16"]
CASES += [f"{mask}/{shape}/float16" for shape in (SHAPES[1], SHAPES[3]) for mask in BOTH]
CASES += [f"{mask}/{shape}/float32/grad" for shape in (SHAPES[1], SHAPES[3]) for mask in BOTH]
CASES += ["causal/1x32:8x2048x128/float32/grad", "packed8/1x12x2048x64/float32/grad"]
CASES += [f"{mask}/1x12x2048x64/bfloat16/grad" for mask in BOTH]
CASES += [
    f"{kind}:8192x128/{dtype}"
    for dtype in ("float32", "bfloat16", "float16")
    for kind in ("full/1x32:8x1", "causal/1x32:8x8", "full/16x32:8x1")
]
CASES += ["full/1x1x1x8/float32"]  # what a call costs
QUICK = [*command.SHORT, "full/1x1x1x8/float32"]


def shown(report: Report) -> str:
    return f"{table.text(report)}\n\n{goals.lines(report)}"


def as_markdown(report: Report) -> str:
    return f"{table.markdown(report)}\n\n```text\n{goals.lines(report)}\n```"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", metavar="NAME", help="only these; * is anything")
    parser.add_argument("--threads", type=int, nargs="+", metavar="N", help="default: one, and all")
    parser.add_argument("--peers", nargs="+", metavar="NAME", help="only these, or none")
    parser.add_argument("--seconds", type=float, default=0.5, help="a contender of a case, about")
    parser.add_argument("--quick", action="store_true", help="a few cases")
    parser.add_argument("--no-memory", action="store_true", help="leave the peaks of memory out")
    parser.add_argument("--json", metavar="FILE", help="write the numbers, - to standard output")
    parser.add_argument("--markdown", action="store_true", help="tables for a page")
    parser.add_argument("--show", nargs="+", metavar="FILE", help="earlier runs put together")
    parser.add_argument("--list", action="store_true", help="the names of the cases")
    wish = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit, like Ctrl-C
    listed = QUICK if wish.quick else CASES
    show = as_markdown if wish.markdown else shown
    try:
        if wish.list:
            print("\n".join(listed))
            return 0
        if wish.show:
            print(show(merge(from_json(Path(file).read_text()) for file in wish.show)))
            return 0
        return command.bench(
            cases=wish.case or (),
            peers=wish.peers or (),
            threads=wish.threads or (),
            seconds=wish.seconds,
            json=wish.json,
            listed=listed,
            memory=not (wish.no_memory or wish.quick),
            show=show,
        )
    except (ValueError, OSError) as error:
        print(f"attention.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
