"""Writing reports: whole or not at all, whatever happens on the way; and which formats there are."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import golden_cards
import pytest

from pytest_behaviortrace.reports import csv as csv_report
from pytest_behaviortrace.reports import files, markdown
from pytest_behaviortrace.reports import json as json_report

PROGRAM = """
import os, resource, sys
from pathlib import Path
from pytest_behaviortrace.reports import files
if sys.argv[2] == "small":  # as on a full disk, writing more than this fails
    import signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
if sys.argv[2] == "hang":
    os.chmod = lambda *args: (print("written", flush=True), sys.stdin.read())
try:
    files.replace(Path(sys.argv[1]), "new" * 100_000)
except OSError as error:
    sys.exit(f"errno {error.errno}")
"""


def writing(path: Path, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_the_suffix_picks_the_format(tmp_path):
    card = golden_cards.planted()
    for name, render in (("a.json", json_report.render), ("a.md", markdown.render), ("a.CSV", csv_report.render)):
        files.write(card, tmp_path / "new" / name)
        path = tmp_path / "new" / name
        assert path.read_bytes().decode() == render(card)
        assert stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a.CSV", "a.json", "a.md"]
    assert files.wants_exhibits([Path("a.json"), Path("b.Html")])
    assert not files.wants_exhibits([Path("a.json"), Path("html.md")])


def test_a_full_disk_leaves_the_report_that_was_there(tmp_path):
    path = tmp_path / "card.json"
    path.write_text("the old one")
    process = writing(path, "small")
    _, told = process.communicate(timeout=60)
    assert told.strip() == f"errno {errno.EFBIG}"
    assert path.read_text() == "the old one"
    assert [p.name for p in tmp_path.iterdir()] == ["card.json"]


def test_a_killed_writer_leaves_the_report_that_was_there(tmp_path):
    path = tmp_path / "card.json"
    path.write_text("the old one")
    process = writing(path, "hang")
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert path.read_text() == "the old one"
    (left,) = set(tmp_path.iterdir()) - {path}
    files.replace(tmp_path / "other.json", "another")
    assert left.exists()
    files.replace(path, "the new one")
    assert path.read_text() == "the new one"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["card.json", "other.json"]


def test_what_a_living_writer_is_at_is_left_to_it(tmp_path):
    path = tmp_path / "card.json"
    process = writing(path, "hang")
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    (at_work,) = tmp_path.iterdir()
    files.replace(path, "ours")
    assert sorted(tmp_path.iterdir()) == sorted([path, at_work])
    assert path.read_text() == "ours"
    process.communicate(timeout=60)  # it may go on
    assert process.returncode == 0
    assert path.read_text() == "new" * 100_000
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_was_swept_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    """The moment between making a file and locking it, in which it looks like one of the dead."""
    path, swept, lock = tmp_path / "card.json", [], files.fcntl.flock

    def late(handle, how):
        if not swept:
            swept.extend(tmp_path.iterdir())
            swept[0].unlink()
        lock(handle, how)

    monkeypatch.setattr(files.fcntl, "flock", late)
    files.replace(path, "text")
    assert len(swept) == 1
    assert path.read_text() == "text"
    assert list(tmp_path.iterdir()) == [path]


def test_without_locks_reports_are_written_and_nothing_is_swept(tmp_path, monkeypatch):
    def none(handle, how):
        raise OSError(errno.ENOLCK, "No locks available")

    left = tmp_path / ".card.json.ab12_xyz.part"
    left.write_text("perhaps somebody's")
    monkeypatch.setattr(files.fcntl, "flock", none)
    files.replace(tmp_path / "card.json", "one")
    monkeypatch.setattr(files, "fcntl", None)  # as on Windows
    files.replace(tmp_path / "card.json", "two")
    assert (tmp_path / "card.json").read_text() == "two"
    assert sorted(path.name for path in tmp_path.iterdir()) == [left.name, "card.json"]


def test_only_files_of_ones_own_pattern_are_swept(tmp_path):
    own = [".card.json.ab12_xyz.part", ".card.json.aaaaaaaa.part"]
    others = [
        ".card.json.ab12_xyz", ".card.json.ab12.part", ".card.json.AB12_XYZ.part", ".card_json.ab12_xyz.part",
        "card.json.ab12_xyz.part", ".card.json.bak", ".x.card.json.ab12_xyz.part", ".card.json.ab12_xyz.part.old",
    ]  # fmt: skip
    for name in (*own, *others):
        (tmp_path / name).write_text("someone's")
    (tmp_path / "kept").write_text("someone's")
    (tmp_path / ".card.json.linklink.part").symlink_to(tmp_path / "kept")
    (tmp_path / ".card.json.folderxx.part").mkdir()
    os.mkfifo(tmp_path / ".card.json.pipepipe.part")
    before = {path.name for path in tmp_path.iterdir()}
    files.replace(tmp_path / "card.json", "text")
    assert {path.name for path in tmp_path.iterdir()} == before - set(own) | {"card.json"}


def test_a_renderer_that_breaks_leaves_the_report_that_was_there(tmp_path, monkeypatch):
    def broken(scorecard):
        raise RuntimeError("no fonts")

    path = tmp_path / "card.md"
    path.write_text("the old one")
    monkeypatch.setattr(markdown, "render", broken)
    with pytest.raises(RuntimeError, match="no fonts"):
        files.write(golden_cards.planted(), path)
    assert path.read_text() == "the old one"
    assert [p.name for p in tmp_path.iterdir()] == ["card.md"]


def test_an_interrupted_writer_takes_its_temporary_file_along(tmp_path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.replace(tmp_path / "card.json", "text")
    assert list(tmp_path.iterdir()) == []


def test_readers_never_see_half_a_report(tmp_path):
    """Whoever reads while others write sees one of the whole texts."""
    path, texts = tmp_path / "card.json", ["a" * 500_000, "b" * 500_000]
    files.replace(path, texts[0])
    end = time.monotonic() + 0.5

    def write(text):
        while time.monotonic() < end:
            files.replace(path, text)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    seen = set()
    while time.monotonic() < end:
        seen.add(path.read_text())
    for thread in threads:
        thread.join()
    assert seen <= set(texts)
    assert [p.name for p in tmp_path.iterdir()] == ["card.json"]


def test_what_utf8_cannot_hold_costs_no_report(tmp_path):
    import json

    files.replace(tmp_path / "a.json", '{"reason": "file \udce9"}')
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"reason": "file \udce9"}


def test_a_read_only_folder_is_an_error_and_stays_as_it_was(tmp_path):
    tmp_path.chmod(0o500)
    folder = tmp_path if os.geteuid() else Path("/proc/self")  # root writes everywhere but there
    with pytest.raises(OSError, match="card"):
        files.replace(folder / "card.json", "text")
    assert not [path for path in folder.iterdir() if "card.json" in path.name]
