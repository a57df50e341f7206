"""Tokens and words: what the user wrote, in any script, whatever the tokenizer made of it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import tiny_bert
from clearhead.models.tokens import Token, Word, encode, open_tokenizer, spelled, word_spans
from clearhead.models.weights import CheckpointError


def words_of(text: str) -> list[str]:
    return [text[a:b] for a, b in word_spans(text)]


def byte_level(*merges: str) -> Tokenizer:
    """A byte-level BPE tokenizer: every byte is a token, joined by `merges` such as `Ġ t`."""
    vocab = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    pairs = [tuple(merge.split()) for merge in merges]
    for a, b in pairs:
        vocab[a + b] = len(vocab)
    made = Tokenizer(models.BPE(vocab, pairs))  # type: ignore[arg-type]
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    return made


def read(text: str, tokenizer: Tokenizer | None = None) -> tuple[list[Token], list[Word]]:
    return spelled(encode(tokenizer or tiny_bert.tokenizer(), text), text)


WORDS = {
    "plain": ("The animal crossed.", ["The", "animal", "crossed", "."]),
    "apostrophes": ("don't the dog’s 'quoted'", ["don't", "the", "dog’s", "'", "quoted", "'"]),
    "numbers": ("3.14 and 1,000, 7.", ["3.14", "and", "1,000", ",", "7", "."]),
    "snake case": ("a snake_case(x)", ["a", "snake_case", "(", "x", ")"]),
    "hyphens": ("state-of-the-art", ["state", "-", "of", "-", "the", "-", "art"]),
    "runs of one sign": ("wait... a == b?!", ["wait", "...", "a", "==", "b", "?", "!"]),
    "money": ("$$5", ["$", "$", "5"]),
    "accents, composed": ("caf\u00e9 au lait", ["caf\u00e9", "au", "lait"]),
    "accents, combining": ("cafe\u0301 au lait", ["cafe\u0301", "au", "lait"]),
    "Japanese": ("東京へ行きました。", ["東京", "へ", "行", "きました", "。"]),
    "Katakana": ("コンピューター", ["コンピューター"]),
    "a long run of Han": ("我喜欢吃烤鸭", ["我", "喜", "欢", "吃", "烤", "鸭"]),
    "Thai": ("สวัสดี", ["สวัสดี"]),
    "Devanagari": ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
    "Hebrew": ("שלום, עולם", ["שלום", ",", "עולם"]),
    "Arabic": ("مرحبا بالعالم", ["مرحبا", "بالعالم"]),
    "Persian, joined by no width": ("می\u200cخواهم", ["می\u200cخواهم"]),
    "Korean": ("한국어 텍스트", ["한국어", "텍스트"]),
    "emoji": ("🙂🙂 ok", ["🙂", "🙂", "ok"]),
    "emoji of several parts": ("👨‍👩‍👧👍🏽❤️", ["👨‍👩‍👧", "👍🏽", "❤️"]),
    "flags": ("🇯🇵🇫🇷", ["🇯🇵", "🇫🇷"]),
    "keycap": ("1️⃣!", ["1️⃣", "!"]),
    "newlines": ("one\ntwo\r\nthree\u2028four", ["one", "two", "three", "four"]),
    "a space of no width": ("one\u200btwo", ["one", "two"]),
    "markup": ("</script>", ["<", "/", "script", ">"]),
    "nothing": (" \n\t\u200b", []),
}


@pytest.mark.parametrize("case", WORDS)
def test_words_are_what_a_reader_would_point_at(case: str) -> None:
    text, words = WORDS[case]
    assert words_of(text) == words


@settings(deadline=None)
@given(text=st.text())
def test_words_are_in_order_apart_and_leave_out_only_what_is_not_seen(text: str) -> None:
    at = 0
    for start, end in word_spans(text):
        assert at <= start < end
        assert not any(char.isspace() for char in text[start:end])
        assert all(char.isspace() or not char.isprintable() for char in text[at:start])
        at = end
    assert all(char.isspace() or not char.isprintable() for char in text[at:])


def test_tokens_show_the_users_characters_and_special_ones_their_names() -> None:
    text = "The animal's walking."
    tokens, words = read(text)
    assert [token.raw for token in tokens[:6]] == ["[CLS]", "the", "animal", "'", "s", "w"]
    assert [token.text for token in tokens[:6]] == ["[CLS]", "The", "animal", "'", "s", "w"]
    assert [word.text for word in words] == ["[CLS]", "The", "animal's", "walking", ".", "[SEP]"]
    assert tokens[-3].raw == "##ing" and tokens[-3].text == "ing"
    assert [word.special for word in words] == [True, False, False, False, False, True]
    assert (tokens[0].start, tokens[0].end) == (0, 0)
    assert (tokens[-1].start, tokens[-1].end) == (len(text), len(text))


def test_an_unknown_piece_shows_what_the_user_wrote() -> None:
    tokens, words = read("the 東京 🙂 road")
    assert [token.raw for token in tokens].count("[UNK]") == 3
    assert [token.text for token in tokens[1:-1]] == ["the", "東", "京", "🙂", "road"]
    assert [word.text for word in words[1:-1]] == ["the", "東京", "🙂", "road"]


def test_accents_that_the_tokenizer_drops_stay_with_the_letter_before() -> None:
    tokens, _ = read("cafe\u0301s")
    assert [token.text for token in tokens[1:-1]] == ["c", "a", "f", "e\u0301", "s"]


def test_byte_level_pieces_of_one_emoji_each_carry_the_emoji() -> None:
    tokens, words = read("a 🙂b", byte_level())
    emoji = [token for token in tokens if token.text == "🙂"]
    assert len(emoji) == 4 and {(token.start, token.end) for token in emoji} == {(2, 3)}
    assert [word.text for word in words] == ["a", " ", "🙂", "b"]
    assert words[2].tokens == (2, 3, 4, 5)


def test_the_space_before_a_byte_level_piece_is_not_part_of_it() -> None:
    tokens, words = read("a to\n", byte_level("t o", "Ġ to"))
    assert [token.raw for token in tokens] == ["a", "Ġto", "Ċ"]
    assert [(token.text, token.start, token.end) for token in tokens] == [
        ("a", 0, 1),
        ("to", 2, 4),
        ("\n", 4, 5),
    ]
    assert [word.text for word in words] == ["a", "to", "\n"]


def test_words_that_one_token_spans_are_one_word() -> None:
    text = "a).b"
    tokens, words = read(text, byte_level(") ."))
    assert [token.text for token in tokens] == ["a", ").", "b"]
    assert [word.text for word in words] == ["a", ").", "b"]
    assert words_of(text) == ["a", ")", ".", "b"]


def test_special_names_in_the_text_are_the_users_text() -> None:
    tokens, words = read("the [SEP] road")
    assert [token.special for token in tokens] == [True, False, False, False, True]
    assert words[2].text == "[SEP]" and not words[2].special


PIECES = st.sampled_from(
    [
        "the ",
        "road",
        "ing",
        "\n",
        " ",
        ".",
        "…",
        "東京",
        "नमस्ते",
        "🙂",
        "👍🏽",
        "é",
        "e\u0301",
        "שלום",
        *("[SEP]", "\u200b", "\u202e", "</script>", "\r\n", "\x00", "한", "3.14", "'", "สวัสดี"),
        "\u3000",
    ]
)


@pytest.mark.parametrize("tokenizer", [tiny_bert.tokenizer(), byte_level("t h", "Ġ t", ". .")])
@settings(deadline=None, max_examples=150)
@given(text=st.one_of(st.lists(PIECES).map("".join), st.text()).filter(lambda t: t.strip()))
def test_every_token_belongs_to_one_word_and_shows_the_users_text(
    tokenizer: Tokenizer, text: str
) -> None:
    try:
        encoding = encode(tokenizer, text)
    except ValueError as error:
        assert "holds nothing that the model's tokenizer keeps" in str(error)
        return
    tokens, words = spelled(encoding, text)
    assert [token.id for token in tokens] == encoding.ids
    assert sorted(i for word in words for i in word.tokens) == list(range(len(tokens)))
    for i, token in enumerate(tokens):
        word = words[token.word]
        assert i in word.tokens
        assert word.start <= token.start <= token.end <= word.end
        assert word.special == token.special
        assert token.text == (token.raw if token.special else text[token.start : token.end])
    for word in words:
        assert word.special or word.text == text[word.start : word.end]
    seen = [word for word in words if not word.special]
    assert all(a.end <= b.start for a, b in pairwise(seen))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "text: is empty"),
        (" \n\t", "text: holds nothing but white space"),
        ("\u200b\u200e", "text: holds nothing that the model's tokenizer keeps"),
        ("ab\ud83d", "text: character 2 is half a surrogate pair"),
    ],
)
def test_a_text_without_words_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        encode(tiny_bert.tokenizer(), text)


def test_bytes_are_no_text() -> None:
    with pytest.raises(TypeError, match="text: is bytes, must be str"):
        encode(tiny_bert.tokenizer(), b"text")  # type: ignore[arg-type]


def test_a_tokenizers_own_truncation_and_padding_are_switched_off(tmp_path: Path) -> None:
    made = tiny_bert.tokenizer()
    made.enable_truncation(5)
    made.enable_padding(length=7)
    made.save(str(tmp_path / "tokenizer.json"))
    text = "the road " * 11
    assert len(encode(open_tokenizer(tmp_path), text).ids) == 24


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, r"holds no tokenizer\.json"),
        ("", "is not JSON"),
        ("{}", "is not a tokenizer"),
        (json.dumps({"model": {"type": "WordPiece"}}), "is not a tokenizer"),
        ("[" * 10_000, "is not JSON"),
    ],
)
def test_a_broken_tokenizer_is_refused(tmp_path: Path, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=says) as refused:
        open_tokenizer(tmp_path)
    assert "\n" not in str(refused.value)


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_a_damaged_tokenizer_is_read_or_refused_but_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    damaged = bytearray(tiny_bert.tokenizer().to_str().encode())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(32, 126))
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "tokenizer.json").write_bytes(damaged)
    try:
        tokenizer = open_tokenizer(folder)
        encode(tokenizer, "the road, walking")
    except CheckpointError as error:
        assert "tokenizer.json" in str(error)


def test_a_template_of_tokens_that_are_not_there_is_refused(tmp_path: Path) -> None:
    whole = tiny_bert.tokenizer().to_str()
    at = whole.index('"special_tokens"')
    (tmp_path / "tokenizer.json").write_text(
        whole[:at] + whole[at:].replace('"[SEP]":', '"[XEP]":', 1)
    )
    with pytest.raises(CheckpointError, match="is not a tokenizer"):
        open_tokenizer(tmp_path)
