"""Starts the processes of a launched run for tests: real ones, meeting at a free port, all gone at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS = 240.0
"""After this a launch has hung, and is killed; one takes 10-20 s on two busy cores."""
LAUNCH = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0")


@contextlib.contextmanager
def launched(home: Path, *arguments: str, launcher: tuple[str, ...] = LAUNCH) -> Iterator[subprocess.Popen[str]]:
    """Two processes of `accelerate launch`, which run `arguments`; whatever is left of them is killed afterwards."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ACCELERATE_", "PYTEST"))}
    environment |= {"HF_HOME": str(home / "hf"), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
    process = subprocess.Popen(
        [sys.executable, *launcher, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=home,
        start_new_session=True,
    )

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    hung = threading.Timer(SECONDS, kill)  # whoever reads its output then comes to the end of it
    hung.start()
    try:
        yield process
    finally:
        hung.cancel()
        kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def launch(home: Path, *arguments: str, **settings: Any) -> tuple[int, str]:
    """Exit code and output of a launch."""
    with launched(home, *arguments, **settings) as process:
        out, _ = process.communicate()
        return process.returncode, out
