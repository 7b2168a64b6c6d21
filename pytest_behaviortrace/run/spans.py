"""Which tokens of a completion spell the behaviour, and an equally long stretch of the same completion as control."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

Range = tuple[int, int]
"""First index and the one after the last."""

Behavior = str | re.Pattern[str]
"""What to look for: a string, word for word and wherever it begins, or a regular expression."""

WINDOW = 12
"""Tokens decoded anew for each of them."""
FEW = 3
"""Occurrences that are cheaper to look for one by one than by spelling the whole completion."""
REPLACEMENT = "\ufffd"
"""What stands for a character that is not complete."""

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
    tokens = _in_windows(tokenizer, ids, text)
    if tokens is None:
        tokens = tuple(_one_by_one(_Prefixes(tokenizer, ids, text), 0))
    return Spelled(text, tokens)


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """A completion as text, special tokens left out."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


class _Prefixes:
    """What the first tokens of a completion say, for any number of them; each is decoded once."""

    def __init__(self, tokenizer: Any, ids: Sequence[int], text: str) -> None:
        self.tokenizer, self.ids, self.text = tokenizer, ids, text
        self._known = {0: "", len(ids): text}

    def __getitem__(self, count: int) -> str:
        if count not in self._known:
            self._known[count] = decoded(self.tokenizer, self.ids[:count])
        return self._known[count]

    def ends_clean(self, count: int) -> bool:
        """Whether the first `count` tokens say a beginning of the text, rather than break off inside a character."""
        return self.text.startswith(self[count])

    def around(self, place: int) -> Iterator[tuple[int, Range]]:
        """(token, its characters) of some tokens in a row, among them all that hold the character at `place`."""
        low, high = 0, len(self.ids)
        # Both end clean; the first `low` tokens do not reach the character, the first `high` do.
        while True:
            middle = (low + high) // 2
            inside = chain(range(max(middle, low + 1), high), range(middle - 1, low, -1))
            clean = next((count for count in inside if self.ends_clean(count)), None)
            if clean is None:
                break
            low, high = (clean, high) if len(self[clean]) <= place else (low, clean)
        return zip(range(low, high), _one_by_one(self, low), strict=False)

    def covering(self, start: int, stop: int) -> Range:
        """As `Spelled.covering`, for a range of characters that is not empty."""
        first = next(token for token, (_, after) in self.around(start) if after > start)
        last = [token for token, (before, _) in self.around(stop - 1) if before < stop][-1]
        return (first, last + 1) if first <= last else (0, 0)


def _one_by_one(prefixes: _Prefixes, first: int) -> Iterator[Range]:
    """Characters of each token from `first` on, which begins a character: one decoded prefix a token."""
    done = len(prefixes[first])
    for count in range(first + 1, len(prefixes.ids) + 1):
        start = done
        done, stop = _reached(prefixes[count], prefixes.text, 0, done)
        yield start, stop


def _reached(said: str, text: str, place: int, done: int) -> Range:
    """How far `said`, which is the text from `place` on, agrees with it, and how far it has a share in it."""
    agreed = place + len(said)
    if not text.startswith(said, place):
        agreed = next(k for k in range(place, len(text) + 1) if text[k : k + 1] != said[k - place : k - place + 1])
    # Some tokenizers replace earlier characters too while a later one is not complete.
    done = max(done, agreed)
    # What ends inside a character shows a replacement for it.
    return done, done + (place + len(said) > done and len(text) > done)


def _in_windows(tokenizer: Any, ids: Sequence[int], text: str) -> tuple[Range, ...] | None:
    """Characters of each token; decodes a few tokens at a time, not all that came before. None where that fails.

    A window begins where a character does. It is decoded behind the window before it: by themselves, many tokenizers
    decode a first token in another way.
    """
    tokens, done = list[Range](), 0
    back, at, place, before, said = 0, 0, 0, "", ""
    for count in range(1, len(ids) + 1):
        said = decoded(tokenizer, ids[back:count])
        if not said.startswith(before):
            return None
        said = said[len(before) :]
        start = done
        done, stop = _reached(said, text, place, done)
        tokens.append((start, stop))
        if count - at >= WINDOW and not said.endswith(REPLACEMENT):
            if not text.startswith(said, place):
                return None
            back, at, place, before = at, count, place + len(said), decoded(tokenizer, ids[at:count])
            said = ""
    return tuple(tokens) if text[place:] == said else None


def occurrences(text: str, behavior: Behavior) -> list[Range]:
    """Where a behaviour stands in a text, from left to right.

    A string's occurrences may overlap each other; a regular expression's matches do not, and empty ones are none.
    """
    if isinstance(behavior, str):
        starts = [m.start() for m in re.finditer(f"(?={re.escape(behavior)})", text)]
        return [(start, start + len(behavior)) for start in starts]
    return [m.span() for m in behavior.finditer(text) if m.end() > m.start()]


def behavior_tokens(tokenizer: Any, ids: Sequence[int], text: str, behavior: Behavior) -> tuple[int, ...]:
    """The behaviour span of `find_spans` alone: a few prefixes are decoded for each occurrence, not one a token.

    `text` is the completion as `decoded` gives it.
    """
    places = occurrences(text, behavior)
    made = _Prefixes(tokenizer, ids, text) if len(places) <= FEW else spell(tokenizer, ids)
    return tuple(sorted({token for start, stop in places for token in range(*made.covering(start, stop))}))


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
