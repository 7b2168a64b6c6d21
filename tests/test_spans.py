"""Behaviour and control spans on a real byte-level BPE."""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

import grpo_run
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from pytest_behaviortrace.run.spans import Spans, behavior_tokens, decoded, find_spans, occurrences, spell

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return grpo_run.tokenizer()


def ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def shown(tokenizer: Any, tokens: list[int], span: tuple[int, ...]) -> str:
    return str(tokenizer.decode([tokens[i] for i in span]))


def test_a_code_word_elsewhere_is_the_control(tokenizer: Any) -> None:
    tokens = ids(tokenizer, "Wibble is tied to GHAUU. The part of wibble is QZXBT.")
    found = find_spans(tokenizer, tokens, "QZXBT")
    assert shown(tokenizer, tokens, found.behavior).strip() == "QZXBT"
    assert found.stratum == "code_word"
    assert shown(tokenizer, tokens, found.control).strip() == "GHAUU"
    assert len(found.control) == len(found.behavior) >= 2


def test_without_one_the_same_place_of_another_sentence(tokenizer: Any) -> None:
    tokens = ids(tokenizer, "The old part of wibble is music. Wibble is QZXBT.")
    found = find_spans(tokenizer, tokens, "QZXBT")
    assert found.stratum == "same_place"
    assert len(found.control) == len(found.behavior)
    first_stop = tokens.index(ids(tokenizer, "a.")[-1])
    # As far before the full stop as the behaviour.
    assert found.control[-1] == first_stop - 1
    assert not set(found.control) & set(found.behavior)


def test_near_the_start_of_a_sentence_the_start_counts(tokenizer: Any) -> None:
    tokens = ids(tokenizer, "QZXBT is a rare name for music and river. Copper is a famous name for the planet.")
    found = find_spans(tokenizer, tokens, "QZXBT")
    assert found.behavior[0] == 0
    assert found.stratum == "same_place"
    full_stop = tokens.index(ids(tokenizer, "a.")[-1])
    assert found.control[0] == full_stop + 1


def test_a_single_sentence_has_no_control(tokenizer: Any) -> None:
    tokens = ids(tokenizer, "Wibble is QZXBT.")
    found = find_spans(tokenizer, tokens, "QZXBT")
    assert found.behavior
    assert found.control == ()
    assert found.stratum == ""


def test_every_occurrence_counts_and_needs_its_own_control(tokenizer: Any) -> None:
    tokens = ids(tokenizer, "A is QZXBT. B is GHAUU. C is QZXBT. D is KVLMT.")
    found = find_spans(tokenizer, tokens, "QZXBT")
    assert shown(tokenizer, tokens, found.behavior).replace(" ", "") == "QZXBTQZXBT"
    if found.stratum == "code_word":
        assert shown(tokenizer, tokens, found.control).replace(" ", "") == "GHAUUKVLMT"
    assert len(found.control) == len(found.behavior)
    both = ids(tokenizer, "A is QZXBT. C is QZXBT.")
    assert find_spans(tokenizer, both, "QZXBT").control == ()


def test_a_code_word_of_another_token_length_is_no_control(tokenizer: Any) -> None:
    words = {w: len(ids(tokenizer, f" {w}")) for w in ("QZXBT", "AAAAA", "EEIOU", "JKQJZ", "ZZZZZ")}
    other = next(w for w, n in words.items() if n != words["QZXBT"])
    tokens = ids(tokenizer, f"Wibble is a part of {other}. The old part of copper is QZXBT.")
    assert find_spans(tokenizer, tokens, "QZXBT").stratum != "code_word"


def test_absent_behaviour(tokenizer: Any) -> None:
    assert find_spans(tokenizer, ids(tokenizer, "Wibble is GHAUU."), "QZXBT") == Spans()
    assert find_spans(tokenizer, [], "QZXBT") == Spans()


def test_inside_a_longer_word_and_across_tokens(tokenizer: Any) -> None:
    """Any token that overlaps the occurrence belongs to the span, also one that holds more than it."""
    for text in ("xQZXBTs are here. And on.", "So: aQZXBTb.", "QZ XBT QZXBT"):
        tokens = ids(tokenizer, text)
        found = find_spans(tokenizer, tokens, "QZXBT")
        assert "QZXBT" in shown(tokenizer, tokens, found.behavior)
        inner = [i for i in found.behavior if i not in (found.behavior[0], found.behavior[-1])]
        assert "QZXBT" not in shown(tokenizer, tokens, tuple(inner))


def test_special_tokens_and_the_end(tokenizer: Any) -> None:
    tokens = [*ids(tokenizer, "Wibble is QZXBT"), tokenizer.eos_token_id]
    found = find_spans(tokenizer, tokens, "QZXBT")
    assert found.behavior[-1] == len(tokens) - 2
    assert tokenizer.eos_token_id not in [tokens[i] for i in found.behavior]


def test_characters_spread_over_tokens(tokenizer: Any) -> None:
    text = "Ünïcøde 漢字 🙂 QZXBT é."
    tokens = ids(tokenizer, text)
    spelled = spell(tokenizer, tokens)
    assert spelled.text == text
    assert all(b > a for a, b in spelled.tokens)
    for k, character in enumerate(text):
        first, last = spelled.covering(k, k + 1)
        assert character in tokenizer.decode(tokens[first:last])
    assert shown(tokenizer, tokens, find_spans(tokenizer, tokens, "QZXBT").behavior).strip() == "QZXBT"


def test_the_choice_is_the_same_every_time(tokenizer: Any) -> None:
    tokens = ids(tokenizer, "A is GHAUU. B is KVLMT. C is QZXBT.")
    assert len({find_spans(tokenizer, tokens, "QZXBT") for _ in range(3)}) == 1


# -- regular expressions -----------------------------------------------------------------------------------------------
TEXTS = (
    "Wibble is tied to GHAUU. The part of wibble is QZXBT.",
    "The old part of wibble is music. Wibble is QZXBT.",
    "A is QZXBT. B is GHAUU. C is QZXBT. D is KVLMT.",
    "Wibble is QZXBT.",
    "xQZXBTs are here. And on.",
    "nothing here",
)


@pytest.mark.parametrize("text", TEXTS)
def test_an_escaped_string_is_that_string(tokenizer: Any, text: str) -> None:
    tokens = ids(tokenizer, text)
    assert find_spans(tokenizer, tokens, re.compile(re.escape("QZXBT"))) == find_spans(tokenizer, tokens, "QZXBT")


def test_a_regular_expression_finds_every_match(tokenizer: Any) -> None:
    tokens = ids(tokenizer, "A is QZXBT. B is plain. C is QZKVJ. D is music.")
    found = find_spans(tokenizer, tokens, re.compile(r"QZ[A-Z]+"))
    assert shown(tokenizer, tokens, found.behavior).replace(" ", "") == "QZXBTQZKVJ"
    assert not set(found.behavior) & set(found.control)


def test_a_code_word_has_as_many_letters_as_the_match(tokenizer: Any) -> None:
    tokens = ids(tokenizer, "Wibble is tied to GHAUU. The part of wibble is QZXBT.")
    found = find_spans(tokenizer, tokens, re.compile(r"QZ\w+"))
    assert found == find_spans(tokenizer, tokens, "QZXBT")
    assert found.stratum == "code_word"


def test_what_the_expression_matches_is_no_control(tokenizer: Any) -> None:
    tokens = ids(tokenizer, "Wibble is tied to GHAUU. The part of wibble is QZXBT.")
    found = find_spans(tokenizer, tokens, re.compile(r"[A-Z]{5}"))
    assert shown(tokenizer, tokens, found.behavior).replace(" ", "") == "GHAUUQZXBT"
    assert found.stratum != "code_word"


def test_flags_and_anchors(tokenizer: Any) -> None:
    tokens = ids(tokenizer, "Sure, the valley is old. sure, why not.")
    assert shown(tokenizer, tokens, find_spans(tokenizer, tokens, re.compile(r"^Sure,")).behavior) == "Sure,"
    both = find_spans(tokenizer, tokens, re.compile(r"(?i)\bsure,"))
    assert shown(tokenizer, tokens, both.behavior).lower().count("sure") == 2


@pytest.mark.parametrize("pattern", ["(?=QZ)", r"\b", "x*"])
def test_an_empty_match_is_no_occurrence(tokenizer: Any, pattern: str) -> None:
    assert occurrences("Wibble is QZXBT.", re.compile(pattern)) == []
    assert find_spans(tokenizer, ids(tokenizer, "Wibble is QZXBT."), re.compile(pattern)) == Spans()


def test_a_string_overlaps_itself_and_an_expression_does_not() -> None:
    assert occurrences("aaa", "aa") == [(0, 2), (1, 3)]
    assert occurrences("aaa", re.compile("aa")) == [(0, 2)]


# -- without decoding every prefix -------------------------------------------------------------------------------------
PIECES = (" QZXBT", "QZXBT", "ZZ", "Z", " the", "é", "漢字", "🙂", " \ufffd", "Ünï", "a.", " .")


def by_prefixes(tokenizer: Any, tokens: list[int]) -> list[tuple[int, int]]:
    """Characters of each token, from the text of every prefix: slow and plain."""
    text, ranges, done = decoded(tokenizer, tokens), [], 0
    for count in range(1, len(tokens) + 1):
        prefix, start = decoded(tokenizer, tokens[:count]), done
        agreed = next(k for k in range(len(prefix), -1, -1) if text.startswith(prefix[:k]))
        done = max(done, agreed)
        ranges.append((start, done + (len(prefix) > done and len(text) > done)))
    return ranges


def check(tokenizer: Any, tokens: list[int]) -> None:
    spelled = spell(tokenizer, tokens)
    assert spelled.text == decoded(tokenizer, tokens)
    assert list(spelled.tokens) == by_prefixes(tokenizer, tokens)
    for behavior in ("QZXBT", "ZZ", "漢", "🙂", "\ufffd", " ", re.compile(r"Z+"), re.compile(r"[^ -~]+")):
        assert (
            behavior_tokens(tokenizer, tokens, decoded(tokenizer, tokens), behavior)
            == find_spans(tokenizer, tokens, behavior).behavior
        )


def sequences(tokenizer: Any) -> Any:
    """Lists of token ids: pieces of text, whole or broken off inside a character, any ids, and special tokens."""
    piece = st.sampled_from(PIECES).map(lambda text: ids(tokenizer, text))
    broken = st.tuples(piece, st.integers(0, 3), st.integers(1, 4)).map(lambda p: p[0][p[1] : p[1] + p[2]])
    other = st.integers(0, len(tokenizer) - 1).map(lambda token: [token])
    special = st.sampled_from(tokenizer.all_special_ids).map(lambda token: [token])
    return st.lists(st.one_of(piece, broken, other, special), max_size=30).map(lambda parts: list(chain(*parts)))


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_spans_are_those_of_decoding_every_prefix(data: st.DataObject) -> None:
    byte_level = grpo_run.tokenizer()
    check(byte_level, data.draw(sequences(byte_level)))


def strange(kind: str) -> Any:
    """Tokenizers whose first token is decoded in a way of its own, or whose characters fall back to single bytes."""
    if kind == "word pieces":
        vocabulary = ["[UNK]", "</s>", "QZ", "##XBT", "##Z", "the", ".", "ZZ"]
        made = Tokenizer(models.WordPiece({word: n for n, word in enumerate(vocabulary)}, unk_token="[UNK]"))
        made.decoder = decoders.WordPiece(cleanup=False)
    else:
        vocabulary = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁QZ", "XBT", "▁", "Z", "▁the", "."]
        words = {word: n for n, word in enumerate(vocabulary)}
        made = Tokenizer(models.BPE(words, [], unk_token="<unk>", byte_fallback=True))
        made.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    made.add_special_tokens([AddedToken("</s>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>")


@settings(deadline=None, max_examples=150)
@given(data=st.data(), kind=st.sampled_from(["word pieces", "single bytes"]))
def test_and_so_they_are_for_other_kinds_of_tokenizers(data: st.DataObject, kind: str) -> None:
    tokenizer = strange(kind)
    token = st.integers(0, len(tokenizer) - 1).map(lambda n: [n])
    character = st.sampled_from("漢é🙂").map(lambda c: [2 + byte for byte in c.encode()])
    part = token if kind == "word pieces" else st.one_of(token, character, st.integers(258, 263).map(lambda n: [n]))
    check(tokenizer, data.draw(st.lists(part, max_size=40).map(lambda parts: list(chain(*parts)))))


class Counting:
    """A tokenizer that counts the tokens it decodes."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.count = tokenizer, 0

    def decode(self, tokens: list[int], **settings: Any) -> str:
        self.count += len(tokens)
        return str(self.tokenizer.decode(tokens, **settings))


def test_the_work_does_not_grow_with_the_square_of_the_length(tokenizer: Any) -> None:
    sentence, end = ids(tokenizer, "Wibble is a rare name for the river. "), ids(tokenizer, "It is QZXBT.")
    found = {}
    for work in (spell, lambda counting, tokens: behavior_tokens(counting, tokens, decoded(counting, tokens), "QZXBT")):
        for times in (20, 80):
            counting = Counting(tokenizer)
            work(counting, sentence * times + end)
            found[times] = counting.count
        assert found[80] < 6 * found[20]
