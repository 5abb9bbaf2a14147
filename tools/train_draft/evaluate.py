"""Measure an exported draft on the held-out prompts and print a markdown table."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from acceptance import measure, table
from data import load
from export import restore, vocabulary
from model import Draft, EagleDraft, ShallowDraft
from target import LAYERS, Target

LAST = LAYERS - 1


def open_draft(folder: Path, target: Target) -> Draft:
    """The exported draft, with its fp16 weights in fp32 arithmetic."""
    kind = json.loads((folder / "config.json").read_text("utf-8"))["model_type"]
    tokens = vocabulary(folder)
    draft = EagleDraft(target, tokens, [LAST]) if kind == "tuner_eagle" else ShallowDraft(target, tokens, [0, LAST])
    restore(draft, folder)
    return draft.eval()


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drafts", type=Path, nargs="+", help="exported folders")
    parser.add_argument("--target", type=Path, default=Path("build/train_draft/target"))
    parser.add_argument("--data", type=Path, nargs="+", default=[Path("build/train_draft/held_out")])
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--k", type=int, default=3, help="draft tokens a round")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    target = Target.load(arguments.target)
    sequences = load(arguments.data)
    for folder in arguments.drafts:
        tallies = measure(open_draft(folder, target), sequences, arguments.depth, arguments.k)
        print(f"{folder.name}, {len(sequences)} prompts\n\n{table(tallies, arguments.k)}\n")
        joint = " ".join(f"{tallies['all'].joint(step):.3f}" for step in range(arguments.depth))
        print(f"joint acceptance by position: {joint}\n")


if __name__ == "__main__":
    main()
