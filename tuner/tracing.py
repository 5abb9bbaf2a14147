"""Getting a study's acceptance traces: from the store, from the engine, or from what stands in for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tuner.errors import EngineError, MeasurementError, ModelError
from tuner.observer import Observer
from tuner.plan import SearchPlan
from tuner.predictions import prompt_lengths, target_outputs
from tuner.records import BaselineResult, TargetOutput, TraceResult, from_json, to_json
from tuner.reuse import find_trace, find_transferred, keep_trace, referring, whole, with_doubt
from tuner.stages import StageRunner, Wanted, Work
from tuner.store import TrialStore, utc_now
from tuner.trace_keys import TraceKey
from tuner.traces import TraceRecord
from tuner.transfer import key_of_stand_in

INEXACT_NOTICE = (
    "replay does not give this engine's own rounds: acceptance is measured, and predictions have wider limits"
)


class Tracer:
    """Gives each draft's trace along the target's outputs; a trace that any study made is not made again."""

    def __init__(
        self,
        plan: SearchPlan,
        store: TrialStore,
        stages: StageRunner,
        observer: Observer,
        provenance: Mapping[str, Any],
    ) -> None:
        self._plan = plan
        self._store = store
        self._stages = stages
        self._observer = observer
        self._provenance = provenance

    def works(self, baseline: BaselineResult, run: Callable[[Wanted], Work[bytes]]) -> list[Work[TraceResult | None]]:
        """One work for each draft: its trace with what proposing takes, or None after a notice.

        ``run`` gives a wanted stage its result.
        """
        try:
            outputs = target_outputs(baseline.measurement, self._plan.workload.search_sample())
        except MeasurementError as error:
            self._observer.notice(f"nothing can be predicted: {error.message}")
            return []
        if not self._plan.replay_is_exact:
            self._observer.notice(INEXACT_NOTICE)
        return [self._trace_if_any(name, outputs, baseline, run) for name in self._plan.space.draft_names]

    def _trace_if_any(
        self,
        draft: str,
        outputs: tuple[TargetOutput, ...],
        baseline: BaselineResult,
        run: Callable[[Wanted], Work[bytes]],
    ) -> Work[TraceResult | None]:
        try:
            return (yield from self._trace(draft, outputs, baseline, run))
        except (EngineError, ModelError) as error:
            self._observer.notice(f"{draft} cannot be replayed and is explored without predictions: {error.message}")
            return None

    def _trace(
        self,
        draft: str,
        outputs: tuple[TargetOutput, ...],
        baseline: BaselineResult,
        run: Callable[[Wanted], Work[bytes]],
    ) -> Work[TraceResult]:
        """The draft's trace: from the store where any study made it, else made now; its steps are timed here.

        An engine that cannot time steps cannot replay either: other numerics' traces serve it, with wider limits.
        """
        own = self._plan.trace_key(draft, outputs, baseline.measurement.environment)
        is_timed = baseline.verify is not None
        found = find_trace(self._store, own, self._plan.deepest)
        if found is None and not is_timed:
            found = find_transferred(self._store, own, self._plan.deepest)
        task = self._plan.trace_task(
            draft, () if found else outputs, prompt_lengths(baseline.measurement), is_timed=is_timed
        )
        if not self._stages.is_done(task):
            self._tell_source(draft, found, own, is_timed=is_timed)

        def kept(result: bytes) -> bytes:
            made = from_json(TraceResult, result)
            key = own if is_timed else key_of_stand_in(own, self._plan.deepest)
            known = referring(made, found) if found else self._keep_trace(made, key)
            return to_json(with_doubt(self._store, known, own, replay_is_exact=self._plan.replay_is_exact))

        return whole(self._store, from_json(TraceResult, (yield from run(Wanted(task=task, kept=kept)))))

    def _tell_source(self, draft: str, found: TraceRecord | None, own: TraceKey, *, is_timed: bool) -> None:
        """Say where a trace comes from, unless the engine makes it now."""
        if found is not None and found.key == own.key:
            self._observer.notice(f"{draft}: its acceptance trace {own.key} is in the database and is not made again")
        elif found is not None:
            origin = found.header["key"]["numerics"]["engine"]
            self._observer.notice(
                f"{draft}: predicted with wider limits from acceptance trace {found.key} in the database, "
                f"which {origin!r} made"
            )
        elif not is_timed:
            made = key_of_stand_in(own, self._plan.deepest)
            how = f"a run at k={self._plan.deepest}" if made.source == "log" else f"a {made.numerics.engine}"
            self._observer.notice(
                f"{draft}: engine {self._plan.space.engine!r} cannot replay it, so it is traced by {how} "
                "and predicted with wider limits"
            )

    def _keep_trace(self, made: TraceResult, key: TraceKey) -> TraceResult:
        facts = self._provenance  # of those the trace gets none that names a place: it may be carried elsewhere
        provenance = {
            **{name: facts[name] for name in ("packages", "python", "platform", "machine") if name in facts},
            "study": self._plan.name,
            "target": self._plan.target_name,
            "workload": self._plan.workload.name,
            "made_at": utc_now().isoformat(),
        }
        return keep_trace(self._store, made, key, provenance)
