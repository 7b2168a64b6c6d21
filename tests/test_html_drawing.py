"""What the HTML report draws with: colours that stand out in both themes, a matplotlib that leaves nothing behind."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

from exhibited import scorecard

from pytest_behaviortrace.reports import html


# -- colours -----------------------------------------------------------------------------------------------------------
def themes() -> list[dict[str, str]]:
    """The variables of the light theme and of the two places that set the dark one."""
    style = html.render(scorecard((), points=1)).partition("<style>")[2].partition("</style>")[0]
    blocks = [block for block in re.findall(r"\{([^{}]*)\}", style) if "--bg:" in block]
    return [dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block)) for block in blocks]


def contrast(first: str, second: str) -> float:
    """WCAG 2.2's contrast ratio."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_and_marks_stand_out_in_both_themes():
    light, dark, toggled = themes()
    assert dark == toggled
    assert set(light) == set(dark)
    for theme in (light, dark):
        for kind in ("pass", "fail", "open", "none", "error"):
            assert contrast(theme[f"{kind}-bg"], theme[f"{kind}-ink"]) >= 4.5, kind
        for name in ("ink", "muted", "link", "blue", "orange", "green", "purple", "pass", "fail", "inconclusive"):
            assert contrast(theme["bg"], theme[name]) >= 4.5, name
        assert contrast(theme["raised"], theme["muted"]) >= 4.5
        assert contrast(theme["shade"], theme["ink"]) >= 4.5


# -- matplotlib --------------------------------------------------------------------------------------------------------
def test_drawing_writes_no_file_and_changes_no_setting(tmp_path):
    """In a new process with an empty home: not even matplotlib's font list and folders, and no pyplot."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    (home / ".config" / "matplotlib").mkdir(parents=True)
    (home / ".config" / "matplotlib" / "matplotlibrc").write_text("lines.linewidth: 7\naxes.facecolor: red\n")
    code = """
import hashlib, os, sys
from exhibited import scorecard
from pytest_behaviortrace.reports import html
before = dict(os.environ)
text = html.render(scorecard(("gas",), points=20, rollouts=2))
import matplotlib
assert matplotlib.rcParams["lines.linewidth"] == 7, "the user's own settings are lost"
assert matplotlib.get_configdir() == os.path.expanduser("~/.config/matplotlib")
assert "matplotlib.pyplot" not in sys.modules
assert dict(os.environ) == before
print(hashlib.sha256(text.encode()).hexdigest())
"""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MPL", "MATPLOTLIB", "XDG_"))}
    environment = {
        **kept,
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "PYTHONPATH": str(Path(__file__).parent),
        "PYTHONHASHSEED": "7",
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    here = html.render(scorecard(("gas",), points=20, rollouts=2))
    assert done.stdout.strip() == hashlib.sha256(here.encode()).hexdigest(), (
        "the same bytes whatever the user's settings"
    )
    assert sorted(p for p in home.rglob("*") if p.is_file()) == [home / ".config" / "matplotlib" / "matplotlibrc"]
    assert list(temporary.iterdir()) == []


def test_a_grading_session_loads_neither_matplotlib_nor_jinja():
    code = "import sys, pytest_behaviortrace.plugin, pytest_behaviortrace.session\n"
    code += "assert not {'matplotlib', 'jinja2'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
