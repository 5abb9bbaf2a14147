"""One real database file for each released schema, to prove that every one of them can be upgraded.

    python -m tests.support.schemas

writes the file of the present schema; run it once for a new revision, before its release, and commit the file.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from tuner.speculation import NO_SPECULATION, Method, Speculation
from tuner.store import (
    ParetoEntry,
    StageKind,
    StageLog,
    StageRecord,
    StageState,
    StudyRecord,
    TrialRecord,
    TrialState,
)
from tuner.traces import TraceRecord
from tuner_storage import open_store, schema_status

FOLDER = Path(__file__).parents[1] / "data" / "schemas"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EAGLE = Speculation(method=Method.EAGLE, draft_name="eagle", draft_model="/models/eagle", drafted_tokens=3)


def write_database(folder: Path) -> Path:
    """A database with something in every column of the present schema, named by its revision."""
    path = folder / "new.sqlite"
    store = open_store(f"sqlite:///{path}")
    store.add_study(StudyRecord(name="code-gen", spec={"seed": 7}, provenance={"argv": []}, created_at=NOON))
    store.save_stage(
        StageRecord(
            study_name="code-gen",
            kind=StageKind.BASELINE,
            key="0123",
            label="no speculation",
            node="10.0.0.7",
            state=StageState.DONE,
            started_at=NOON,
            ended_at=NOON,
            result=b'{"wall_s": 1.5}',
        )
    )
    store.save_stage(StageRecord(study_name="code-gen", kind=StageKind.TRACE, key="4567", error_type="E", error="e"))
    store.save_log(
        StageLog(
            study_name="code-gen",
            kind=StageKind.BASELINE,
            key="0123",
            attempt=0,
            label="no speculation",
            node="10.0.0.7",
            text="loading\n",
            ended_at=NOON,
        )
    )
    store.ask_to_stop("code-gen")
    for trial in (_trial(0, NO_SPECULATION, 1000.0), _trial(1, EAGLE, 800.0)):
        store.save_trial(trial)
    front = ParetoEntry(speculation=EAGLE, values={"e2e_ms": 800.0}, trial_number=1, is_measured=True, probability=0.75)
    store.conclude("code-gen", {"verdict": "speculate"}, [front])
    store.save_trace(
        TraceRecord(key="89ab", path_key="cdef", header={"prompts": 1}, depth=4, data=b"PK\x03\x04", created_at=NOON)
    )
    revision = schema_status(store.engine).head
    store.close()
    return path.rename(folder / f"{revision}.sqlite")


def _trial(number: int, speculation: Speculation, e2e_ms: float) -> TrialRecord:
    return TrialRecord(
        study_name="code-gen",
        number=number,
        speculation=speculation,
        state=TrialState.COMPLETE,
        values={"e2e_ms": e2e_ms},
        metrics={"tpot_ms": None},
        predicted={"speedup": 1.2},
        duplicate_of=None,
        created_at=NOON,
        ended_at=NOON,
    )


if __name__ == "__main__":
    sys.stdout.write(f"{write_database(FOLDER)}\n")
