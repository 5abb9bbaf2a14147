"""A folder as a person has it: a tiny target, a draft, prompts, a search space and a database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.tiny_models import write_model, write_perturbed
from tuner.store import StageRecord
from tuner_storage import open_store

WAIT_S = 240
TRIALS = 4


class Project:
    """Everything that a search needs, and the search."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.folder = folder
        self.url = url or f"sqlite:///{folder / 'tuner.db'}"
        target = write_model(folder / "target", layers=4)
        draft = write_perturbed(folder / "draft", target, noise=0.1)
        lines = [{"prompt": f"{number} is a number", "raw": True} for number in range(20)]
        (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "workload.yaml").write_text(
            "name: tiny\ndescription: numbers\nprompts: prompts.jsonl\nmax_output_tokens: 24\n"
            "limits_reason: a test\nsearch_prompts: 10\ncertify_prompts: 10\n"
        )
        (folder / "space.yaml").write_text(
            "name: tiny\ndescription: a copy with noise, and n-gram\nengine: cpu\ndrafts:\n"
            f"  - {{name: noisy, method: draft_model, model: {draft}}}\n"
            "  - {name: ngram, method: ngram}\nnum_speculative_tokens: {min: 1, max: 4}\n"
        )

    def search(self, *arguments: str) -> list[str]:
        """The command line of a search of this project."""
        return [
            *(sys.executable, "-m", "tuner", "search", "--json"),
            *("--workload", "workload.yaml", "--space", "space.yaml", "--target", "target"),
            # replay would rule out most of a space whose draft is as large as its target, and stop after some trials
            *("--sampler", "tpe", "--trials", str(TRIALS)),
            *("--name", "tiny", "--threads", "1", "--storage", self.url),
            *("--plot", str(self.folder / "plot.html"), *arguments),
        ]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.search(*arguments),
            cwd=self.folder,
            env=os.environ | {"TUNER_CACHE": str(self.folder / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, *arguments: str) -> dict[str, object]:
        """Run the search to its end and read the one JSON document on its standard output."""
        with self.start(*arguments) as process:
            output, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, errors
        document: dict[str, object] = json.loads(output)
        return document

    def stages(self) -> dict[tuple[str, str], StageRecord]:
        store = open_store(self.url)
        try:
            return {(one.kind, one.key): one for one in store.stages("tiny")} if store.studies() else {}
        finally:
            store.close()
