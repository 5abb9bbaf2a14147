"""Greedy answers of the target to the training prompts, with hidden states.

Writes ``<out>.jsonl``, one record a sequence (template, class, split, prompt
and answer tokens, offset of its features), and ``<out>.f16``, the target's
post-final-norm hidden state of every token but the last, as raw fp16 rows.
Several processes share the work with ``--part`` and ``--parts``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from prompts import Prompt, held_out_prompts, training_prompts
from target import END_OF_TURN, HIDDEN, SlotDecoder, Target
from tokenizers import Tokenizer
from torch import Tensor

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
LENGTH_CAPS = {
    "numbers": 120,
    "json": 176,
    "code": 160,
    "copying": 136,
    "config": 160,
    "report": 160,
    "prose": 120,
}
MAX_PROMPT = 260
MAX_LENGTH = MAX_PROMPT + max(LENGTH_CAPS.values()) + 1


def chat(text: str) -> str:
    """The model's chat template with its default system message."""
    return f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


@dataclass
class Running:
    """A sequence that occupies a slot."""

    prompt: Prompt
    prompt_tokens: list[int]
    answer: list[int] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """Whether the answer has ended or reached its cap."""
        return self.answer[-1] == END_OF_TURN or len(self.answer) >= LENGTH_CAPS[self.prompt.kind]


class Writer:
    """Appends finished sequences to the JSONL file and the feature file."""

    def __init__(self, out: Path) -> None:
        """Start the two files; an earlier run's are overwritten."""
        out.parent.mkdir(parents=True, exist_ok=True)
        self.records = out.with_suffix(".jsonl").open("w", encoding="utf-8")
        self.features = out.with_suffix(".f16").open("wb")
        self.rows = 0
        self.tokens = 0
        self.sequences = 0

    def add(self, sequence: Running) -> None:
        """Write one finished sequence."""
        features = torch.cat(sequence.features).half()
        assert features.shape == (len(sequence.prompt_tokens) + len(sequence.answer) - 1, HIDDEN)
        self.features.write(features.numpy().tobytes())
        record = {
            "template": sequence.prompt.template,
            "kind": sequence.prompt.kind,
            "held_out": sequence.prompt.held_out,
            "text": sequence.prompt.text,
            "prompt": sequence.prompt_tokens,
            "answer": sequence.answer,
            "feature_row": self.rows,
        }
        self.records.write(json.dumps(record) + "\n")
        self.rows += len(features)
        self.tokens += len(sequence.answer)
        self.sequences += 1
        if self.sequences % 16 == 0:
            self.features.flush()
            self.records.flush()

    def close(self) -> None:
        """Close both files."""
        self.features.close()
        self.records.close()


def generate(
    target: Target, tokenizer: Tokenizer, prompts: list[Prompt], writer: Writer, slots: int, seconds: float
) -> None:
    """Answer ``prompts`` in order until none is left or ``seconds`` have passed."""
    decoder = SlotDecoder(target, slots, MAX_LENGTH)
    running: list[Running | None] = [None] * slots
    queue = iter(prompts)
    start, report_at = time.monotonic(), 0.0
    while True:
        for slot in range(slots):
            if running[slot] is None and time.monotonic() - start < seconds:
                running[slot] = _admit(decoder, slot, tokenizer, queue)
        if not any(running):
            return
        last = [sequence.answer[-1] if sequence else 0 for sequence in running]
        hidden = decoder.step(torch.tensor(last))
        chosen = decoder.choose(hidden).tolist()
        for slot, sequence in enumerate(running):
            if sequence is None:
                decoder.lengths[slot] = 0
                continue
            sequence.features.append(hidden[slot : slot + 1].half())
            sequence.answer.append(chosen[slot])
            if sequence.finished:
                writer.add(sequence)
                running[slot] = None
        if time.monotonic() - start > report_at:
            report_at += 60
            used = time.process_time()
            print(f"{writer.sequences} sequences, {writer.tokens} tokens, {used:.0f} s CPU", flush=True)


def _admit(decoder: SlotDecoder, slot: int, tokenizer: Tokenizer, queue: Iterator[Prompt]) -> Running | None:
    for prompt in queue:
        tokens = tokenizer.encode(chat(prompt.text)).ids
        if len(tokens) > MAX_PROMPT:
            continue
        hidden = decoder.prefill(slot, tokens)
        first = int(decoder.choose(hidden[-1:]))
        if first != END_OF_TURN:
            return Running(prompt, tokens, [first], [hidden.half()])
    return None


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=Path("build/train_draft/target"))
    parser.add_argument("--out", type=Path, default=Path("build/train_draft/data0"))
    parser.add_argument("--held-out", action="store_true", help="answer the held-out prompts instead")
    parser.add_argument("--count", type=int, default=6000, help="training prompts over all parts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--slots", type=int, default=96)
    parser.add_argument("--seconds", type=float, default=1e9, help="admit no prompt after this time")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    chosen = held_out_prompts() if arguments.held_out else training_prompts(arguments.count, arguments.seed)
    prompts = chosen[arguments.part :: arguments.parts]
    tokenizer = Tokenizer.from_file(str(arguments.target / "tokenizer.json"))
    writer = Writer(arguments.out)
    with torch.inference_mode():
        generate(Target.load(arguments.target), tokenizer, prompts, writer, arguments.slots, arguments.seconds)
    writer.close()
    print(f"done: {writer.sequences} sequences, {writer.tokens} tokens, {time.process_time():.0f} s CPU")


if __name__ == "__main__":
    main()
