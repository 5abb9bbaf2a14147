"""A folder with a search of the drill engine, and the searches of it that are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.drills import JournalLine, drill_environment, read_journal
from tests.support.tiny_models import write_model
from tuner.records import StageKind
from tuner.store import StageRecord, TrialRecord
from tuner_storage import open_store

WAIT_S = 240

ONE_CPU = {"num_cpus": 1}
"""Of every stage: they share the machine, so that several are in flight. Nothing that is timed is real."""


class DrillProject:
    """A tiny target, prompts, a space of n-gram drafts, and hardware on which stages run beside each other.

    Attributes:
        journal: What the engine really did, in all processes.
    """

    def __init__(self, folder: Path, url: str | None = None, *, deepest: int = 5, trials: int = 6) -> None:
        self.folder = folder
        self.url = url or f"sqlite:///{folder / 'tuner.db'}"
        self.journal = folder / "journal.jsonl"
        self.trials = trials
        write_model(folder / "target", layers=1)
        lines = [{"prompt": f"{number} is a number", "raw": True} for number in range(12)]
        (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "workload.yaml").write_text(
            "name: drill\ndescription: numbers\nprompts: prompts.jsonl\nmax_output_tokens: 16\n"
            "limits_reason: a drill\nsearch_prompts: 4\ncertify_prompts: 8\n"
        )
        (folder / "space.yaml").write_text(
            "name: drill\ndescription: n-grams\nengine: drill\ndrafts: [{name: ngram, method: ngram}]\n"
            f"num_speculative_tokens: {{min: 1, max: {deepest}}}\n"
        )

    def write_hardware(self, **settings: object) -> None:
        """Hardware whose stages have the drill engine with these settings, on whatever machine they run."""
        hardware = {
            "name": "drill",
            "description": "one CPU for each stage",
            "stages": {kind.value: ONE_CPU for kind in StageKind},
            "environment": drill_environment(self.journal, **settings),
        }
        (self.folder / "hardware.yaml").write_text(json.dumps(hardware))  # JSON is YAML

    def command(self, *arguments: str, name: str = "drill") -> list[str]:
        """The command line of a search of this project."""
        return [
            *(sys.executable, "-m", "tuner", "search", "--json", "--name", name, "--storage", self.url),
            *("--workload", "workload.yaml", "--space", "space.yaml", "--target", "target"),
            *("--hardware", "hardware.yaml", "--sampler", "random", "--trials", str(self.trials), *arguments),
        ]

    def environment(self, **settings: object) -> dict[str, str]:
        """Of a search: the drill engine with these settings, as ``compile_s=0.5``."""
        return os.environ | drill_environment(self.journal, **settings) | {"TUNER_CACHE": str(self.folder / "cache")}

    def start(
        self, *arguments: str, name: str = "drill", settings: Mapping[str, object] | None = None
    ) -> subprocess.Popen[str]:
        self.write_hardware(**(settings or {}))
        return subprocess.Popen(
            self.command(*arguments, name=name),
            cwd=self.folder,
            env=self.environment(**(settings or {})),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(
        self, *arguments: str, name: str = "drill", settings: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        """Run the search to its end and read its document."""
        with self.start(*arguments, name=name, settings=settings) as process:
            output, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, errors
        document: dict[str, object] = json.loads(output)
        return document

    def stages(self, name: str = "drill") -> dict[tuple[str, str], StageRecord]:
        store = open_store(self.url)
        try:
            return {(one.kind, one.key): one for one in store.stages(name)} if store.studies() else {}
        finally:
            store.close()

    def rows(self, name: str = "drill") -> tuple[TrialRecord, ...]:
        store = open_store(self.url)
        try:
            return store.trials(name) if store.studies() else ()
        finally:
            store.close()

    def starts(self) -> dict[str, set[int]]:
        """Processes that began each stage, by the stage's name without its attempt."""
        found: dict[str, set[int]] = {}
        for line in read_journal(self.journal, "compile", "load"):
            found.setdefault(stage_of(line), set()).add(line.pid)
        return found


def stage_of(line: JournalLine) -> str:
    """Its stage, whichever attempt it was."""
    name, _, attempt = line.stage.rpartition(":")
    return name if attempt.isdigit() and ":" in name else line.stage
