"""The shape of the project: public names, the direction of imports, the native surface."""

import ast
import importlib
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import clearhead

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "clearhead"

# DESIGN.md, section 4: what stands higher may import what stands lower, never the reverse. Rooms on
# one line do not see each other, except where a method opens the room beside it when it is called.
FLOORS = [
    {"_native"},
    {"reference", "_check", "_check_map", "_arrays", "_index", "_writing", "rules"},
    {"masks", "biases"},
    {"ops", "linear", "cache", "parameters"},
    {"observation"},
    {"products", "pictures"},
    {"maps"},
    {"layers", "single_head", "regression"},
    {"models", "viewer", "worked", "bench"},
    {"cli", "terminal", "heads_command", "map_command", "source", "view_command", "__main__"},
]
ADAPTERS = {"torch", "_torch_operator", "jax", "hf", "dask", "widget", "notebook"}


def floor(room: str) -> int | None:
    return next((i for i, rooms in enumerate(FLOORS) if room in rooms), None)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports_of(path: Path) -> set[tuple[str, bool]]:
    """The rooms that a module imports, and whether it does so when it is loaded."""
    depth = len(path.relative_to(PACKAGE).parts)
    tree = ast.parse(path.read_text())
    at_load = set(ast.walk(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            at_load -= set(ast.walk(node)) - {node}
    found = set()
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.level:
            # Level 1 names the module's own folder; only the package's top is of interest.
            if node.level == depth:
                modules = [node.module] if node.module else [n.name for n in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("clearhead"):
            rest = (node.module or "").removeprefix("clearhead").lstrip(".")
            modules = [rest] if rest else [n.name for n in node.names]
        elif isinstance(node, ast.Import):
            modules = [n.name[10:] for n in node.names if n.name.startswith("clearhead.")]
        found |= {(module.split(".")[0], node in at_load) for module in modules}
    return found


MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_arrows_point_down(path: Path) -> None:
    own = room_of(path)
    if own in ADAPTERS:
        return
    assert floor(own) is not None, f"{own} has no floor: give it one in FLOORS"
    for room, at_load in imports_of(path):
        if floor(room) is None or room == own:
            continue
        beside = floor(room) == floor(own) and (not at_load or floor(own) in (0, len(FLOORS) - 1))
        assert floor(room) < floor(own) or beside, f"{own} imports {room}, which stands higher"


def test_the_reference_sees_numpy_alone() -> None:
    tree = ast.parse((PACKAGE / "reference.py").read_text())
    roots = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            roots.add(str(node.module).split(".")[0])
    assert roots <= {"numpy", "collections", "typing", "math"}


def test_public_names_are_sorted_complete_and_there() -> None:
    assert sorted(clearhead.__all__) == clearhead.__all__
    assert set(clearhead.__all__) == {*clearhead._HOME, "__version__"}
    for name in clearhead.__all__:
        assert getattr(clearhead, name) is not None
    for name in set(clearhead.__all__) - {"__version__"}:
        home = importlib.import_module(f"clearhead.{clearhead._HOME[name]}")
        assert getattr(clearhead, name) is getattr(home, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        clearhead.atention  # noqa: B018


def test_every_public_name_says_what_it_gives() -> None:
    for name in set(clearhead.__all__) - {"__version__"}:
        assert getattr(clearhead, name).__doc__, name


def test_importing_clearhead_loads_no_framework_and_no_plotting() -> None:
    code = "import clearhead, sys; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "jax", "matplotlib", "transformers", "starlette", "typer", "rich"}
    assert heavy.isdisjoint(shown.stdout.split())


def test_the_stub_is_what_the_core_offers() -> None:
    native = importlib.import_module("clearhead._native")
    stub = ast.parse((PACKAGE / "_native.pyi").read_text())
    written = {
        node.name: [a.arg for a in node.args.args]
        for node in stub.body
        if isinstance(node, ast.FunctionDef)
    }
    offered = {}
    for name in dir(native):
        if not name.startswith("_") and callable(getattr(native, name)):
            signature = getattr(native, name).__nb_signature__[0][0]
            (node,) = ast.parse(re.sub(r"\\\d+", "None", signature) + ": ...").body
            offered[name] = [a.arg for a in node.args.args]
    assert written == offered


AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"]
ISA_FLAGS = {
    "scalar": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": AVX512,
    "amx": [*AVX512, "-mamx-tile", "-mamx-bf16"],
    "neon": [],
}


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm from binutils")
@pytest.mark.parametrize("isa", ISA_FLAGS)
def test_a_kernel_unit_defines_its_table_and_nothing_that_others_could_link(
    isa: str, tmp_path: Path
) -> None:
    """A weak symbol compiled for AVX-512 may become the copy that an older CPU runs."""
    family = "aarch64" if isa == "neon" else "x86_64"
    compiler = (
        "c++" if isa == "scalar" or platform.machine() == family else f"{family}-linux-gnu-g++"
    )
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed, and this is no {family}")
    unit = tmp_path / f"{isa}.o"
    source = ROOT / "native" / f"isa_{isa}.cpp"
    flags = ["-std=c++20", "-O1", "-fPIC", "-fno-exceptions", "-ffp-contract=off", "-w"]
    subprocess.run([compiler, *flags, *ISA_FLAGS[isa], "-c", source, "-o", unit], check=True)
    listed = subprocess.check_output(["nm", "-C", unit], text=True).splitlines()
    defined = [line.split(maxsplit=2)[1:] for line in listed if not line.startswith(" ")]
    shared = [(kind, name) for kind, name in defined if kind not in "trdb"]
    parts = ["bfloats", "floats", "halves"]
    amx = sorted([*parts, *(f"{name}_{of}" for name in parts for of in ("backward", "strip"))])
    tables = amx if isa == "amx" else ["kernels"]
    assert sorted(name for _, name in shared) == [f"clearhead::{table}_{isa}" for table in tables]
    assert all(kind in "DR" for kind, _ in shared)
