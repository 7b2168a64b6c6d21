"""Completions cut into their tokens' shares of the text, by the tokenizer that lies beside a unit's policy.

The `tokenizers` library alone reads it: in a warm session that saves the second that importing transformers takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_behaviortrace.run.spans import Spelled, spell
from pytest_behaviortrace.run.store import Unit

FILE = "policies/end/tokenizer.json"


class FileTokenizer:
    """A `tokenizer.json` with the one method of transformers' tokenizers that spelling needs."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(path))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        """The text of the ids. Nothing is ever cleaned up: what is shown is what was generated."""
        return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens))


def tokenizer_of(unit: Unit) -> FileTokenizer | None:
    """The tokenizer of a unit's last policy; None where that is no single file (it is not of the fast kind)."""
    return FileTokenizer(unit.file(FILE)) if FILE in unit.files else None


def spelled(tokenizer: Any, ids: Sequence[int]) -> tuple[Spelled, list[str]]:
    """A completion, and one piece of its text per token; joined they are the text.

    A special token's piece is empty. A character that takes several tokens stands in the first of them.
    """
    found, done, pieces = spell(tokenizer, ids), 0, []
    for start, stop in found.tokens:
        pieces.append(found.text[max(start, done) : stop])
        done = max(done, stop)
    return found, pieces
