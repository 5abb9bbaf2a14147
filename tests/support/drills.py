"""Help for tests and drills with processes that are not the test's; they run the engine ``drill``."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from tuner.artifacts import ArtifactPlace
from tuner.needs import Needs
from tuner.records import GREEDY, Prompt, StageKind
from tuner.speculation import NO_SPECULATION, EngineConfig, Method, Speculation
from tuner.trial import StageTask

DRILL_ENGINE = Path(__file__).parent / "drill_engine"
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class JournalLine:
    """What the drill engine wrote when it began or ended something: compile, compiled, load, closed."""

    kind: str
    key: str
    drafted_tokens: int
    stage: str
    pid: int
    at_s: float


def read_journal(path: Path, *kinds: str) -> list[JournalLine]:
    """Its lines so far, of these kinds or of all."""
    text = path.read_text() if path.exists() else ""
    lines = [JournalLine(**json.loads(line)) for line in text.splitlines()]
    return [line for line in lines if not kinds or line.kind in kinds]


def drill_environment(journal: Path | None = None, **settings: object) -> dict[str, str]:
    """What a process needs to have the drill engine, with its settings: ``faults="run:*=hang"``, ``request_s=0.1``."""
    paths = (DRILL_ENGINE, REPOSITORY, REPOSITORY / "storage", os.environ.get("PYTHONPATH", ""))
    environment = {"PYTHONPATH": os.pathsep.join(str(path) for path in paths if path)}
    if journal is not None:
        environment["DRILL_JOURNAL"] = str(journal)
    return environment | {f"DRILL_{name.upper()}": str(value) for name, value in settings.items()}


def a_config(drafted_tokens: int = 2) -> EngineConfig:
    """A draft with so many tokens; 0 is no speculation."""
    draft = Speculation(method=Method.NGRAM, draft_name="ngram", drafted_tokens=drafted_tokens)
    return EngineConfig(target_model="/models/drill", speculation=draft if drafted_tokens else NO_SPECULATION)


def a_task(
    kind: StageKind = StageKind.BASELINE,
    *,
    key: str = "key",
    drafted_tokens: int | None = None,
    num_prompts: int = 3,
    needs: Needs | None = None,
    environment: Mapping[str, str] | None = None,
    artifact_dir: Path | None = None,
    **changes: Any,
) -> StageTask:
    """A stage of the drill engine, which compiles only where there is a folder for artifacts.

    Its environment is ``drill_environment()`` with ``environment`` over it.
    """
    needs = needs or Needs(num_cpus=1)
    tokens = (0 if kind is StageKind.BASELINE else 2) if drafted_tokens is None else drafted_tokens
    without = {"DRILL_NEEDS_COMPILE": "0"} if artifact_dir is None else {}
    fields: dict[str, Any] = {
        "study_name": "drill",
        "kind": kind,
        "key": key,
        "engine": "drill",
        "config": a_config(tokens),
        "prompts": tuple(
            Prompt(prompt_id=f"p{n}", prompt_class="drill", text=f"prompt {n}") for n in range(num_prompts)
        ),
        "max_output_tokens": 16,
        "sampling": GREEDY,
        "concurrency": 1,
        "needs": replace(
            needs, environment={**drill_environment(), **needs.environment, **without, **(environment or {})}
        ),
        "artifacts": None if artifact_dir is None else ArtifactPlace(node_dir=str(artifact_dir)),
        "deadline_s": 60.0,
    }
    return StageTask(**fields | changes)


def processes_below(pid: int) -> list[psutil.Process]:
    """Every descendant of a process."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def leftovers(**environment: str) -> list[psutil.Process]:
    """Processes anywhere on this machine with these variables in their environment; zombies hold nothing."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            theirs = process.environ()
            if all(theirs.get(name) == value for name, value in environment.items()):
                found.append(process)
    return found


def command_line(process: psutil.Process) -> list[str]:
    """Its words; none where it is gone."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


BEHAVIOURS: Mapping[str, Mapping[str, object]] = {
    "works": {},
    "works slowly": {"request_s": 0.4},
    "talks": {"faults": "load:*=talk"},
    "fails": {"faults": "load:*=fail"},
    "has a bug": {"faults": "load:*=bug"},
    "crashes": {"faults": "load:*=segfault"},
    "hangs below": {"faults": "load:*=hang_below"},
}


def drill_task(behaviour: str, **changes: Any) -> StageTask:
    """A stage for ``tuner.testing.dispatchers``."""
    return a_task(environment=drill_environment(**BEHAVIOURS[behaviour]), **changes)
