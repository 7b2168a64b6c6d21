"""A budget as lines of text, its assumptions first."""

from __future__ import annotations

from pytest_behaviortrace.run.budget import GB, Assumed, Budget


def render(found: Budget, assumed: Assumed | None = None) -> str:
    """Time by stage, GPU memory by part at each peak, disk and host memory; numbers rounded for reading."""
    assumed, gpu, recipe = assumed or Assumed(), found.gpu, found.recipe
    lines = [
        f"{recipe.name}: {found.policy.parameters:,} parameters, {recipe.n_rollouts:,} rollouts a run, sketches of "
        f"{recipe.sketch_width:,}",
        "Counted from FLOPs and bytes for one GPU; nothing was measured on one.",
        f"assumed: {gpu.tflops:g} TFLOP/s bfloat16, {gpu.tflops32:g} float32, {gpu.bandwidth / 1e12:g} TB/s, "
        f"{gpu.utilisation:.0%} of each reached;",
        f"  prompts of {assumed.prompt_tokens} tokens, completions of all {recipe.grpo.max_completion_length}, "
        f"{assumed.shown:.0%} of rollouts with a behaviour, {assumed.zero:.0%} of advantage zero, "
        f"{1e3 * (assumed.vllm_step_seconds if recipe.grpo.use_vllm else assumed.step_seconds):g} ms to start a "
        f"decoding step",
        "",
    ]
    for title, stages, total in (
        ("time of a seed", found.seed, found.seed_seconds),
        ("time of a draw", found.draw, found.draw_seconds),
    ):
        lines.append(_row(title, _time(total), "PFLOP bf16  fp32   TB moved"))
        for name, work in stages.items():
            counted = f"{work.flops / 1e15:10.2f} {work.flops32 / 1e15:5.2f} {work.bytes / 1e12:10.1f}"
            lines.append(_row(f"  {name}", _time(work.seconds(gpu)), counted))
    for title, parts, peak in (
        ("GPU memory, a step, recording inside", found.training, sum(found.training.values())),
        ("GPU memory, a step, recorder's own pass", found.recording, sum(found.recording.values())),
        ("GPU memory, scoring siblings", found.siblings, found.sibling_peak),
    ):
        lines.append(_row(title, _size(peak)))
        lines += [_row(f"  {name}", _size(count)) for name, count in parts.items()]
    if recipe.grpo.use_vllm:
        lines.append(_row("GPU memory of a seed, vLLM's share included", _size(found.training_peak)))
    lines += [_row(f"disk, a {unit}", _size(count)) for unit, count in found.disk.items()]
    lines.append(_row("memory of the machine", _size(sum(found.host.values()))))
    lines += [_row(f"  {name}", _size(count)) for name, count in found.host.items()]
    for what, peak in (("a seed", found.training_peak), ("a draw", found.sibling_peak)):
        verdict = "fits" if peak <= gpu.memory else "does not fit"
        lines.append(f"{what} {verdict} on a GPU of {_size(gpu.memory)}")
    return "\n".join(lines)


def _row(name: str, figure: str, more: str = "") -> str:
    return f"{name:<52}{figure:>10}  {more}".rstrip()


def _size(count: float) -> str:
    return f"{count / GB:.1f} GB"


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.2f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
