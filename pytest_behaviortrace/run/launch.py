"""Whether this process was started as one of several, by `accelerate launch` or `torchrun`, and what it may inherit."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pytest_behaviortrace.run.recipe import Recipe

_BY_ACCELERATE, _BY_TORCHRUN = "ACCELERATE_MIXED_PRECISION", "LOCAL_RANK"
_PREFIXES = ("PMI_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_", "WORLD_")
"""Of the variables that tell the number of processes, in the order in which accelerate asks for them."""
_SHARDING = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism config",
}
_OF_A_LAUNCH = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
)  # fmt: skip


class WrongLaunch(ValueError):
    """Processes were started in a way in which they cannot make a run together; the message says what to do."""


class CannotMeet(RuntimeError):
    """The processes that were started together found no way to each other; the message says where, and why."""


@dataclass(frozen=True)
class Launch:
    """This process is number `rank` of `count` that were started together."""

    rank: int
    count: int


def found(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """How this process was started; None if it was started alone.

    Raises `WrongLaunch` if several processes were asked for and only one was started, or if parameters would be
    divided among them.
    """
    by_accelerate = _BY_ACCELERATE in environment
    if not by_accelerate and _BY_TORCHRUN not in environment:
        return None
    for prefix in _PREFIXES:
        size = "WORLD_SIZE" if prefix == "WORLD_" else f"{prefix}SIZE"
        rank = "RANK" if prefix == "WORLD_" else f"{prefix}RANK"
        if size in environment:
            if int(environment[size]) < 2:
                return None
            if used := [what for name, what in _SHARDING.items() if environment.get(name, "").lower() == "true"]:
                raise WrongLaunch(
                    f"processes that share their parameters ({', '.join(used)}) cannot be recorded; launch plain data "
                    f"parallelism (--multi_gpu)"
                )
            return Launch(int(environment[rank]), int(environment[size]))
    if by_accelerate and "MASTER_PORT" in environment:
        # Without --multi_gpu and mpirun, accelerate names a meeting point and starts one process.
        raise WrongLaunch(
            "accelerate was asked for several processes and started one; launch them with `accelerate launch "
            "--multi_gpu --num_processes N` (without a GPU, too: they then run on the CPU) or `torchrun "
            "--nproc-per-node N`"
        )
    return None


def meeting(environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Where the processes meet, and a sentence on who is waited for: empty where a launcher sees to it that they come.

    Started by hand, a process whose peers are missing would wait for days without a word.
    """
    # Where nothing is said: what accelerate sets.
    place = f"{environment.get('MASTER_ADDR', '127.0.0.1')}:{environment.get('MASTER_PORT', '29500')}"
    launched = found(environment)
    if launched is None or "TORCHELASTIC_RUN_ID" in environment:
        return place, ""
    return place, f"waiting for {launched.count} processes at {place} (rank {launched.rank} of {launched.count})"


def forget() -> None:
    """Has no process that is started from here take itself for one of several."""
    for name in _OF_A_LAUNCH:
        os.environ.pop(name, None)


def leave(code: int) -> NoReturn:
    """Ends the process with an exit code; one of a launch at once, without clearing up the interpreter.

    Threads that a process group leaves behind may ask for the interpreter while it is taken down, and then abort the
    process (SIGABRT), all work done: its launcher would call the launch failed.
    """
    if not {_BY_ACCELERATE, _BY_TORCHRUN} & os.environ.keys():
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # what could not be printed was told before
            stream.flush()
    os._exit(code)


def settle(recipe: Recipe) -> None:
    """Sets what a worker process has in its environment, before heavy libraries are loaded.

    What accelerate's own configuration says of precision and compilation gives way to the recipe.
    """
    from pytest_behaviortrace.run.process import ENVIRONMENT

    os.environ.update(ENVIRONMENT)
    os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16" if recipe.grpo.precision == "bfloat16" else "no"
    os.environ["ACCELERATE_DYNAMO_BACKEND"] = "NO"
    os.environ.pop("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", None)
