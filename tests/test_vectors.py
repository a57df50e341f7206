"""read_vectors: the three formats it reads, and every malformation it names."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clearhead.worked.vectors import Vectors, read_vectors

WORDS = ("duck", "pond", "Ente", "été", "鸭")
MATRIX = np.random.default_rng(3).standard_normal((5, 7)).astype(np.float32)


def text(
    words: tuple[str, ...] = WORDS, matrix: np.ndarray = MATRIX, header: bool = False
) -> bytes:
    lines = [f"{len(words)} {matrix.shape[1]}"] if header else []
    lines += [
        f"{w} {' '.join(repr(float(x)) for x in row)}" for w, row in zip(words, matrix, strict=True)
    ]
    return ("\n".join(lines) + "\n").encode()


def binary(newlines: bool = True) -> bytes:
    end = b"\n" if newlines else b""
    rows = (
        w.encode() + b" " + r.astype("<f4").tobytes() + end
        for w, r in zip(WORDS, MATRIX, strict=True)
    )
    return f"{len(WORDS)} {MATRIX.shape[1]}\n".encode() + b"".join(rows)


def read(tmp_path: Path, content: bytes, **options: object) -> Vectors:
    path = tmp_path / "v.txt"
    path.write_bytes(content)
    return read_vectors(path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    [
        text(),
        text(header=True),
        binary(),
        binary(newlines=False),
        text().replace(b"\n", b"\r\n"),
        text()[:-1],
    ],
    ids=[
        "glove",
        "word2vec text",
        "word2vec binary",
        "no newlines",
        "windows lines",
        "no last newline",
    ],
)
def test_every_format_gives_the_same_words_and_numbers(tmp_path: Path, content: bytes) -> None:
    vectors = read(tmp_path, content)
    assert vectors.words == WORDS
    assert vectors.matrix.dtype == np.float32
    np.testing.assert_array_equal(vectors.matrix, MATRIX)
    np.testing.assert_array_equal(vectors["été"], MATRIX[3])
    np.testing.assert_array_equal(vectors[["pond", "duck"]], MATRIX[[1, 0]])


@pytest.mark.parametrize("content", [text(), text(header=True), binary()])
def test_a_subset_keeps_the_order_of_the_file_and_names_what_is_missing(
    tmp_path: Path, content: bytes
) -> None:
    vectors = read(tmp_path, content, words=["鸭", "swan", "duck"])
    assert vectors.words == ("duck", "鸭")
    assert vectors.missing == ("swan",)
    np.testing.assert_array_equal(vectors.matrix, MATRIX[[0, 4]])


@pytest.mark.parametrize("content", [text(), text(header=True), binary()])
def test_limit_stops_after_that_many_rows_and_reads_no_further(
    tmp_path: Path, content: bytes
) -> None:
    assert read(tmp_path, content, limit=2).words == WORDS[:2]
    torn = text() + b"ragged 1 2\n"
    assert len(read(tmp_path, torn, limit=5)) == 5


def test_a_word_may_hold_spaces_as_in_glove_840b(tmp_path: Path) -> None:
    assert read(tmp_path, b"a 1 2\n. . . 3 4\n").words == ("a", ". . .")


def test_the_first_row_of_a_word_wins(tmp_path: Path) -> None:
    np.testing.assert_array_equal(read(tmp_path, b"a 1 2\na 3 4\n").matrix, [[1, 2]])


def test_nearest_is_by_angle_and_leaves_the_word_itself_out(tmp_path: Path) -> None:
    vectors = read(tmp_path, b"a 1 0\nb 5 0.5\nc 0 3\nzero 0 0\n")
    assert [word for word, _ in vectors.nearest("a")] == ["b", "c", "zero"]
    assert vectors.nearest("a", top=1)[0][1] == pytest.approx(5 / np.hypot(5, 0.5))


def test_an_unknown_word_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="'swan' has no vector among these 5 words"):
        read(tmp_path, text())["swan"]


NAN_ROW = MATRIX.copy()
NAN_ROW[2, 4] = np.nan


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\n\n", "line 1 is empty"),
        (b"a 1 2\nb 1\n", "line 2: 1 numbers, must be 2"),
        (b"a 1 2\nb 1 2 3\n", "line 2: 3 numbers, must be 2"),
        (b"a 1 2\n\nb 1 2\n", "line 2 is empty"),
        (b"a 1 2\nb 1 x\n", "line 2: 'x' is no number"),
        (b"a 1 2\nb 1 1_0\n", "line 2: '1_0' is no number"),
        (b"a 1 2\nb 1 inf\n", "line 2: 'b': number 2 is inf, must be finite"),
        (b"a 1 2\nb 1e39 1\n", r"line 2: 'b': number 1 is 1e\+39, must be finite in float32"),
        (b"a 1 2\n 1 2\n", "line 2 begins with a space"),
        (b"lonely\n", "line 1 has no numbers"),
        (b"a 1 2\n\xff 1 2\n", r"line 2: '\\xff' is not UTF-8"),
        (b"3 2\na 1 2\nb 1 2\nc\n", "line 4: 0 numbers, must be 2"),
        (b"2 2\na 1 2\nb 1 2\nc 1 2\n", "3 rows, must be the 2 that line 1 announces"),
        (b"2 2\na 10000 2\n", "1 rows, must be the 2"),
        (b"0 5\n", "line 1: 0 words of 5 numbers"),
        (b"a " + b"1" * (1 << 22), "line 1 is longer than"),
        (text(matrix=NAN_ROW), "line 3: 'Ente': number 5 is nan"),
        (binary()[:-9], "line 1: 5 words of 7 numbers need at least|cut off"),
        (binary() + b"more", "4 or more bytes after the 5 words"),
        (
            binary().replace(b"Ente ", b"\xff\xfe\x00x "),
            r"byte 72: word 3 of 5: '\\xff\\xfe\\x00x' is not UTF-8",
        ),
        (
            b"1 2\na " + np.float32([1, np.nan]).tobytes(),
            "byte 4: word 1 of 1: 'a': number 2 is nan",
        ),
        (b"1 2\n  " + np.float32([1, 2]).tobytes(), "an empty word"),
        (b"1 2\n" + b"\x01" * 20000, "no space within 16384 bytes"),
        (
            b"1152921504606846976 300\na 1\n",
            "line 1: 1152921504606846976 words of 300 numbers need at least",
        ),
        (
            b"1 1152921504606846976\na 1\n",
            "line 1: 1 words of 1152921504606846976 numbers need at least",
        ),
    ],
)
def test_a_malformed_file_gives_one_sentence_that_says_where(
    tmp_path: Path, content: bytes, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        read(tmp_path, content)
    assert str(error.value).startswith("v.txt: ")
    assert "\n" not in str(error.value)


def test_bad_arguments_are_refused_before_the_file_is_opened() -> None:
    with pytest.raises(TypeError, match="words: a single string"):
        read_vectors("nowhere", words="duck")
    with pytest.raises(ValueError, match="limit: 0, must be at least 1"):
        read_vectors("nowhere", limit=0)
    with pytest.raises(ValueError, match="format: 'gz', must be"):
        read_vectors("nowhere", format="gz")  # type: ignore[arg-type]


def test_no_word_found_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none of the 1 words asked for"):
        read(tmp_path, text(), words=["swan"])


def test_binary_without_a_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 1 is no header"):
        read(tmp_path, text(), format="binary")


def test_memory_follows_the_words_kept_and_not_the_file(tmp_path: Path) -> None:
    path = tmp_path / "big.txt"
    row = " ".join(["0.125"] * 300)
    with path.open("w") as file:
        for i in range(5000):
            file.write(f"w{i} {row}\n")
    tracemalloc.start()
    vectors = read_vectors(path, words=["w7", "w4999"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(vectors) == 2
    assert peak < 1_000_000  # the file has 9 million bytes


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    data=st.binary(max_size=200),
    cut=st.integers(0, 300),
    kind=st.sampled_from(["raw", "text", "header", "binary"]),
)
@example(data=b"9 9\n", cut=0, kind="raw")
def test_damaged_files_raise_value_error_and_nothing_else(
    tmp_path: Path, data: bytes, cut: int, kind: str
) -> None:
    whole = {"raw": b"", "text": text(), "header": text(header=True), "binary": binary()}[kind]
    path = tmp_path / "fuzz.bin"
    path.write_bytes(whole[:cut] + data + whole[cut + 1 :])
    try:
        vectors = read_vectors(path)
    except ValueError as error:
        assert str(error).startswith("fuzz.bin: ")
    else:
        assert vectors.matrix.shape == (len(vectors.words), vectors.size)
        assert np.isfinite(vectors.matrix).all()
