"""What every test may rely on, however the suite was started."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

# For processes of the suite as well, workers of xdist among them: two that compute on two threads each wait for each
# other on two cores. Set before any of them loads numpy.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure() -> None:
    """A suite started in the background ignores Ctrl-C, and so would every process a test starts and interrupts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What is imported stays. TRL makes a million objects, and accelerate looks for garbage among all before a run."""
    gc.disable()
    try:
        return (yield)
    finally:
        if "torch" in sys.modules:
            import hypothesis  # noqa: F401 - it asks the collector who holds a random number generator

            gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Where torch is loaded, tests compute on one thread: for tiny tensors more of them cost more than they bring."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# What several modules need is imported when it is asked for: most tests load neither selenium nor torch.
@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium without a window, for one module."""
    from browsing import opened_browser

    with opened_browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens the page of a scorecard (`browsing.shown`)."""
    from browsing import shown

    with shown(browser, tmp_path) as opened:
        yield opened


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run of `recording_process`, uninterrupted: its trainer and its record."""
    import recording_process

    from pytest_behaviortrace import record
    from pytest_behaviortrace.run.recorded import open_run

    base = tmp_path_factory.mktemp("whole")
    trainer = recording_process.trainer(base / "work")
    record(trainer, base / "record", behaviors=recording_process.BEHAVIORS, width=recording_process.WIDTH)
    trainer.train()
    return trainer, open_run(base / "record")
