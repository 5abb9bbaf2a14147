"""The trials of one study: read from memory, written to the store first and then told to Optuna."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tuner.observer import Observer
from tuner.outcome import TrialOutcome
from tuner.speculation import Speculation
from tuner.store import TrialRecord, TrialState, TrialStore, utc_now
from tuner.study import Asked, TrialLedger

ANSWERED = (TrialState.COMPLETE, TrialState.INFEASIBLE)


class TrialBook:
    """Trials by number. One driver writes to a study, so that memory and store agree.

    Args:
        configurations: What may be tried, no speculation among it.
    """

    def __init__(
        self,
        store: TrialStore,
        ledger: TrialLedger,
        observer: Observer,
        study_name: str,
        configurations: Sequence[Speculation],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._observer = observer
        self._study_name = study_name
        self._rows: dict[int, TrialRecord] = {}
        self._running: dict[int, TrialRecord] = {}
        self._keys_running: dict[int, str] = {}
        self._configurations = {one.key: one for one in configurations}
        self._first: dict[str, TrialRecord] = {}

    def recall(self) -> None:
        """Read the trials of earlier runs, and repair what Optuna knows of them."""
        for row in self._store.trials(self._study_name):
            self._note(row)
        self._ledger.reconcile(self.all)

    @property
    def all(self) -> tuple[TrialRecord, ...]:
        """All trials by number."""
        return tuple(self._rows[number] for number in sorted(self._rows))

    @property
    def running(self) -> tuple[TrialRecord, ...]:
        """Trials that have no result yet."""
        return tuple(self._running[number] for number in sorted(self._running))

    @property
    def in_flight(self) -> set[str]:
        """Keys of the configurations that are being tried."""
        return set(self._keys_running.values())

    @property
    def answered(self) -> Mapping[str, TrialRecord]:
        """First finished trial of each configuration, by the configuration's key; a later one where it was retried."""
        return self._first

    @property
    def measured(self) -> tuple[TrialRecord, ...]:
        """One complete trial of each configuration that has one."""
        return tuple(row for row in self._first.values() if row.state is TrialState.COMPLETE)

    def taken(self) -> set[str]:
        """Keys of configurations that were tried or are being tried."""
        return {*self._first, *self.in_flight}

    def open(self, asked: Asked, predicted: Mapping[str, float] | None = None) -> TrialRecord:
        """A trial that Optuna asked for, kept as running."""
        row = TrialRecord(
            study_name=self._study_name,
            number=asked.number,
            speculation=asked.speculation,
            predicted=dict(predicted or {}),
        )
        self._store.save_trial(row)
        self._note(row)
        return row

    def finish(self, row: TrialRecord, outcome: TrialOutcome) -> None:
        """Keep what became of a trial: our row, then Optuna, then whoever listens."""
        ended = outcome.applied_to(row, utc_now())
        self._end(ended)
        self._observer.trial_ended(ended)

    def repeat(self, row: TrialRecord, earlier: TrialRecord) -> None:
        """Answer a trial with the result of an earlier one of the same configuration."""
        number, created_at = row.number, row.created_at
        self._end(
            replace(earlier, number=number, duplicate_of=earlier.number, created_at=created_at, ended_at=utc_now())
        )

    def _end(self, ended: TrialRecord) -> None:
        self._store.save_trial(ended)
        self._note(ended)
        self._ledger.tell(ended)

    def _note(self, row: TrialRecord) -> None:
        self._rows[row.number] = row
        key = self._keys_running.pop(row.number, None) or row.speculation.key
        self._running.pop(row.number, None)
        if row.state is TrialState.RUNNING:
            self._running[row.number], self._keys_running[row.number] = row, key
        if row.state not in ANSWERED or row.duplicate_of is not None:
            return
        known = self._first.get(key)
        if known is None or known.state is TrialState.INFEASIBLE:
            self._first[key] = row

    @property
    def untried(self) -> tuple[Speculation, ...]:
        """Configurations that neither were tried nor are being tried, in their order."""
        taken = self.taken()
        return tuple(one for key, one in self._configurations.items() if key not in taken)
