"""Where what was run and seen is kept: the records, and the protocol of a store."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Protocol

from tuner.errors import ConfigurationError, NotFoundError, StorageError, StudyMismatchError
from tuner.records import StageKind
from tuner.speculation import Speculation, content_key
from tuner.traces import TraceRecord


class StageState(StrEnum):
    """How far a stage got."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class TrialState(StrEnum):
    """How far a trial got. INFEASIBLE: the configuration cannot run. LOST: the machines failed it."""

    RUNNING = "running"
    COMPLETE = "complete"
    INFEASIBLE = "infeasible"
    LOST = "lost"


def utc_now() -> datetime:
    """The present moment, aware, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """One search: what was asked for.

    Attributes:
        name: Unique in the store, at most 512 characters.
        spec: JSON-able description of everything that decides the result (target, workload with its prompts'
            hash, space, objectives, seed, engine). Two searches with equal specs are the same study.
        provenance: Package versions, machine, command line: facts that do not decide identity.
        conclusion: The verdict as JSON once the study ended; None before.
    """

    name: str
    spec: Mapping[str, Any]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    created_at: datetime = field(default_factory=utc_now)
    conclusion: Mapping[str, Any] | None = None

    @property
    def spec_key(self) -> str:
        """Equal for studies that ask for the same thing."""
        return content_key(dict(self.spec))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """One piece of work of a study and, when it is done, its result.

    Attributes:
        key: What it worked on, by content; with ``study_name`` and ``kind`` it names the stage.
        label: What a person calls its configuration, as ``Speculation.label``: "good k=5".
        attempt: Counts from 0; a lost worker raises it.
        node: The machine that runs it or ran it; None before it has one.
        result: The stage's record as JSON bytes (``records.to_json``); None until it is done.
        error_type: Class name of the error it failed with.
    """

    study_name: str
    kind: StageKind
    key: str
    label: str = ""
    attempt: int = 0
    node: str | None = None
    state: StageState = StageState.RUNNING
    started_at: datetime = field(default_factory=utc_now)
    ended_at: datetime | None = None
    result: bytes | None = None
    error_type: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLog:
    """What one attempt of a stage wrote while it ran.

    Attributes:
        attempt: With ``study_name``, ``kind`` and ``key`` it names the log.
        label: As ``StageRecord.label``.
        text: At most 256 KiB: the end of what was written.
    """

    study_name: str
    kind: StageKind
    key: str
    attempt: int
    label: str
    node: str | None
    text: str
    ended_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One configuration that was asked for, and what became of it.

    Attributes:
        number: Optuna's trial number; 0 is the baseline.
        values: Objective values by name, all finite; empty until it is complete.
        metrics: Every other derived figure, for tables; None where it does not exist.
        duplicate_of: Number of the earlier trial whose result this one repeats.
        predicted: What replay predicted before it was measured, by metric name.
        error: Why it is infeasible or lost.
    """

    study_name: str
    number: int
    speculation: Speculation
    state: TrialState = TrialState.RUNNING
    values: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    predicted: Mapping[str, float] = field(default_factory=dict)
    duplicate_of: int | None = None
    error_type: str | None = None
    error: str | None = None
    created_at: datetime = field(default_factory=utc_now)
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoEntry:
    """A member of a study's Pareto front.

    Attributes:
        trial_number: The measured trial; None for a predicted configuration.
        is_measured: Only measured members can be recommended or exported.
        probability: Of being on the true front; None where it was not estimated.
    """

    speculation: Speculation
    values: Mapping[str, float]
    trial_number: int | None
    is_measured: bool
    probability: float | None = None


class TrialStore(Protocol):
    """What a store does. Each method is one transaction: after it returns, nothing of it can be lost."""

    def add_study(self, study: StudyRecord) -> StudyRecord:
        """Keep a new study, or give back the stored one of that name.

        Raises:
            StudyMismatchError: A study of that name exists with another spec; names what differs.
            ConfigurationError: The name is empty, too long or not printable.
        """
        ...

    def study(self, name: str) -> StudyRecord:
        """The study of that name.

        Raises:
            NotFoundError: There is none; the hint lists near names.
        """
        ...

    def studies(self) -> tuple[StudyRecord, ...]:
        """All studies, oldest first."""
        ...

    def conclude(self, study_name: str, conclusion: Mapping[str, Any], front: Sequence[ParetoEntry]) -> None:
        """Keep the verdict and replace the front, together.

        Raises:
            StorageError: A probability is none.
        """
        ...

    def pareto_front(self, study_name: str) -> tuple[ParetoEntry, ...]:
        """The front as last concluded, in the order given then."""
        ...

    def save_stage(self, stage: StageRecord) -> None:
        """Insert or replace the stage named by (study, kind, key).

        A stage that is done stays as it is: saving it again is an error unless the record is equal.

        Raises:
            StorageError: It is already done with another result.
        """
        ...

    def stage(self, study_name: str, kind: StageKind, key: str) -> StageRecord | None:
        """The stage, or None."""
        ...

    def stages(self, study_name: str) -> tuple[StageRecord, ...]:
        """All stages of a study in order of their start, without their results."""
        ...

    def compile_of(self, key: str) -> StageRecord | None:
        """How compiling what has this key ended, in any study: the newest that is done, else the newest that failed.

        None where it never ended.
        """
        ...

    def save_log(self, log: StageLog) -> None:
        """Keep what an attempt of a stage wrote; replaces the log of the same attempt.

        Characters that a database would refuse are replaced, see ``storable_text``.
        """
        ...

    def logs(self, study_name: str, label: str | None = None) -> tuple[StageLog, ...]:
        """The logs of a study's stages, or of those with this label, oldest first."""
        ...

    def save_trial(self, trial: TrialRecord) -> None:
        """Insert or replace the trial named by (study, number).

        Raises:
            StorageError: A value is not finite, or a finished trial would change.
        """
        ...

    def trials(self, study_name: str) -> tuple[TrialRecord, ...]:
        """All trials of a study by number."""
        ...

    def save_trace(self, trace: TraceRecord) -> bool:
        """Keep a trace, unless one of the same key that is at least as deep is kept already.

        Returns:
            Whether it was written.

        Raises:
            StorageError: It has no data.
        """
        ...

    def trace(self, key: str) -> TraceRecord | None:
        """The trace of that key with its data, or None."""
        ...

    def traces(self, path_key: str | None = None) -> tuple[TraceRecord, ...]:
        """All traces, or those along the same outputs, oldest first and without their data."""
        ...

    def ask_to_stop(self, study_name: str) -> None:
        """Ask whoever runs the study to stop; asking again changes nothing.

        Raises:
            NotFoundError: There is no study of that name.
        """
        ...

    def stop_asked(self, study_name: str) -> bool:
        """Whether the study is asked to stop."""
        ...

    def withdraw_stop(self, study_name: str) -> None:
        """No longer ask the study to stop."""
        ...

    def close(self) -> None:
        """Release connections. May be called twice."""
        ...


MAX_NAME_LENGTH = 512
"""Optuna's own limit for study names, on every database."""


def check_study_name(name: str) -> None:
    """Refuse names that some database would not take, or that would break the line they are printed in.

    Raises:
        ConfigurationError: Empty, longer than 512 characters, or with a character that cannot be printed.
    """
    if not name.strip():
        raise ConfigurationError("the study name is empty", "give --name a few letters")
    if not name.isprintable():
        raise ConfigurationError(
            f"the study name {name[:80]!a} holds a line break or another character that cannot be printed",
            "give --name in letters that can be seen",
        )
    if len(name) > MAX_NAME_LENGTH:
        raise ConfigurationError(
            f"the study name has {len(name)} characters, the limit is {MAX_NAME_LENGTH}", "give a shorter --name"
        )


def check_same_study(stored: StudyRecord, asked: StudyRecord) -> None:
    """Refuse to continue a study with other settings than it was started with.

    Raises:
        StudyMismatchError: Names every setting that differs, with both values.
    """
    if stored.spec_key == asked.spec_key:
        return
    before, now = _flat(stored.spec), _flat(asked.spec)
    lines = [
        f"  {name}: stored {before.get(name)!r}, now {now.get(name)!r}"
        for name in sorted(set(before) | set(now))
        if before.get(name) != now.get(name)
    ]
    raise StudyMismatchError(
        f"study {stored.name!r} was started with other settings:\n" + "\n".join(lines),
        "give another --name, or the settings it was started with",
    )


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def no_such_study(name: str, existing: Sequence[str]) -> NotFoundError:
    """The error for a name that no study has; the hint lists near names, or the latest where none is near."""
    near = get_close_matches(name, existing, n=5) or existing[-5:]
    known = ", ".join(repr(one) for one in near)
    return NotFoundError(
        f"no study named {name!r}", f"there are: {known}" if known else "run `tuner search` to make one"
    )


def storable_text(text: str) -> str:
    """The text as every database takes it: NUL and what is no character of Unicode are replaced."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def check_stage_change(stored: StageRecord | None, new: StageRecord) -> None:
    """Refuse to overwrite the result of a stage that is done.

    Raises:
        StorageError: The stored stage is done and differs from the new one.
    """
    if stored is not None and stored.state is StageState.DONE and stored != new:
        raise StorageError(
            f"stage {new.kind} {new.key} of study {new.study_name!r} is already done; its result cannot change"
        )


def check_trial_change(stored: TrialRecord | None, new: TrialRecord) -> None:
    """Refuse values that are not numbers, and any change of a finished trial.

    Raises:
        StorageError: A value is NaN or infinite, or the stored trial is finished and differs.
    """
    bad = {name: value for name, value in new.values.items() if not math.isfinite(value)}
    if bad:
        raise StorageError(f"trial {new.number} of study {new.study_name!r} has values that are not finite: {bad}")
    if stored is not None and stored.state is not TrialState.RUNNING and stored != new:
        raise StorageError(f"trial {new.number} of study {new.study_name!r} is finished and cannot change")


def check_front(front: Sequence[ParetoEntry]) -> None:
    """Refuse a probability that is none: SQLite would keep NaN as "not estimated".

    Raises:
        StorageError: It lies outside 0 to 1.
    """
    for entry in front:
        if entry.probability is not None and not 0 <= entry.probability <= 1:
            raise StorageError(f"{entry.speculation.label} cannot be on the front with probability {entry.probability}")


def check_has_data(trace: TraceRecord) -> None:
    """Refuse a trace that comes from a listing.

    Raises:
        StorageError: It has no data.
    """
    if trace.data is None:
        raise StorageError(f"trace {trace.key} has no data to keep")
