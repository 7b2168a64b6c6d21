"""Python and libraries out of range: one sentence before training, from package metadata alone."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from surface import QUIET, Repo

from pytest_behaviortrace import grade, installed
from pytest_behaviortrace.installed import WrongVersions, wrong_versions

OTHER = """
import importlib.metadata as metadata
found = metadata.version
metadata.version = lambda name: {"trl": "0.9.4"}.get(name) or found(name)
"""
"""A sitecustomize that pretends to another TRL."""
SENTENCE = "installed here: trl 0.9.4; pytest-behaviortrace works with other versions: pip install 'trl<1.17,>=1.16'"


def pretend(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name in versions:
            if (pretended := versions[name]) is None:
                raise metadata.PackageNotFoundError(name)
            return pretended
        return real(name)

    monkeypatch.setattr(installed.metadata, "version", version)


def test_what_is_installed_here_is_in_range() -> None:
    assert wrong_versions() is None


def test_everything_out_of_range_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, torch="2.1.0+cu118", transformers="4.57.1", trl=None)
    assert wrong_versions() == (
        "installed here: torch 2.1.0+cu118, transformers 4.57.1, trl is not installed; pytest-behaviortrace works with "
        "other versions: pip install 'torch>=2.6' 'transformers>=5.0' 'trl<1.17,>=1.16'"
    )


@pytest.mark.parametrize("version", ["2.6.0", "2.13.0+cpu", "2.14.0.dev20260101+cu130", "3.0"])
def test_builds_for_one_machine_and_previews_count_by_their_number(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    pretend(monkeypatch, torch=version)
    assert wrong_versions() is None


def test_an_extra_that_is_not_installed_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, **{"scikit-learn": None, "pytest-xdist": None})
    assert wrong_versions() is None


def test_another_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed.platform, "python_version", lambda: "3.10.14")
    assert wrong_versions() == (
        "this is Python 3.10.14, and pytest-behaviortrace needs Python >=3.11; install it into an environment with that"
    )


def test_grade_refuses_before_it_trains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, numpy="1.20")
    with pytest.raises(WrongVersions, match=r"installed here: numpy 1\.20; .* pip install 'numpy>=1\.26'"):
        grade("gas", cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def repo(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Repo:
    repo = Repo(pytester, monkeypatch)
    folder = pytester.mkdir("pretended")
    folder.joinpath("sitecustomize.py").write_text(OTHER, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return repo


def test_a_session_ends_with_exit_code_4(repo: Repo) -> None:
    result = repo.run("--bt-estimator=good")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.errlines == [f"ERROR: {SENTENCE}", ""]
    assert repo.trained() == []


def test_an_inactive_run_does_not_look(repo: Repo) -> None:
    repo.pytester.runpytest_subprocess(*QUIET).assert_outcomes(passed=1)


@pytest.mark.parametrize("command", [("train",), ("calibrate",), ("rank", "run", "--behavior=x", "--estimator=gas")])
def test_a_command_ends_with_exit_code_2(repo: Repo, command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_behaviortrace", *command, f"--cache-dir={repo.path / 'cache'}"],
        capture_output=True, text=True, env=os.environ, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(SENTENCE)
    assert not (repo.path / "cache").exists()
