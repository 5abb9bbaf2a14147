"""Stages to watch, and a clock that stands until it is moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tuner.records import GREEDY, Prompt, StageKind, TargetOutput
from tuner.speculation import NO_SPECULATION, EngineConfig, Speculation
from tuner.trial import StageTask

PROMPTS = tuple(Prompt(prompt_id=name, prompt_class="any", text="x") for name in ("a", "b"))
NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


class Clock:
    """Seconds and moments, as ``now_s`` and ``now`` of whoever watches."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.seconds - 1000.0)


def a_task(kind: StageKind, speculation: Speculation = NO_SPECULATION) -> StageTask:
    is_trace = kind is StageKind.TRACE
    return StageTask(
        study_name="s",
        kind=kind,
        key=f"key of {speculation.label}",
        engine="cpu",
        config=EngineConfig(target_model="m", speculation=speculation),
        prompts=() if is_trace or kind is StageKind.COMPILE else PROMPTS,
        max_output_tokens=8,
        sampling=GREEDY,
        concurrency=1,
        outputs=tuple(TargetOutput(prompt=one, token_ids=(1,), max_output_tokens=8) for one in PROMPTS[:1])
        if is_trace
        else (),
    )
