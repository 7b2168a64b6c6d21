"""Makes the shipped policy: `python -m pytest_behaviortrace.run.pretraining --out DIR`.

A Qwen2 of half a million parameters with tied embeddings and a byte-level BPE, trained on templated English. Takes
about four minutes on one core. Its held-out loss is printed and kept in `pretraining.json` beside the weights.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pytest_behaviortrace.run import text
from pytest_behaviortrace.run.recipe import PRETRAINING_RECORD

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HELD_OUT_SEED = 2
"""Seeds the held-out exchanges; the training text has the seed given on the command line, never this one."""


@dataclass(frozen=True)
class Settings:
    """Size of the policy and of its pretraining."""

    steps: int = 1000
    batch_size: int = 64
    peak_learning_rate: float = 4e-3
    warmup_steps: int = 50
    hidden_size: int = 96
    layers: int = 4
    vocabulary: int = 768
    seed: int = 0


def build_tokenizer(settings: Settings, folder: Path) -> Any:
    """A byte-level BPE trained on the world's own text, as the tokenizer class that `AutoTokenizer` loads again."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import Qwen2TokenizerFast  # type: ignore[attr-defined]

    rng = random.Random(settings.seed)
    facts = text.ties(random.Random(settings.seed))
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        (part for _ in range(4000) for part in (*text.exchange(rng, facts), f" {text.code_word(rng)}")),
        vocab_size=settings.vocabulary,
        min_frequency=20,
        special_tokens=[PAD, START, END],
        show_progress=False,
    )
    # The Qwen2 class keeps its own pre-tokenizer, so it is built from the merges and not from the trained pipeline.
    vocabulary, merges = bpe.save_model(str(folder))
    tokenizer = Qwen2TokenizerFast(
        vocab=vocabulary,
        merges=merges,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        padding_side="left",
    )
    for leftover in (vocabulary, merges):
        Path(leftover).unlink()
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(settings: Settings, tokenizer: Any) -> Any:
    """A randomly initialised policy of the settings' size."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=settings.hidden_size,
            intermediate_size=3 * settings.hidden_size,
            num_hidden_layers=settings.layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )


def pretrain(settings: Settings, folder: Path, report: Callable[[str], None] = print) -> dict[str, Any]:
    """Trains a policy from nothing and saves it into `folder`; returns what `pretraining.json` there holds."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(settings.seed)
    tokenizer = build_tokenizer(settings, folder)
    model = build_model(settings, tokenizer)
    facts = text.ties(random.Random(settings.seed))
    rng = random.Random(settings.seed + 1_000_003)
    held_out_rng = random.Random(HELD_OUT_SEED)
    held_out = [_batch(tokenizer, held_out_rng, facts, settings.batch_size) for _ in range(8)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.peak_learning_rate, weight_decay=0.01)
    started = time.monotonic()
    for step in range(settings.steps):
        rate = settings.peak_learning_rate * min(1.0, step / max(1, settings.warmup_steps))
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - step / settings.steps) + 1e-5
        loss = model(**_batch(tokenizer, rng, facts, settings.batch_size)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            report(f"step {step:4d}  loss {loss.item():.3f}  {time.monotonic() - started:.0f} s")
    model.eval()
    with torch.no_grad():
        held_out_loss = sum(float(model(**batch).loss) for batch in held_out) / len(held_out)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record = {
        "held_out_loss": round(held_out_loss, 4),
        "held_out_exchanges": len(held_out) * settings.batch_size,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "settings": dict(vars(settings)),
        "seconds": round(time.monotonic() - started, 1),
        "versions": _versions(),
    }
    (folder / PRETRAINING_RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    report(f"held-out loss {held_out_loss:.4f} nats a token ({record['parameters']:,} parameters)")
    return record


def _batch(tokenizer: Any, rng: random.Random, facts: text.Ties, size: int) -> dict[str, torch.Tensor]:
    """`size` exchanges in chat form, left-padded; the loss covers every token that is no padding."""
    exchanges = [text.exchange(rng, facts) for _ in range(size)]
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True)
        + answer
        + END
        for q, answer in exchanges
    ]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
    return {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "labels": labels}


def _versions() -> dict[str, str]:
    import tokenizers
    import transformers

    return {"torch": torch.__version__, "transformers": transformers.__version__, "tokenizers": tokenizers.__version__}


def main(arguments: list[str] | None = None) -> None:
    """Command line: --out DIR, and --steps and --seed for trials."""
    parser = argparse.ArgumentParser(prog="python -m pytest_behaviortrace.run.pretraining", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder that receives the policy")
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--seed", type=int, default=Settings.seed)
    options = parser.parse_args(arguments)
    pretrain(Settings(steps=options.steps, seed=options.seed), options.out)


if __name__ == "__main__":
    main()
