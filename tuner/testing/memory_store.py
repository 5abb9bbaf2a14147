"""A store that forgets everything at the end of the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tuner.records import StageKind
from tuner.store import (
    ParetoEntry,
    StageLog,
    StageRecord,
    StageState,
    StudyRecord,
    TrialRecord,
    check_front,
    check_has_data,
    check_same_study,
    check_stage_change,
    check_study_name,
    check_trial_change,
    no_such_study,
    storable_text,
)
from tuner.traces import TraceRecord


class MemoryStore:
    """Keeps studies, stages and trials in this process, for tests."""

    def __init__(self) -> None:
        self._studies: dict[str, StudyRecord] = {}
        self._stages: dict[tuple[str, StageKind, str], StageRecord] = {}
        self._logs: dict[tuple[str, StageKind, str, int], StageLog] = {}
        self._to_stop: set[str] = set()
        self._trials: dict[tuple[str, int], TrialRecord] = {}
        self._fronts: dict[str, tuple[ParetoEntry, ...]] = {}
        self._traces: dict[str, TraceRecord] = {}

    def add_study(self, study: StudyRecord) -> StudyRecord:
        """See ``TrialStore.add_study``."""
        check_study_name(study.name)
        stored = self._studies.setdefault(study.name, study)
        check_same_study(stored, study)
        return stored

    def study(self, name: str) -> StudyRecord:
        """See ``TrialStore.study``."""
        if name not in self._studies:
            raise no_such_study(name, tuple(self._studies))
        return self._studies[name]

    def studies(self) -> tuple[StudyRecord, ...]:
        """See ``TrialStore.studies``."""
        return tuple(sorted(self._studies.values(), key=lambda study: study.created_at))

    def conclude(self, study_name: str, conclusion: Mapping[str, Any], front: Sequence[ParetoEntry]) -> None:
        """See ``TrialStore.conclude``."""
        check_front(front)
        self._studies[study_name] = replace(self.study(study_name), conclusion=dict(conclusion))
        self._fronts[study_name] = tuple(front)

    def pareto_front(self, study_name: str) -> tuple[ParetoEntry, ...]:
        """See ``TrialStore.pareto_front``."""
        return self._fronts.get(study_name, ())

    def save_stage(self, stage: StageRecord) -> None:
        """See ``TrialStore.save_stage``."""
        self.study(stage.study_name)
        key = (stage.study_name, stage.kind, stage.key)
        check_stage_change(self._stages.get(key), stage)
        self._stages[key] = stage

    def stage(self, study_name: str, kind: StageKind, key: str) -> StageRecord | None:
        """See ``TrialStore.stage``."""
        return self._stages.get((study_name, kind, key))

    def stages(self, study_name: str) -> tuple[StageRecord, ...]:
        """See ``TrialStore.stages``."""
        mine = (stage for stage in self._stages.values() if stage.study_name == study_name)
        return tuple(replace(stage, result=None) for stage in sorted(mine, key=lambda stage: stage.started_at))

    def compile_of(self, key: str) -> StageRecord | None:
        """See ``TrialStore.compile_of``."""
        ended = [
            stage
            for stage in self._stages.values()
            if stage.kind is StageKind.COMPILE and stage.key == key and stage.state is not StageState.RUNNING
        ]
        return max(
            ended,
            key=lambda stage: (stage.state is StageState.DONE, stage.ended_at or stage.started_at),
            default=None,
        )

    def save_log(self, log: StageLog) -> None:
        """See ``TrialStore.save_log``."""
        self.study(log.study_name)
        self._logs[log.study_name, log.kind, log.key, log.attempt] = replace(log, text=storable_text(log.text))

    def logs(self, study_name: str, label: str | None = None) -> tuple[StageLog, ...]:
        """See ``TrialStore.logs``."""
        mine = (log for log in self._logs.values() if log.study_name == study_name and label in (None, log.label))
        return tuple(sorted(mine, key=lambda log: log.ended_at))

    def save_trial(self, trial: TrialRecord) -> None:
        """See ``TrialStore.save_trial``."""
        self.study(trial.study_name)
        check_trial_change(self._trials.get((trial.study_name, trial.number)), trial)
        self._trials[trial.study_name, trial.number] = trial

    def trials(self, study_name: str) -> tuple[TrialRecord, ...]:
        """See ``TrialStore.trials``."""
        mine = (trial for trial in self._trials.values() if trial.study_name == study_name)
        return tuple(sorted(mine, key=lambda trial: trial.number))

    def save_trace(self, trace: TraceRecord) -> bool:
        """See ``TrialStore.save_trace``."""
        check_has_data(trace)
        stored = self._traces.get(trace.key)
        if stored is not None and stored.depth >= trace.depth:
            return False
        self._traces[trace.key] = trace
        return True

    def trace(self, key: str) -> TraceRecord | None:
        """See ``TrialStore.trace``."""
        return self._traces.get(key)

    def traces(self, path_key: str | None = None) -> tuple[TraceRecord, ...]:
        """See ``TrialStore.traces``."""
        wanted = (one for one in self._traces.values() if path_key is None or one.path_key == path_key)
        return tuple(replace(one, data=None) for one in sorted(wanted, key=lambda one: one.created_at))

    def ask_to_stop(self, study_name: str) -> None:
        """See ``TrialStore.ask_to_stop``."""
        self._to_stop.add(self.study(study_name).name)

    def stop_asked(self, study_name: str) -> bool:
        """See ``TrialStore.stop_asked``."""
        return study_name in self._to_stop

    def withdraw_stop(self, study_name: str) -> None:
        """See ``TrialStore.withdraw_stop``."""
        self._to_stop.discard(study_name)

    def close(self) -> None:
        """Nothing to release."""
