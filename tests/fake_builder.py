"""A builder that writes tiny units in no time, for tests of the store's processes. Steered by `FAKE_BUILD` (JSON)."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np

from pytest_behaviortrace.run.store import Built, write_array, write_sketches, write_table

ROWS, WIDTH, PARTS = 12, 32, 5


def build_seed(recipe, seed, folder, progress):
    """Two sketch sets, a table and an analysis policy; content depends on the seed and on the option `flavor`."""
    return _build(f"seed{seed}", seed, folder, progress)


def build_draw(recipe, seed, draw, seed_unit, folder, progress):
    """A draw that notes which policy it read."""
    built = _build(f"seed{seed}-draw{draw}", 100 * seed + draw, folder, progress)
    weights = seed_unit.policy("analysis") / "model.safetensors"
    return Built({**built.facts, "read": weights.read_bytes().decode()}, built.timings)


def _build(unit: str, number: int, folder: Path, progress) -> Built:
    options = json.loads(os.environ.get("FAKE_BUILD", "{}"))
    _record(options, f"{unit} {os.getpid()}")
    began = time.perf_counter()
    rng = np.random.default_rng(number)
    if unit in options.get("fail", ()):
        print("about to fail")  # must land in the log, not among the events
        raise RuntimeError(f"{unit} does not want to")
    policy = folder / "policies" / "analysis"
    policy.mkdir(parents=True)
    weights = f"weights of {unit}, flavor {options.get('flavor', 'plain')}"
    (policy / "model.safetensors").write_bytes(weights.encode())
    for part in range(PARTS):
        progress(f"part {part}", part / PARTS)
        rows = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
        write_sketches(folder, f"part{part}", rows, np.linalg.norm(rows, axis=1))
        time.sleep(options.get("sleep", 0.0) / PARTS * (0.25 if "draw" in unit else 1.0))
    for _ in range(options.get("bulk", 0)):  # in half megabytes
        write_array(folder, "bulk", np.zeros(1 << 19, np.uint8))
    write_table(folder, "rollouts", {"row_id": range(ROWS), "text": ["x"] * ROWS})
    Path("litter.txt").write_text("libraries write into their working directory")
    _record(options, f"{unit} done")
    return Built({"flavor": options.get("flavor", "plain")}, {"parts": time.perf_counter() - began})


def _record(options, line: str) -> None:
    if "record" in options:
        with open(options["record"], "a", encoding="utf-8") as stream:
            stream.write(line + "\n")
