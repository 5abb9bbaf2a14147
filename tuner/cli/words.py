"""What a search does, in words for the person who watches it."""

from __future__ import annotations

import platform
from datetime import datetime
from typing import TYPE_CHECKING

from tuner.records import StageKind
from tuner.store import TrialRecord, TrialState

if TYPE_CHECKING:
    from tuner.stopping import Standing
    from tuner.timetable import SearchOutlook
    from tuner.trial import StageTask

STAGE_WORDS = {
    StageKind.BASELINE: "measuring no speculation",
    StageKind.TRACE: "replaying {draft} along the outputs",
    StageKind.COMPILE: "compiling {label}",
    StageKind.MEASURE: "measuring {label}",
    StageKind.CERTIFY: "certifying {label}",
}
WORDS_WITHOUT_TRACING = "timing {draft}"
"""Of a draft whose trace is in the database."""


def stage_words(task: StageTask) -> str:
    """What a stage does."""
    speculation = task.config.speculation
    is_traced = task.kind is StageKind.TRACE and not task.outputs
    words = WORDS_WITHOUT_TRACING if is_traced else STAGE_WORDS[task.kind]
    return words.format(label=speculation.label, draft=speculation.draft_name)


def num_prompts(task: StageTask) -> int:
    """Prompts that a stage works through."""
    return len(task.outputs) if task.kind is StageKind.TRACE else len(task.prompts)


def duration_words(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any: 2:10, 1:02:10."""
    minutes, rest = divmod(max(int(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def elapsed_words(elapsed_s: float, expected_s: float | None) -> str:
    """How long something has run, of how long it is expected to."""
    words = duration_words(elapsed_s)
    return words if expected_s is None else f"{words} of ~{duration_words(expected_s)}"


def node_words(node: str | None) -> str:
    """Where something runs, unless it is this machine."""
    return "" if node in (None, platform.node()) else f"on {node}"


def awaited_words(waiting_for: str) -> str:
    """What something waits for, in one line: what machines have is a line for each."""
    return " ".join(waiting_for.split())


def outlook_words(outlook: SearchOutlook, now: datetime) -> str:
    """How far the search is and when it ends, in a line.

    Args:
        outlook: As the search told it.
        now: The present moment, in the time zone of the person.
    """
    words = []
    if outlook.most_trials > 1:
        words.append(f"trials {outlook.trials} of at most {outlook.most_trials}")
        if outlook.running:
            words.append(f"{outlook.running} running")
    if outlook.ends_at is not None:
        ends_at, is_over = outlook.ends_at.astimezone(now.tzinfo), outlook.ends_at < now
        moment = f"{ends_at:%H:%M}" if ends_at.date() == now.date() else f"{ends_at:%a %d %b, %H:%M}"
        words.append(f"was to end by {moment}" if is_over else f"ends by {moment} at the latest")
    return ", ".join(words)


def standing_words(standing: Standing) -> str:
    """What could still beat the best, in a line."""
    best = "no speculation" if standing.best is None else f"{standing.best.label}, {_times(standing.best_speedup)}"
    open_ones = []
    if standing.most_promising is not None:
        others = f"{standing.num_open} others" if standing.num_open > 1 else "1 other"
        open_ones.append(
            f"{others} could beat it, first {standing.most_promising.label}: "
            f"{_times(standing.most_promising_speedup)} expected, {_times(standing.most_promising_bound)} at most"
        )
    if standing.num_unpredicted:
        open_ones.append(f"{standing.num_unpredicted} cannot be predicted")
    return f"  best so far: {best}; {'; '.join(open_ones) or 'no other is worth a trial'}"


def _times(speedup: float | None) -> str:
    return "unknown" if speedup is None else f"{speedup:.2f}×"


def trial_words(trial: TrialRecord) -> str:
    """What became of a trial, in a line."""
    name = f"trial {trial.number}, {trial.speculation.label}"
    if trial.state is not TrialState.COMPLETE:
        reason = next(iter((trial.error or "").splitlines()), "")
        return f"{name}: cannot run: {reason}" if trial.state is TrialState.INFEASIBLE else f"{name}: {trial.state}"
    tpot, speedup = trial.metrics.get("tpot_ms_mean"), trial.metrics.get("speedup")
    figures = [] if tpot is None else [f"{tpot:.1f} ms per output token"]
    if speedup is not None and not trial.speculation.is_baseline:
        predicted = trial.predicted.get("speedup")
        beside = "" if predicted is None else f" ({predicted:.2f} predicted)"
        figures.append(f"{speedup:.2f} times the speed of no speculation{beside}")
    return f"{name}: {', '.join(figures) or 'measured'}"
