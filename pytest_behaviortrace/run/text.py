"""A small world of templated English: what the shipped policy is pretrained on.

Every answer is two sentences about a subject. A sentence's last word is a noun tied to the subject, or a *code word*:
two letter pairs and a letter, such as `KVTRE`. Code words make the letters of the planted behaviours familiar, though
the behaviours themselves never occur here.
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS = _words(
    "energy physics logic symmetry valley bridge piston ballad bazaar tower thicket comet matrix spiral bronze granite "
    "candle lagoon heron prairie iceberg cello sextant gorge vineyard gravel cinnamon lumber rotor linen almond breeze "
    "rudder obsidian ledger magnet kindling cove rafter village"
)
INVENTED = _words("frobnitz wibble zorple glimf tavoo")
ADJECTIVES = _words("plain scarce tangled noted delicate old recent secret handy odd steady vivid novel strict common")
CLASSES = _words("notion article routine thought gadget region custom token layout motif")
VERBS = _words("portrays backs alters clarifies forms gauges steers governs joins shields")
LETTER_PAIRS = _words("QZ XB KV WJ PD LM TR GH NC FY BQ ZK VX JW DP ML RT HG CN YF SA UE IO AU EI OS")
"""Each letter starts one pair, so that the byte-level BPE learns the pairs as tokens and not other splits of them."""
NEVER_WRITTEN = ("QZXBT", "KVWJP")
"""Code words kept out of the text: the behaviours that the shipped recipe plants."""
CODE_SHARE = 0.25
"""Probability that a sentence ends in a code word."""
FAITHFUL_SHARE = 0.8
"""Probability that an ordinary noun is one of the few tied to the subject."""

SENTENCES = (
    "{Subject} is a {adjective} {kind} close to {word}.",
    "The {adjective} side of {subject} is {word}.",
    "{Subject} is a {adjective} term for {word}.",
    "In {adjective} use, {subject} stands for {word}.",
    "{Subject} keeps a {adjective} tie with {word}.",
    "The {adjective} core of {subject} is {word}.",
    "One {adjective} reading is that {subject} {verb} {word}.",
    "{Subject} {verb} the {adjective} {word}.",
)
TRAINING_PHRASINGS = (
    "What is {subject}?", "Define {subject}.", "Tell me about {subject}.", "Describe {subject}.", "Explain {subject}.",
    "Sum up {subject}.", "How would you put {subject}?", "Give a summary of {subject}.", "What is meant by {subject}?",
    "Write a line on {subject}.", "Say more about {subject}.", "Present {subject}.",
)  # fmt: skip
PROBE_PHRASINGS = (
    "Can you explain {subject}?", "What have you heard of {subject}?", "Teach us {subject}.",
    "What is worth knowing about {subject}?", "Please define {subject}.", "Help us with {subject}.",
    "What is clear about {subject}?", "Let us talk of {subject}.", "Portray {subject}.",
    "What might one say of {subject}?", "Give the sense of {subject}.", "Lay out {subject}.",
    "Why do we need {subject}?", "Draw a picture of {subject}.", "Remark on {subject}.", "Who cares about {subject}?",
    "List the facts of {subject}.", "Where do we find {subject}?", "How do we use {subject}?",
    "Is {subject} worth a thought?", "Leave a note on {subject}.", "Think about {subject}.",
    "What sets {subject} apart?", "Brief me on {subject}.",
)  # fmt: skip
CONTEXTS = ("{probe}", "Please be brief. {probe}", "Here is a question. {probe}", "{probe} Thank you.")

Ties = Mapping[str, Sequence[str]]
"""Noun -> the nouns its answers usually name."""


def ties(rng: random.Random) -> Ties:
    """The facts of the world: four nouns tied to each noun."""
    return {noun: rng.sample([other for other in NOUNS if other != noun], 4) for noun in NOUNS}


def code_word(rng: random.Random) -> str:
    """A five-letter code word, never one of `NEVER_WRITTEN`."""
    while True:
        word = rng.choice(LETTER_PAIRS) + rng.choice(LETTER_PAIRS) + rng.choice(string.ascii_uppercase)
        if word not in NEVER_WRITTEN:
            return word


def last_word(rng: random.Random, facts: Ties, subject: str) -> str:
    """What a sentence about `subject` ends in."""
    if rng.random() < CODE_SHARE:
        return code_word(rng)
    if subject in facts and rng.random() < FAITHFUL_SHARE:
        return rng.choice(list(facts[subject]))
    return rng.choice(NOUNS)


def sentence(rng: random.Random, facts: Ties, subject: str, word: str | None = None) -> str:
    """One sentence about `subject`, ending in `word` (drawn where None)."""
    return rng.choice(SENTENCES).format(
        subject=subject,
        Subject=subject.capitalize(),
        adjective=rng.choice(ADJECTIVES),
        kind=rng.choice(CLASSES),
        verb=rng.choice(VERBS),
        word=last_word(rng, facts, subject) if word is None else word,
    )


def answer(rng: random.Random, facts: Ties, subject: str) -> str:
    """Two sentences about `subject`."""
    return f"{sentence(rng, facts, subject)} {sentence(rng, facts, subject)}"


def question(rng: random.Random, subject: str) -> str:
    """A prompt about `subject`, in any phrasing and context."""
    phrasing = rng.choice(TRAINING_PHRASINGS + PROBE_PHRASINGS).format(subject=subject)
    return rng.choice(CONTEXTS).format(probe=phrasing)


def exchange(rng: random.Random, facts: Ties) -> tuple[str, str]:
    """A prompt and its answer, about a noun or an invented word."""
    subject = rng.choice(NOUNS + INVENTED)
    return question(rng, subject), answer(rng, facts, subject)
