"""The calibration on the real run: its marginals are the recorded ones, and the command measures through the checks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from check_rows import SEEDS

from pytest_behaviortrace import statistics
from pytest_behaviortrace.calibration.marginals import Marginals, measure
from pytest_behaviortrace.calibration.synthetic import SyntheticEvidence
from pytest_behaviortrace.calibration.world import Dials
from pytest_behaviortrace.evidence import MATCHED, EvidenceStore
from pytest_behaviortrace.run.store import Store


@pytest.fixture(scope="module")
def marginals(evidence: EvidenceStore) -> Marginals:
    return measure(evidence, SEEDS)


def test_sizes_are_those_of_the_recipe(marginals: Marginals, evidence: EvidenceStore) -> None:
    recipe = evidence.recipe
    assert (marginals.steps, marginals.cutoff) == (recipe.grpo.steps, recipe.cutoff)
    assert marginals.prompts * marginals.generations == recipe.grpo.batch_size
    assert marginals.probes * marginals.contexts * marginals.siblings_each == len(evidence.siblings(0, 0).shown)


def test_synthetic_confounds_are_as_strong_as_the_recorded_ones(marginals: Marginals, evidence: EvidenceStore) -> None:
    def readings(source: EvidenceStore) -> np.ndarray:
        siblings, spans = source.siblings(0, 0), source.spans(0, 0)
        pairs = statistics.within_group_pairs(siblings.shown, siblings.group)
        matched = statistics.Pairs(*spans.pairs(MATCHED))
        return np.array([
            statistics.auc(siblings.logprob, pairs), statistics.auc(siblings.norm, pairs), siblings.shown.mean(),
            statistics.auc(spans.logprob, matched), statistics.auc(spans.norm, matched),
            source.rollouts(0).truth.mean(),
        ])  # fmt: skip

    made = np.mean([readings(SyntheticEvidence(marginals, Dials(), 2, n)) for n in range(8)], axis=0)
    recorded = readings(evidence)
    np.testing.assert_allclose(made, recorded, atol=0.12)
    assert (np.sign(made - 0.5) == np.sign(recorded - 0.5)).all()


def test_the_command_measures_prints_and_writes(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "calibration.json"
    done = subprocess.run(
        [sys.executable, "-m", "pytest_behaviortrace", "calibrate", "--repetitions", "2", "--resamples", "50",
         "--cache-dir", str(store.cache_dir), "--out", str(out)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    report = json.loads(out.read_text(encoding="utf-8"))
    assert done.returncode == 1  # nobody has shown a rate below 7 % in two repetitions
    assert report["repetitions"] == 2
    assert {cell["n"] for cell in report["worthless"]} == {2}
    assert {cell["check"] for cell in report["power"]} > {"fluency_control", "seed_stability", "whole checklist"}
    assert done.stdout.startswith("2 repetitions, 3 seeds x 2 draws, 50 resamples")
    assert "MISSED: random" not in done.stdout
    assert report["undecided"] > 100
    assert f"undecided: {report['undecided']} rates" in done.stdout
