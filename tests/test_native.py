"""The core without Python: under sanitizers, and compiled for 64-bit Arm and run by an emulator."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parent / "native"
SANITIZERS = {
    "address and undefined": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}
ARM = "aarch64-linux-gnu-g++"


def need(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def built(folder: Path, *options: str) -> Path:
    cmake = need("cmake")
    for step in (
        [cmake, "-S", NATIVE, "-B", folder, "-DCMAKE_BUILD_TYPE=RelWithDebInfo", *options],
        [cmake, "--build", folder, "--parallel", str(len(os.sched_getaffinity(0)))],
    ):
        done = subprocess.run(step, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "check"


def right(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("right on "), done.stdout
    return done.stdout


@pytest.mark.parametrize("kind", SANITIZERS)
def test_every_instruction_set_is_clean_under_a_sanitizer(kind: str, tmp_path: Path) -> None:
    compiler, flags = need("c++"), SANITIZERS[kind]
    probe = tmp_path / "probe.cpp"
    probe.write_text("int main() {}")
    if subprocess.run(
        [compiler, *flags, probe, "-o", tmp_path / "probe"], capture_output=True
    ).returncode:
        pytest.skip(f"{compiler} has no library for {' '.join(flags)}")
    assert "scalar" in right(
        built(
            tmp_path / "build",
            f"-DCMAKE_CXX_FLAGS={' '.join(flags)}",
            "-DCLEARHEAD_OPTIMISATION=-O1",
        )
    )


def test_the_arm_unit_computes_the_same_under_emulation(tmp_path: Path) -> None:
    compiler, emulator = need(ARM), need("qemu-aarch64")
    check = built(
        tmp_path,
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={compiler}",
    )
    assert right(emulator, "-L", "/usr/aarch64-linux-gnu", check) == "right on neon scalar\n"
