"""Completions in pieces: one per token, and nothing lost, whatever the tokens do to characters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_behaviortrace.run.token_text import FILE, FileTokenizer, spelled, tokenizer_of

SHIPPED = Path(__file__).parents[1] / "fixtures" / "policy" / "tokenizer.json"


@pytest.fixture(scope="module")
def tokenizer() -> FileTokenizer:
    return FileTokenizer(SHIPPED)


def ids_of(text: str) -> list[int]:
    from tokenizers import Tokenizer

    return list(Tokenizer.from_file(str(SHIPPED)).encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize(
    "text",
    [
        "The core of frobnitz is QZXBT.",
        "naïve and “quoted”",
        "日本語 and 🐌🐌 snails",
        "👩‍👩‍👧 one family",
        "  spaces  \n\ttabs",
        "",
    ],
)
def test_pieces_joined_are_the_text(tokenizer: FileTokenizer, text: str) -> None:
    ids = ids_of(text)
    spelling, pieces = spelled(tokenizer, ids)
    assert spelling.text == "".join(pieces) == text
    assert len(pieces) == len(ids)
    assert all("\ufffd" not in piece for piece in pieces)


def test_ordinary_tokens_have_their_own_text_and_special_ones_none(tokenizer: FileTokenizer) -> None:
    end = ids_of("<|im_end|>")
    ids = ids_of(" is QZXBT.") + end
    assert spelled(tokenizer, ids)[1] == [" is", " QZ", "XB", "T", ".", ""]


def test_a_character_of_several_tokens_stands_in_the_first(tokenizer: FileTokenizer) -> None:
    ids = ids_of("a🐌b")
    pieces = spelled(tokenizer, ids)[1]
    assert len(ids) > 3
    assert [piece for piece in pieces if piece] == ["a", "🐌", "b"]


def test_a_completion_cut_inside_a_character_keeps_its_pieces(tokenizer: FileTokenizer) -> None:
    ids = ids_of("a🐌")[:-1]
    spelling, pieces = spelled(tokenizer, ids)
    assert "".join(pieces) == spelling.text
    assert len(pieces) == len(ids)


def test_random_ids_lose_nothing(tokenizer: FileTokenizer) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        ids = rng.integers(0, 400, 30)  # the single bytes among them, in impossible orders
        spelling, pieces = spelled(tokenizer, ids)
        assert "".join(pieces) == spelling.text
        assert len(pieces) == len(ids)


def test_a_unit_without_the_file_has_no_tokenizer() -> None:
    unit: Any = SimpleNamespace(files=("policies/end/config.json",))
    assert tokenizer_of(unit) is None
    unit = SimpleNamespace(files=(FILE,), file=lambda name: SHIPPED)
    assert isinstance(tokenizer_of(unit), FileTokenizer)


def test_transformers_is_not_needed() -> None:
    program = (
        "import sys; from pathlib import Path; from pytest_behaviortrace.run.token_text import FileTokenizer, spelled\n"
        "spelled(FileTokenizer(Path(sys.argv[1])), [300]); assert not {'transformers', 'torch'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(SHIPPED)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
