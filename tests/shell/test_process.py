"""The command as a process: exit codes, pipes, terminals, signals, help."""

import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

import clearhead
import tiny_bert
from clearhead.cli import app, main

COMMAND = [sys.executable, "-m", "clearhead"]
TEXT = "The animal crossed the road because it was tired."


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny_bert.write(tmp_path_factory.mktemp("models") / "tiny"))


def in_terminal(*args: str, **env: str) -> bytes:
    """What the command sends to a terminal of 80 columns."""
    leader, follower = pty.openpty()
    clean = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [*COMMAND, *args],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**clean, "TERM": "xterm-256color", "COLUMNS": "80", **env},
    )
    os.close(follower)
    seen = b""
    try:
        while part := os.read(leader, 4096):
            seen += part
    except OSError:  # Linux says so when the other end is closed
        pass
    os.close(leader)
    assert process.wait(60) == 0
    return seen


def test_colour_is_for_terminals_that_want_it(model):
    args = ("map", TEXT, "--model", model)
    assert b"\x1b[38;5;" in in_terminal(*args)
    assert b"\x1b[38;5;" not in in_terminal(*args, NO_COLOR="1")
    piped = subprocess.run([*COMMAND, *args], capture_output=True, check=True)
    assert b"\x1b" not in piped.stdout and piped.stderr == b""
    plain = re.sub(rb"\x1b\[[0-9;]*m", b"", in_terminal(*args)).replace(b"\r\n", b"\n")
    assert plain == piped.stdout


def test_a_reader_that_leaves_ends_the_command_quietly(model):
    script = f'"$@" map "{TEXT}" --model "{model}" --json - | head -c 1; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", script, "-", *COMMAND], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout[0] == "{" and done.stdout[1:].strip() in ("0", "1")


def test_a_full_disk_behind_stdout_is_one_sentence(model):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "map", TEXT, "--model", model],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr == "clearhead: output: No space left on device\n"


def test_control_c_ends_it_with_130_and_no_traceback(model):
    process = subprocess.Popen(
        [*COMMAND, "map", "-", "--model", model],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for _ in range(600):  # until it sleeps in its read of stdin
        with open(f"/proc/{process.pid}/syscall") as file:
            # read is number 0 on x86-64 and 63 on AArch64
            if file.read().split()[:2] in (["0", "0x0"], ["63", "0x0"]):
                break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, err) == (b"", b"")


def test_a_terminal_without_unicode_gets_escapes_and_no_crash(model):
    done = subprocess.run(
        [*COMMAND, "map", "it → 東京", "--model", model],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0
    assert rb"\u6771" in done.stdout


def test_the_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"clearhead {clearhead.__version__}\n"


def every_command() -> list[list[str]]:
    groups = [group for group in app.registered_groups if group.typer_instance]
    return [
        *([command.name] for command in app.registered_commands),
        *([group.name] for group in groups),
        *(
            [group.name, command.name]
            for group in groups
            for command in group.typer_instance.registered_commands
        ),
    ]


@pytest.mark.parametrize("command", [[], *every_command()], ids=" ".join)
def test_help_has_an_example_and_fits(capsys, command):
    assert main([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"^ +clearhead {' '.join(command)}", out, re.MULTILINE), out
    assert max(map(len, out.splitlines())) <= 80


def test_without_a_command_it_says_what_there_is(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(command[0] in out for command in every_command())


def test_an_unknown_command_is_refused(capsys):
    assert main(["mpa"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "mpa" in err


def test_models_are_listed_and_removed_from_the_users_cache(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("CLEARHEAD_CACHE", str(tmp_path))
    assert main(["models"]) == 0
    assert re.search(r"all-MiniLM-L6-v2 .*\n    not fetched, \d+ MB", capsys.readouterr().out)
    tiny_bert.write(tmp_path / "models" / "all-MiniLM-L6-v2")
    assert main(["models"]) == 0
    assert f"    {tmp_path}/models/all-MiniLM-L6-v2\n" in capsys.readouterr().out
    assert main(["map", TEXT]) == 0
    assert "all-MiniLM-L6-v2: 2 layers" in capsys.readouterr().out
    assert main(["models", "remove", "all-MiniLM-L6-v2"]) == 0
    assert not (tmp_path / "models" / "all-MiniLM-L6-v2").exists()
    assert main(["models", "remove", "gpt-5"]) == 2
