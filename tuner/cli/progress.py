"""What a search does, shown on stderr while it does it: bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from tuner.records import StageKind
from tuner.store import TrialRecord, TrialState

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from tuner.dispatch import StageStatus
    from tuner.observer import Observer
    from tuner.stopping import Standing
    from tuner.timetable import SearchOutlook
    from tuner.trial import StageTask

ResultT = TypeVar("ResultT")

STAGE_WORDS = {
    StageKind.BASELINE: "measuring no speculation",
    StageKind.TRACE: "replaying {draft} along the outputs",
    StageKind.COMPILE: "compiling {label}",
    StageKind.MEASURE: "measuring {label}",
    StageKind.CERTIFY: "certifying {label}",
}
WORDS_WITHOUT_TRACING = "timing {draft}"
"""Of a draft whose trace is in the database."""

REDRAWS_PER_S = 2
"""Drawing takes time of the cores that are timed."""


@contextmanager
def observing() -> Iterator[Observer]:
    """An observer for the stderr that there is."""
    if not sys.stderr.isatty():
        yield LineObserver()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeftColumn

    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=16), MofNCompleteColumn(),
        TextColumn("prompts,"), TimeLeftColumn(compact=True), TextColumn("left"),
    )  # fmt: skip
    console = Console(stderr=True, highlight=False, markup=False)
    with Progress(*columns, console=console, transient=True, refresh_per_second=REDRAWS_PER_S) as bars:
        yield BarObserver(bars)


def run_observed(run: Callable[[Observer], ResultT], kept: str, *, as_json: bool) -> ResultT:
    """Run with an observer; Ctrl-C ends the command with what is ``kept``, and that the same command goes on."""
    import typer

    from tuner.cli.output import INTERRUPTED, report_interruption

    try:
        with observing() as observer:
            return run(observer)
    except KeyboardInterrupt:
        report_interruption(f"{kept} is kept, and the same command goes on from there", as_json=as_json)
        raise typer.Exit(INTERRUPTED) from None


class LineObserver:
    """One plain line per stage, trial and notice."""

    def stage_began(self, task: StageTask) -> None:
        """Say which stage runs, over how many prompts."""
        prompts = num_prompts(task)
        count = "1 prompt" if prompts == 1 else f"{prompts} prompts"
        self._say(f"{stage_words(task)}: {count}" if prompts else stage_words(task))

    def stage_seen(self, task: StageTask, status: StageStatus) -> None:
        """Nothing: lines are for what begins and ends."""

    def stage_ended(self, task: StageTask, status: StageStatus | None) -> None:
        """Nothing: the trial's line says how it went."""

    def trial_ended(self, trial: TrialRecord) -> None:
        """Say what became of a trial."""
        self._say(trial_words(trial))

    def standing(self, standing: Standing) -> None:
        """Say what could still beat the best."""
        self._say(standing_words(standing))

    def outlook(self, outlook: SearchOutlook) -> None:
        """Nothing yet."""

    def notice(self, text: str) -> None:
        """Pass it on."""
        self._say(f"note: {text}")

    def _say(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


class BarObserver:
    """A bar per running stage, with prompts done and time left; a line per trial and notice."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._running: dict[tuple[StageKind, str], TaskID] = {}

    def stage_began(self, task: StageTask) -> None:
        """Show a bar."""
        self._running[task.kind, task.key] = self._bars.add_task(stage_words(task), total=num_prompts(task) or None)

    def stage_seen(self, task: StageTask, status: StageStatus) -> None:
        """Move its bar."""
        bar = self._running.get((task.kind, task.key))
        if bar is not None and status.total:
            self._bars.update(bar, completed=status.done, total=status.total)

    def stage_ended(self, task: StageTask, status: StageStatus | None) -> None:  # noqa: ARG002
        """Take its bar away."""
        bar = self._running.pop((task.kind, task.key), None)
        if bar is not None:
            self._bars.remove_task(bar)

    def trial_ended(self, trial: TrialRecord) -> None:
        """Say what became of a trial, above the bars."""
        self._bars.console.print(trial_words(trial))

    def standing(self, standing: Standing) -> None:
        """Say what could still beat the best, above the bars."""
        self._bars.console.print(standing_words(standing))

    def outlook(self, outlook: SearchOutlook) -> None:
        """Nothing yet."""

    def notice(self, text: str) -> None:
        """Pass it on, above the bars."""
        self._bars.console.print(f"note: {text}")


def stage_words(task: StageTask) -> str:
    """What a stage does, for a person."""
    speculation = task.config.speculation
    is_traced = task.kind is StageKind.TRACE and not task.outputs
    words = WORDS_WITHOUT_TRACING if is_traced else STAGE_WORDS[task.kind]
    return words.format(label=speculation.label, draft=speculation.draft_name)


def num_prompts(task: StageTask) -> int:
    """Prompts that a stage works through."""
    return len(task.outputs) if task.kind is StageKind.TRACE else len(task.prompts)


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
