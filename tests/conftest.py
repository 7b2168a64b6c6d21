"""What every test may rely on, however the suite was started."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A suite started in the background ignores Ctrl-C, and so would every process a test starts and interrupts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
