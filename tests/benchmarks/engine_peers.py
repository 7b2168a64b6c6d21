"""Attribution libraries on the engine's benchmark: bergson and dattri-llm, unprojected, through their public classes.

Both get more than we take: their data sets are built and their targets' gradients collected before the clock starts,
and the weights are frozen, so that no weight gradient is made in vain (dattri-llm documents it, bergson bears it).
Their squared norms are their own inner products of each gradient with itself, taken outside of the timed run.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from engine_setting import PROMPT, TARGETS, Method, Scores, Setting, loss_with_all_logits

os.environ.setdefault("TQDM_DISABLE", "1")


class Bergson:
    """Hooks on linear maps; `everything` adds the output embeddings and biases to the library's default choice."""

    def __init__(self, setting: Setting, everything: bool) -> None:
        from bergson import IndexConfig
        from datasets import disable_progress_bars

        disable_progress_bars()
        logging.disable(logging.INFO)
        self.everything, self.model = everything, setting.frozen_copy()
        self.folder = tempfile.TemporaryDirectory()
        self.config = IndexConfig(
            run_path=str(Path(self.folder.name, "run")), loss_reduction="mean", precision="fp32", overwrite=True
        )
        Path(self.config.partial_run_path).mkdir(parents=True)
        self.rows = self._data(setting.ids)
        self.queries = {name: g.float() for name, g in self._collect(self._data(setting.queries)).gradients.items()}

    def _data(self, ids: torch.Tensor) -> Any:
        from datasets import Dataset

        rows = ids.tolist()
        return Dataset.from_list([{"input_ids": r, "labels": [-100] * PROMPT + r[PROMPT:]} for r in rows])

    def _collect(self, data: Any, scorer: Any = None) -> Any:
        from bergson import CollectorComputer, GradientProcessor, InMemoryCollector

        collector = InMemoryCollector(
            model=self.model if self.everything else self.model.base_model,
            data=data,
            cfg=self.config,
            processor=GradientProcessor(projection_dim=None, include_bias=self.everything),
            scorer=scorer,
        )
        whole = [list(range(len(data)))]
        computer = CollectorComputer(model=self.model, data=data, collector=collector, batches=whole, cfg=self.config)
        computer.run_with_collector_hooks()
        return collector

    def __call__(self) -> Scores:
        from bergson import Scorer
        from bergson.score.score_writer import InMemorySequenceScoreWriter

        writer = InMemorySequenceScoreWriter(len(self.rows), TARGETS)
        cpu = torch.device("cpu")
        scorer = Scorer(self.queries, list(self.queries), writer, cpu, torch.float32, unit_normalize=False)
        return Scores(torch.as_tensor(self._collect(self.rows, scorer).scores).mean(1), None)

    def squares(self) -> torch.Tensor:
        """(n,): squared norms of the gradients it collects."""
        made = self._collect(self.rows).gradients.values()
        return torch.stack([g.double().square().sum(1) for g in made]).sum(0)


class DattriLLM:
    """Hooks on linear maps, embeddings and norms; a tied weight counts as two weights."""

    def __init__(self, setting: Setting) -> None:
        from dattri_llm import REGISTER_ALL, AttributionArguments, AttributionTask, HookManagerConfig, TracInAttributor
        from dattri_llm.gradient import GradientStorageManager

        model = setting.frozen_copy()
        self.folder = tempfile.TemporaryDirectory()
        norms = {name: module for name, module in model.named_modules() if type(module).__name__.endswith("RMSNorm")}
        shapes = {
            name: {"has_bias": False, "normalized_shape": tuple(m.weight.shape), "eps": m.variance_epsilon}
            for name, m in norms.items()
        }
        self.config = HookManagerConfig(
            linear_io=REGISTER_ALL,
            capture_style="auto",
            include_frozen=True,
            hook_types=dict.fromkeys(norms, "linear_io"),
            layer_types=dict.fromkeys(norms, "nn.RMSNorm"),
            module_kwargs=shapes,
        )
        n = len(setting.ids)
        arguments = AttributionArguments(
            output_dir=self.folder.name, use_cpu=True, per_device_train_batch_size=n, per_device_eval_batch_size=n
        )

        def objective(model: Any, batch: Any) -> torch.Tensor:
            return loss_with_all_logits(model, batch["input_ids"])

        self.attributor: Any = TracInAttributor(arguments, task=AttributionTask(objective, model))
        self.rows = [{"input_ids": row} for row in setting.ids]
        self.store = self._collected([{"input_ids": row} for row in setting.queries], GradientStorageManager)

    def _collected(self, rows: Any, manager: Any) -> Any:
        live = self.attributor.generate_test_rep(rows, hook_config=self.config)
        folder = tempfile.mkdtemp(dir=self.folder.name)
        return self.attributor.collect_gradients(live, manager(folder, residency="memory"))

    def __call__(self) -> Scores:
        rows = self.attributor.generate_train_rep(self.rows, hook_config=self.config)
        with rows:
            scores = self.attributor.score_sources(rows, self.attributor.load_test_rep(self.store))[0]
        return Scores(scores.mean(1), None)

    def squares(self) -> torch.Tensor:
        """(n,): its inner product of each gradient with itself."""
        scores = self.attributor.attribute(self.rows, self.rows, hook_config=self.config).scores
        return torch.as_tensor(scores).diagonal().double()


PEERS: dict[str, tuple[str, Callable[[Setting], Method]]] = {
    "bergson, its default modules": ("bergson", lambda setting: Bergson(setting, everything=False)),
    "bergson, with head and biases": ("bergson", lambda setting: Bergson(setting, everything=True)),
    "dattri-llm, with norms declared": ("dattri_llm", DattriLLM),
}
"""Name of a method -> the module it needs and its builder."""
