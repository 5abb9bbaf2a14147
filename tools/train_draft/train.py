"""Train a draft on the target's greedy answers.

The learning rate follows the clock, so a run ends when ``--minutes`` are over
and its step count depends on the machine; everything else is seeded.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import export
import torch
import torch.nn.functional as F
from acceptance import measure
from data import IGNORED, Batch, Sequence, batches, draft_vocabulary, load, vocabulary_rows
from initial import regress_fc
from model import Draft, EagleDraft, ShallowDraft
from target import LAYERS, Target
from torch import Tensor

WARM_UP_STEPS = 30
FINAL_RATE = 0.03
STEP_DECAY = 0.8
FC_SEQUENCES = 120


@dataclass(frozen=True)
class Settings:
    """What the command line chooses."""

    kind: str
    minutes: float
    report_minutes: float
    rate: float
    batch: int
    depth: int
    noise: float
    soft: float
    feature_loss: float
    weight_decay: float
    seed: int
    half: bool


@dataclass(frozen=True)
class Labels:
    """What a batch's answer positions should predict."""

    rows: Tensor
    teacher: Tensor
    usable: Tensor


def labels(draft: Draft, batch: Batch) -> Labels:
    """Draft rows of the target's tokens and the target's distribution over the draft vocabulary."""
    rows = vocabulary_rows(draft.vocabulary)[batch.next_tokens]
    usable = batch.mask & (rows != IGNORED)
    return Labels(rows, (batch.own @ draft.head.T).float().softmax(dim=-1), usable)


def step_loss(draft: Draft, output: Tensor, wanted: Labels, usable: Tensor, settings: Settings) -> Tensor:
    """Cross entropy with the target's token, mixed with that to its distribution."""
    logits = F.linear(output[usable], draft.head).float()
    hard = F.cross_entropy(logits, wanted.rows[usable])
    soft = F.cross_entropy(logits, wanted.teacher[usable])
    return (1 - settings.soft) * hard + settings.soft * soft


def loss(draft: Draft, batch: Batch, settings: Settings) -> Tensor:
    """The batch's loss; for the EAGLE draft over all steps of the unroll."""
    wanted = labels(draft, batch)
    if isinstance(draft, ShallowDraft):
        return step_loss(draft, draft(batch), wanted, wanted.usable, settings)
    assert isinstance(draft, EagleDraft)
    total, weight = torch.zeros(()), 1.0
    scale = batch.own[batch.mask].pow(2).mean().sqrt()
    for step, output in enumerate(draft.unroll(batch, settings.depth, settings.noise)):
        usable = wanted.usable.clone()
        usable[:, :step] = False
        total = total + weight * step_loss(draft, output, wanted, usable, settings)
        if settings.feature_loss:
            distance = F.smooth_l1_loss(output[usable] / scale, batch.own[usable] / scale)
            total = total + weight * settings.feature_loss * distance
        weight *= STEP_DECAY
    return total


def rate_at(share: float, step: int, peak: float) -> float:
    """Linear warm-up by steps, then a cosine over the time budget."""
    cosine = FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
    return peak * min(1.0, (step + 1) / WARM_UP_STEPS) * cosine


def report(draft: Draft, validation: list[Sequence], head: str) -> None:
    """Print acceptance on the held-out prompts."""
    draft.eval()
    tallies = measure(draft, validation, depth=3)
    draft.train()
    joint = " ".join(f"{tallies['all'].joint(step):.3f}" for step in range(3))
    kinds = " ".join(f"{name} {tallies[name].joint(0):.2f}" for name in sorted(tallies) if name != "all")
    print(f"{head} | held-out joint {joint} | tokens a round {tallies['all'].mean_tokens():.2f} | {kinds}", flush=True)


def train(draft: Draft, training: list[Sequence], validation: list[Sequence], settings: Settings, out: Path) -> None:
    """Train until the time is over, exporting to ``out`` at every report."""
    rng = Random(settings.seed)
    torch.manual_seed(settings.seed)
    matrices = [p for p in draft.parameters() if p.dim() == 2]
    vectors = [p for p in draft.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.rate, betas=(0.9, 0.95))
    start, reported = time.monotonic(), 0.0
    step = epoch = tokens = 0
    recent = 0.0
    while True:
        epoch += 1
        for batch in batches(training, settings.batch, rng):
            minutes = (time.monotonic() - start) / 60
            if minutes >= settings.minutes:
                export.save(draft, out)
                used = time.process_time() / 60
                report(draft, validation, f"end: step {step}, epoch {epoch}, {tokens} tokens, {used:.1f} CPU min")
                return
            if minutes - reported >= settings.report_minutes:
                reported = minutes
                export.save(draft, out)
                report(draft, validation, f"{minutes:.1f} min, step {step}, epoch {epoch}, loss {recent:.3f}")
            for group in optimizer.param_groups:
                group["lr"] = rate_at(minutes / settings.minutes, step, settings.rate)
            with torch.autocast("cpu", torch.bfloat16, enabled=settings.half):
                value = loss(draft, batch, settings)
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
            optimizer.step()
            recent = value.item() if step == 0 else 0.98 * recent + 0.02 * value.item()
            step += 1
            tokens += int(batch.mask.sum())


def build(target: Target, training: list[Sequence], vocabulary: Tensor, settings: Settings) -> Draft:
    """A draft with its starting weights."""
    if settings.kind == "shallow":
        return ShallowDraft(target, vocabulary, [0, LAYERS - 1])
    draft = EagleDraft(target, vocabulary, [LAYERS - 1])
    explained = regress_fc(draft, target, training[:FC_SEQUENCES])
    print(f"fc regression explains {explained:.3f} of the last layer's input")
    return draft


def parse() -> tuple[argparse.Namespace, Settings]:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["eagle", "shallow"])
    parser.add_argument("--target", type=Path, default=Path("build/train_draft/target"))
    parser.add_argument("--data", type=Path, nargs="+", default=[Path("build/train_draft/data0")])
    parser.add_argument("--validation", type=Path, nargs="+", default=[Path("build/train_draft/held_out")])
    parser.add_argument("--out", type=Path, required=True, help="export folder")
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--report-minutes", type=float, default=4.0)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--depth", type=int, default=3, help="unrolled draft steps (eagle)")
    parser.add_argument("--noise", type=float, default=0.05, help="noise on the target's states (eagle)")
    parser.add_argument("--soft", type=float, default=0.5, help="weight of the target's distribution")
    parser.add_argument("--feature-loss", type=float, default=0.2)
    parser.add_argument("--weight-decay", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--half", action="store_true", help="matrix products in bfloat16")
    arguments = parser.parse_args()
    names = Settings.__dataclass_fields__
    return arguments, Settings(**{name: getattr(arguments, name) for name in names})


def main() -> None:
    """Command line entry point."""
    arguments, settings = parse()
    torch.set_num_threads(arguments.threads)
    training, validation = load(arguments.data), load(arguments.validation)
    Random(settings.seed).shuffle(training)
    target = Target.load(arguments.target)
    vocabulary = draft_vocabulary(training, arguments.vocabulary)
    print(f"{settings}\n{len(training)} sequences, {sum(len(s.answer) for s in training)} answer tokens")
    draft = build(target, training, vocabulary, settings)
    print(f"{sum(p.numel() for p in draft.parameters()) / 1e6:.2f} million parameters are trained")
    report(draft, validation, "before training")
    train(draft, training, validation, settings, arguments.out)


if __name__ == "__main__":
    main()
