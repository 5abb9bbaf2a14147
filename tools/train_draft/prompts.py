"""The prompt recipe of the drafts' training data.

``training_prompts`` draws from the training templates, weighted by class;
``held_out_prompts`` fills the held-out templates, which no draft is trained
on. Run as a command, this module counts the prompts and checks that none of
them, training or held-out, is also one of the product's workload prompts.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from slots import FILLERS
from templates import HELD_OUT, TRAINING

# Share of each class in the training prompts.
WEIGHTS = {
    "numbers": 0.22,
    "json": 0.19,
    "code": 0.18,
    "config": 0.11,
    "report": 0.11,
    "copying": 0.08,
    "prose": 0.11,
}
HELD_OUT_DRAWS = 2
HELD_OUT_SEED = 77
_SLOT = re.compile(r"\{([a-z0-9]+(?:#\d)?)\}")


@dataclass(frozen=True)
class Prompt:
    """A filled template."""

    template: str
    kind: str
    held_out: bool
    text: str


def fill(template: str, rng: Random) -> str:
    """Fill the slots of ``template``; numbered draws of a slot differ from each other."""
    chosen: dict[str, str] = {}
    for slot in _SLOT.findall(template):
        if slot in chosen:
            continue
        filler = FILLERS[slot.partition("#")[0]]
        text = filler(rng)
        for _ in range(8):
            if text not in chosen.values():
                break
            text = filler(rng)
        chosen[slot] = text
    return _SLOT.sub(lambda match: chosen[match[1]], template)


def _draw(kind: str, held_out: bool, index: int, rng: Random) -> Prompt:
    templates = (HELD_OUT if held_out else TRAINING)[kind]
    name = f"{kind}-{'held' if held_out else 'train'}-{index:02d}"
    return Prompt(name, kind, held_out, fill(templates[index], rng))


def training_prompts(count: int, seed: int) -> list[Prompt]:
    """``count`` distinct training prompts; a longer list starts with the shorter one."""
    rng = Random(seed)
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    seen: set[str] = set()
    prompts: list[Prompt] = []
    while len(prompts) < count:
        kind = rng.choices(kinds, weights)[0]
        prompt = _draw(kind, False, rng.randrange(len(TRAINING[kind])), rng)
        if prompt.text not in seen:
            seen.add(prompt.text)
            prompts.append(prompt)
    return prompts


def held_out_prompts() -> list[Prompt]:
    """Every held-out template, filled ``HELD_OUT_DRAWS`` times."""
    rng = Random(HELD_OUT_SEED)
    return [
        _draw(kind, True, index, rng)
        for kind, templates in HELD_OUT.items()
        for index in range(len(templates))
        for _ in range(HELD_OUT_DRAWS)
    ]


def normalise(text: str) -> str:
    """``text`` in lower case without punctuation, with single spaces."""
    return " ".join(re.findall(r"\w+", text.lower()))


def workload_texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Every string of ten or more characters in the workload files, with its file name."""
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".jsonl":
            values = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
        elif path.suffix == ".json":
            values = [json.loads(path.read_text("utf-8"))]
        elif path.is_file():
            values = path.read_text("utf-8", errors="replace").splitlines()
        else:
            continue
        for text in _strings(values):
            if len(text) >= 10:
                yield path.name, text


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def overlaps(prompts: list[str], folder: Path) -> list[tuple[str, str]]:
    """The workload texts that are also prompts, exactly or after normalisation."""
    known = {normalise(text) for text in prompts}
    return [(name, text) for name, text in workload_texts(folder) if normalise(text) in known]


def main() -> int:
    """Count the prompts and check them against the workloads; 1 if any overlaps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workloads", type=Path, default=Path("workloads"))
    parser.add_argument("--show", type=int, default=0, help="print this many training prompts")
    arguments = parser.parse_args()
    prompts = training_prompts(arguments.count, arguments.seed)
    held_out = held_out_prompts()
    for prompt in prompts[: arguments.show]:
        print(f"[{prompt.template}] {prompt.text}")
    print("training:", dict(Counter(prompt.kind for prompt in prompts)))
    print("held out:", dict(Counter(prompt.kind for prompt in held_out)))
    found = overlaps([prompt.text for prompt in prompts + held_out], arguments.workloads)
    for name, text in found:
        print(f"overlap with {name}: {text!r}")
    print(f"{len(found)} workload texts are among the {len(prompts) + len(held_out)} prompts")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
