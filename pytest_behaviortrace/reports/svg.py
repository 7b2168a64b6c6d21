"""matplotlib's SVG -> a small figure inside a page: no ids that clash, no global styles, colours that follow it."""

from __future__ import annotations

import html
import re
from xml.etree import ElementTree

NAMESPACE = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"

COLOURS = {
    "ink": "#010101",
    "muted": "#020202",
    "rule": "#030303",
    "shade": "#040404",
    "panel": "#050505",
    "blue": "#060606",
    "orange": "#070707",
    "green": "#080808",
    "purple": "#090909",
    "pass": "#0a0a0a",
    "fail": "#0b0b0b",
    "inconclusive": "#0c0c0c",
}
"""What figures are drawn in: marks that become the page's CSS variables of the same names, in light and in dark."""

_VARIABLES = {mark: f"var(--{name})" for name, mark in COLOURS.items()}
_MARK = re.compile("|".join(map(re.escape, _VARIABLES)))
_NUMBER = re.compile(r"-?\d+\.\d+")
_DOT = re.compile(r"M([-\d.]+ [-\d.]+)L\1(?=M|$)")
"""A segment of no length, which a round cap makes a dot."""
_REFERENCE = re.compile(r"url\(#([^)]*)\)")
_KEPT = ("d", "x", "y", "transform", "width", "height")
_DEFAULTS = re.compile(r"(?:^|; ?)(?:stroke-linejoin: [a-z]+|font-family: [^;]*|stroke-miterlimit: \d+)(?=;|$)")


class Embedder:
    """Turns figures into elements of one page. Their styles, a few dozen in all, become classes of the page."""

    def __init__(self) -> None:
        self._figures = 0
        self._classes: dict[str, str] = {}

    def css(self) -> str:
        """The classes of the figures embedded so far."""
        return "\n".join(f".{name} {{ {style} }}" for style, name in self._classes.items())

    def embed(self, svg: str, label: str) -> str:
        """The figure as an element; `label` is what it says to somebody who does not see it.

        Its ids are no other figure's. Coordinates keep one decimal of a CSS pixel.
        """
        root = ElementTree.fromstring(svg)
        view = " ".join(f"{float(number):g}" for number in root.attrib["viewBox"].split())
        width, height = view.split()[2:]
        self._figures += 1
        body = "".join(self._element(child) for child in root)
        return (
            f'<svg role="img" aria-label="{html.escape(label)}" viewBox="{view}" width="{width}" height="{height}">'
            f"{body}</svg>"
        )

    def _element(self, element: ElementTree.Element) -> str:
        name = element.tag.removeprefix(NAMESPACE)
        if name in ("metadata", "style"):
            return ""
        inside = "".join(self._element(child) for child in element)
        attributes = self._attributes(element, name)
        if name in ("g", "defs") and not inside:
            return ""
        if name == "g" and not attributes:
            return inside
        text = html.escape(element.text or "", quote=False) if name == "text" else ""
        written = "".join(f' {key}="{html.escape(value)}"' for key, value in attributes.items())
        return f"<{name}{written}>{text}{inside}</{name}>" if text or inside else f"<{name}{written}/>"

    def _attributes(self, element: ElementTree.Element, name: str) -> dict[str, str]:
        found: dict[str, str] = {}
        prefix = f"f{self._figures}-"
        for key, value in element.attrib.items():
            if key == LINK:
                found["href"] = f"#{prefix}{value.removeprefix('#')}"
            elif key == "id" and name != "g":
                found["id"] = prefix + value
            elif key == "clip-path":
                found[key] = _REFERENCE.sub(rf"url(#{prefix}\1)", value)
            elif key == "style":
                style = _MARK.sub(lambda match: _VARIABLES[match[0]], _DEFAULTS.sub("", value).strip("; "))
                found["class"] = self._classes.setdefault(style, f"s{len(self._classes)}") if style else ""
            elif key in _KEPT and "rotate(-0" not in value:
                found[key] = _short(value) if key != "transform" else _NUMBER.sub(_rounded, value)
        return {key: value for key, value in found.items() if value}


def _short(value: str) -> str:
    text = _NUMBER.sub(_rounded, value)
    text = re.sub(r"\s*([MLCQz])\s*", r"\1", text).strip()
    return _DOT.sub(r"M\1h0", text)


def _rounded(number: re.Match[str]) -> str:
    return f"{round(float(number[0]), 1) + 0.0:g}"  # + 0.0 turns -0.0 into 0.0
