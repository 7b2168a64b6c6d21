"""Standard output that ends before a command does: readers that leave, full disks. In real processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import golden_cards
import pytest
from surface import QUIET

from pytest_behaviortrace import output
from pytest_behaviortrace.reports import files

FULL = Path("/dev/full")
LISTING = (sys.executable, "-m", "pytest", *QUIET, "-p", "no:cacheprovider", "--bt-list")


def command(*args: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "pytest_behaviortrace", *args)


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """Two reports with regressions, which is exit code 1."""
    card = golden_cards.planted(*(f"gas{number}" for number in range(300)))
    files.write(card, tmp_path / "old.json")
    files.write(replace(card, rows=[replace(row, verdict="n/a") for row in card.rows]), tmp_path / "new.json")
    return tmp_path


COMMANDS = {
    "compare": command("compare", "old.json", "new.json"),
    "compare --json": command("compare", "old.json", "new.json", "--json"),
    "list": command("list"),
    "cache": command("cache", "list", "--cache-dir", "nowhere"),
    "cache key": command("cache", "key"),
    "help": command("--help"),
    "help of one": command("compare", "--help"),
    "pytest --bt-list": LISTING,
}
ALL = pytest.mark.parametrize("argv", COMMANDS.values(), ids=COMMANDS)
BUFFERED = pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])


def closed_pipe() -> int:
    """The writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def ran(argv: tuple[str, ...], folder: Path, out: int, unbuffered: str = "", **more) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "BEHAVIORTRACE_CACHE": "nowhere"}
    try:
        return subprocess.run(
            argv, cwd=folder, stdout=out, env=env, text=True, timeout=120, check=False,
            **{"stderr": subprocess.PIPE, **more},
        )  # fmt: skip
    finally:
        os.close(out)


@ALL
@BUFFERED
def test_a_reader_that_left_ends_a_command_quietly(argv, unbuffered, reports):
    done = ran(argv, reports, closed_pipe(), unbuffered)
    assert (done.returncode, done.stderr) == (output.CLOSED, "")


@ALL
@BUFFERED
@pytest.mark.skipif(not FULL.exists(), reason="a system without /dev/full")
def test_a_full_disk_is_one_sentence(argv, unbuffered, reports):
    done = ran(argv, reports, os.open(FULL, os.O_WRONLY), unbuffered)
    assert done.returncode == output.UNWRITTEN
    why = os.strerror(errno.ENOSPC)
    assert done.stderr == f"error: the output could not be written: {why}; free the disk, or write elsewhere\n"


def test_a_reader_that_leaves_after_the_first_line_has_it(reports):
    """As `| head -1`: much is printed, so the pipe is full long before the end."""
    with subprocess.Popen(
        command("compare", "old.json", "new.json"), cwd=reports, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        first = running.stdout.readline()
        running.stdout.close()
        told = running.stderr.read()
    assert first.startswith(b"against old.json: 1502 regressions")
    assert (running.returncode, told) == (output.CLOSED, b"")


def test_who_reads_to_the_end_has_everything(reports):
    done = subprocess.run(
        command("compare", "old.json", "new.json"), cwd=reports, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout.count("\n") == 1 + 1502


def test_complaints_that_nobody_reads_are_no_regression(reports):
    """Standard error is a closed pipe too: `2>&1 | head -0`."""
    for argv in (command("compare", "old.json", "absent.json"), command("frobnicate")):
        out = closed_pipe()
        assert ran(argv, reports, out, stderr=out).returncode == output.CLOSED


def test_streams_that_were_closed_before_the_command_are_no_trouble(reports):
    argv = " ".join(command("compare", "old.json", "new.json"))
    done = subprocess.run(["sh", "-c", f"{argv} >&- 2>&-"], cwd=reports, check=False)
    assert done.returncode == 1


class Refusing:
    """A stream on which everything fails, and the rest is as ever."""

    encoding = "utf-8"

    def __init__(self, error: OSError) -> None:
        self.error = error

    def write(self, text: str) -> int:
        raise self.error

    def flush(self) -> None:
        """Nothing is ever kept back."""


def test_trouble_with_other_files_is_not_taken_for_that_of_the_output(capsys):
    """A pipe to a worker that died breaks too, and a cache fills its disk."""

    def broken() -> int:
        raise BrokenPipeError(errno.EPIPE, "of a worker")

    with pytest.raises(BrokenPipeError, match="of a worker"):
        output.guarded(broken)
    assert capsys.readouterr() == ("", "")


def test_commands_that_take_care_of_os_errors_do_not_swallow_a_lost_output(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Refusing(BrokenPipeError()))

    def careful() -> int:
        try:
            print("a line")
        except OSError:
            return 0
        return 0

    assert output.guarded(careful) == output.CLOSED
    assert isinstance(sys.stdout, Refusing)


def test_what_a_stream_has_beside_its_text_is_still_there():
    seen = []
    assert output.guarded(lambda: seen.append((sys.stdout.encoding, sys.stdout.isatty())) or 0) == 0
    assert seen == [(sys.stdout.encoding, sys.stdout.isatty())]
