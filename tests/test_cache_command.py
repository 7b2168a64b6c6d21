"""`cache key`: one line that changes with everything that determines a run, and with nothing else."""

from __future__ import annotations

import re

import pytest

from pytest_behaviortrace.__main__ import main
from pytest_behaviortrace.run import cache


def key(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["cache", "key", *args]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    return line


def test_the_key_is_one_line_that_a_ci_takes(capsys):
    found = key(capsys, "--recipe", "tiny")
    assert re.fullmatch(r"tiny-[0-9a-f]{12}-seeds0\.1\.2-draws2", found)
    assert found == key(capsys)


def test_the_key_follows_recipe_seeds_draws_suite_and_libraries(capsys, monkeypatch):
    plain = key(capsys)
    found = [plain, key(capsys, "--seeds", "0-3"), key(capsys, "--draws", "3"), key(capsys, "--recipe", "qwen2.5-1.5b")]
    monkeypatch.setattr(cache, "library_versions", lambda: {"torch": "1", "transformers": "1", "trl": "1"})
    found.append(key(capsys))
    monkeypatch.setattr(cache, "SUITE", "1.1")
    found.append(key(capsys))
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("key", "--recipe", "huge"), "unknown recipe 'huge'"),
        (("key", "--stale"), "say what `cache clear` clears"),
        (("list", "--seeds", "0"), "say what `cache missing` and `cache key` are about"),
    ],
)
def test_a_key_that_cannot_be_is_a_usage_error(args, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["cache", *args])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
