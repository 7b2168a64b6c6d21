"""What every test may rely on, however the suite was started."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

# For processes of the suite as well, workers of xdist among them: two that compute on two threads each wait for each
# other on two cores. Set before any of them loads numpy.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure() -> None:
    """A suite started in the background ignores Ctrl-C, and so would every process a test starts and interrupts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
