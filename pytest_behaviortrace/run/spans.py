"""Which tokens of a completion spell the behaviour, and an equally long stretch of the same completion as control."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Range = tuple[int, int]
"""First index and the one after the last."""

Behavior = str | re.Pattern[str]
"""What to look for: a string, word for word and wherever it begins, or a regular expression."""

CODE_WORD, SAME_PLACE, NO_CONTROL = "code_word", "same_place", ""


@dataclass(frozen=True)
class Spans:
    """Token indices, within the completion, of every occurrence of a behaviour and of as many controls.

    `stratum` says what the control is: another code word, the same place in another sentence, or "" for none.
    """

    behavior: tuple[int, ...] = ()
    control: tuple[int, ...] = ()
    stratum: str = NO_CONTROL


@dataclass(frozen=True)
class Spelled:
    """A completion as text (special tokens left out), and the characters that each token adds to it."""

    text: str
    tokens: tuple[Range, ...]
    """Per token; an empty range for a special token."""

    def covering(self, start: int, stop: int) -> Range:
        """Tokens that overlap the characters start..stop: a range, empty when there are none."""
        inside = [i for i, (a, b) in enumerate(self.tokens) if a < stop and b > start]
        return (inside[0], inside[-1] + 1) if inside else (0, 0)


def spell(tokenizer: Any, ids: Sequence[int]) -> Spelled:
    """The text of a completion and each token's share of it.

    A character spread over several tokens belongs to all of them, which decoding prefixes shows for any tokenizer.
    """
    text = decoded(tokenizer, ids)
    tokens, done = [], 0
    for count in range(1, len(ids) + 1):
        prefix = decoded(tokenizer, ids[:count])
        start, done = done, _common(prefix, text)
        # A prefix that ends inside a character shows a replacement for it.
        tokens.append((start, done + (len(prefix) > done and len(text) > done)))
    return Spelled(text, tuple(tokens))


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """A completion as text, special tokens left out."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _common(prefix: str, text: str) -> int:
    length = 0
    while length < min(len(prefix), len(text)) and prefix[length] == text[length]:
        length += 1
    return length


def occurrences(text: str, behavior: Behavior) -> list[Range]:
    """Where a behaviour stands in a text, from left to right.

    A string's occurrences may overlap each other; a regular expression's matches do not, and empty ones are none.
    """
    if isinstance(behavior, str):
        starts = [m.start() for m in re.finditer(f"(?={re.escape(behavior)})", text)]
        return [(start, start + len(behavior)) for start in starts]
    return [m.span() for m in behavior.finditer(text) if m.end() > m.start()]


def find_spans(tokenizer: Any, ids: Sequence[int], behavior: Behavior) -> Spans:
    """Behaviour span and control span of a completion; empty `Spans` where the behaviour does not occur.

    The behaviour span holds the tokens that overlap any occurrence. Each occurrence gets a control of as many tokens:
    another code-like word (as many capital letters as the occurrence has) if there is one of that token length for
    every occurrence, else the stretch at the same place of another sentence, else there is no control at all. The
    choice depends on nothing but the completion.
    """
    if not occurrences(decoded(tokenizer, ids), behavior):
        return Spans()
    spelled = spell(tokenizer, ids)
    places = occurrences(spelled.text, behavior)
    found = [spelled.covering(start, stop) for start, stop in places]
    taken = {i for a, b in found for i in range(a, b)}
    for stratum, offers in (
        (CODE_WORD, [_code_words(spelled, stop - start) for start, stop in places]),
        (SAME_PLACE, [_same_place(spelled, o) for o in found]),
    ):
        chosen = _assign(found, offers, taken)
        if chosen:
            return Spans(tuple(sorted(taken)), chosen, stratum)
    return Spans(tuple(sorted(taken)))


def _assign(occurrences: Sequence[Range], offers: Sequence[Sequence[Range]], taken: set[int]) -> tuple[int, ...]:
    """For each occurrence the first offer of its length clear of behaviour and other controls; all of them or none."""
    used: set[int] = set()
    for (start, stop), candidates in zip(occurrences, offers, strict=True):
        for low, high in candidates:
            tokens = set(range(low, high))
            if high - low == stop - start and not tokens & (taken | used):
                used |= tokens
                break
        else:
            return ()
    # Occurrences may share a token; a control must not be longer than what it is compared with.
    return tuple(sorted(used)) if len(used) == len(taken) else ()


def _code_words(spelled: Spelled, letters: int) -> list[Range]:
    pattern = rf"(?<![A-Za-z0-9])[A-Z]{{{letters}}}(?![A-Za-z0-9])"
    return [spelled.covering(m.start(), m.end()) for m in re.finditer(pattern, spelled.text)]


def _same_place(spelled: Spelled, occurrence: Range) -> list[Range]:
    """The stretch of every other sentence that lies as far from the nearer end of the sentence, in reading order."""
    sentences = [spelled.covering(m.start(), m.end()) for m in re.finditer(r"[^.!?]*[.!?]+|[^.!?]+$", spelled.text)]
    start, stop = occurrence
    home = next(((a, b) for a, b in sentences if a <= start < b), None)
    if home is None:
        return []
    before, after = start - home[0], home[1] - stop
    found = []
    for low, high in sentences:
        if (low, high) == home:
            continue
        place = low + before if before <= after else high - after - (stop - start)
        if low <= place and place + stop - start <= high:
            found.append((place, place + stop - start))
    return found
