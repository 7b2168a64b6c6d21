"""The processes that train one run together, and what they tell each other. Nothing is pickled on the way."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed

from pytest_behaviortrace.run import launch
from pytest_behaviortrace.run.integrity import IntegrityError

Job = TypeVar("Job")
PATIENCE = timedelta(days=7)
"""How long a process waits for the others: the first may itself wait for another session. The dead end their peers."""


@dataclass(frozen=True)
class Ranks:
    """This process's place among `count`, the first of which (rank 0) decides and publishes."""

    rank: int = 0
    count: int = 1
    device: str = "cpu"
    """Where tensors must lie to be sent."""

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            distributed.barrier()

    def tell(self, value: Any = None) -> Any:
        """What rank 0 gives, JSON, on every rank."""
        if self.count == 1:
            return value
        text = json.dumps(value).encode() if self.first else b""
        size = int(self._sent(torch.tensor([len(text)]), 0))
        made = torch.frombuffer(bytearray(text), dtype=torch.uint8) if self.first else torch.empty(size).byte()
        return json.loads(bytes(self._sent(made, 0).tolist()))

    def share(self, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors of rank 0, on the CPU, on every rank. Elsewhere `state` gives names, shapes and types."""
        if self.count == 1:
            return dict(state)
        return {name: self._sent(state[name], 0) for name in sorted(state)}

    def divide(self, jobs: Sequence[Job], work: Callable[[Job], Sequence[float]]) -> list[list[float]]:
        """What `work` makes of each job, on every rank; every process does some of them."""
        mine = {i: list(work(job)) for i, job in enumerate(jobs) if i % self.count == self.rank}
        if self.count == 1:
            return list(mine.values())
        made = []
        for i in range(len(jobs)):
            own, values = i % self.count, torch.tensor(mine.get(i, []), dtype=torch.float64)
            size = int(self._sent(torch.tensor([len(values)]), own))
            made.append(self._sent(values if i in mine else torch.empty(size, dtype=torch.float64), own).tolist())
        return made

    def check_same(self, state: Mapping[str, torch.Tensor]) -> None:
        """Raises `IntegrityError` unless all processes hold the same weights, bit for bit."""
        if self.count == 1:
            return
        digest = hashlib.sha256()
        for name in sorted(state):
            digest.update(state[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        if self.tell(digest.hexdigest()) != digest.hexdigest():
            raise IntegrityError(f"process {self.rank} ended at other weights than process 0")

    def _sent(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """A copy of rank `source`'s tensor, on the CPU."""
        copy = tensor.detach().to(self.device, copy=True).contiguous()
        distributed.broadcast(copy, src=source)
        return copy.cpu()


ALONE = Ranks()
"""One process, the usual case."""


@contextlib.contextmanager
def joined() -> Iterator[Ranks]:
    """This process among those that it was launched with; accelerate reads the environment.

    Raises `launch.CannotMeet`.
    """
    from accelerate import PartialState

    place, waiting = launch.meeting()
    if waiting:
        print(waiting, file=sys.stderr, flush=True)
    try:
        state = PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)
    except (distributed.DistError, ValueError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise launch.CannotMeet(f"the processes cannot meet at {place}: {why}") from error
    yield Ranks(int(state.process_index), int(state.num_processes), str(state.device))
    distributed.barrier()  # the first to leave would take the store away from the others
    distributed.destroy_process_group()  # not after an exception: others may be waiting
