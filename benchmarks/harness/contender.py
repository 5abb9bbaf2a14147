"""What takes part in a comparison: the protocol, and the CPU engine in each of its configurations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tuner.engines import load_engine
from tuner.engines.base import Artifact, LoadedEngine
from tuner.errors import MeasurementError
from tuner.records import Arrival, Prompt, RequestRecord
from tuner.request_log import RequestLog
from tuner.speculation import NO_SPECULATION, EngineConfig, Method, Speculation

# Every shipped prompt with its answer fits.
MAX_MODEL_LEN = 1024


class Contender(Protocol):
    """One way of generating, timed request by request."""

    @property
    def name(self) -> str:
        """As tables and JSON show it."""
        ...

    @property
    def reference(self) -> str:
        """Name of the contender that does the same without speculation; its own where it is that one."""
        ...

    def run(self, prompt: Prompt, max_output_tokens: int) -> RequestRecord:
        """Answer one prompt greedily."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerContender:
    """The CPU engine with one configuration loaded."""

    name: str
    reference: str
    loaded: LoadedEngine

    def run(self, prompt: Prompt, max_output_tokens: int) -> RequestRecord:
        """Answer one prompt greedily.

        Raises:
            MeasurementError: The engine failed.
        """
        arrival = Arrival(request_id=self.name, prompt=prompt, max_output_tokens=max_output_tokens)
        log = RequestLog([arrival], concurrency=1)
        for event in self.loaded.run([arrival]):
            log.add(event)
        (record,) = log.records()
        if not record.is_complete:
            raise MeasurementError(f"{self.name} failed on prompt {prompt.prompt_id!r}: {record.error}")
        return record


def speculations(eagle: Path, shallow: Path) -> dict[str, Speculation]:
    """The configurations of the CPU engine that are compared, by the name of their contender."""
    drafts = {
        "ngram": (Method.NGRAM, None, (5,)),
        "eagle": (Method.EAGLE, str(eagle), (2, 3)),
        "shallow": (Method.DRAFT_MODEL, str(shallow), (2, 3)),
    }
    configured = {
        f"tuner_{draft}_k{count}": Speculation(
            method=method, draft_name=draft, draft_model=folder, drafted_tokens=count
        )
        for draft, (method, folder, counts) in drafts.items()
        for count in counts
    }
    return {"tuner": NO_SPECULATION, **configured}


def load_tuner(target: Path, name: str, speculation: Speculation, threads: int) -> TunerContender:
    """Load one configuration of the CPU engine."""
    engine = load_engine("cpu")
    config = EngineConfig(
        target_model=str(target), speculation=speculation, max_model_len=MAX_MODEL_LEN, num_threads=threads
    )
    engine.check(config)
    loaded = engine.load(config, Artifact(key=engine.compile_key(config)))
    return TunerContender(name=name, reference="tuner", loaded=loaded)
