"""Text that somebody else wrote -> text that cannot act on the page around it: names, reasons, patterns, paths.

Escaping markup is not enough: a right-to-left override in a name reorders what stands after it, a control character is
invisible, and an exception's message may be megabytes.
"""

from __future__ import annotations

LONGEST = 1_500
"""Characters of one text; far beyond any that this package writes."""


def visible(text: object, lines: bool = False) -> str:
    r"""Whatever is not to be seen (control, format and bidi characters) as an escape such as `\x1b` or `\u202e`.

    `lines`: line ends and tabs stay, and other kinds of space become ordinary ones.
    """
    return "".join(_letter(letter, lines) for letter in _cut(str(text)))


def _letter(letter: str, lines: bool) -> str:
    if letter.isprintable():
        return letter
    if lines and letter.isspace():
        return letter if letter in "\n\t" else " "
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _cut(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]} … (cut: {len(text) - LONGEST:,} more characters; the JSON and CSV reports have them)"
