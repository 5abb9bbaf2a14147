"""``tuner cancel``: ends a search that runs somewhere, and keeps what it has found."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.arguments import AsJson, Storage, new_app
from tuner.errors import TunerError

if TYPE_CHECKING:
    from tuner.store import StudyRecord
    from tuner_storage import SqlTrialStore

app = new_app()

LOOK_INTERVAL_S = 0.2


@app.command("cancel")
def cancel(
    study: Annotated[str, typer.Argument(metavar="STUDY", show_default=False, help="Name of a study.")],
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, help="Longest time to wait until it has stopped; 0 only asks."
        ),
    ] = 60,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Stop a search, wherever it runs: its stages end, and all results are kept."""
    from tuner.cli.output import print_json
    from tuner.cli.stored import opened_store
    from tuner_storage import lock_holder

    with opened_store(storage) as store:
        record = store.study(study)
        holder = lock_holder(store, study)
        ended = _end_orphans(record) if holder is None else None
        has_stopped = holder is None or _stop(store, study, holder, wait_s)
    if as_json:
        print_json({"study": study, "run_by": holder, "has_stopped": has_stopped, "stages_ended": ended})
    else:
        sys.stdout.write(_sentence(record, holder, has_stopped=has_stopped, ended=ended) + "\n")


def _end_orphans(study: StudyRecord) -> int | None:
    """End what nobody waits for on a standing cluster; None where the study had none."""
    from tuner.api import end_stages

    address = study.provenance.get("ray_address")
    return None if address is None else end_stages(address, study.name)


def _stop(store: SqlTrialStore, study_name: str, holder: str, wait_s: float) -> bool:
    """Ask whoever runs the study to stop, and whether it did."""
    from tuner_storage import lock_holder

    store.ask_to_stop(study_name)
    if not wait_s:
        return False
    sys.stderr.write(f"asked {holder} to stop; waiting up to {wait_s:g} s\n")
    deadline_s = time.monotonic() + wait_s
    while lock_holder(store, study_name) is not None:
        if time.monotonic() >= deadline_s:
            raise TunerError(
                f"study {study_name!r} is still being run by {holder}, {wait_s:g} s after it was asked to stop",
                "wait longer with --wait; where that process hangs, end it: what is finished is kept",
            )
        time.sleep(LOOK_INTERVAL_S)
    store.withdraw_stop(study_name)  # it may have ended by itself; the next search is not meant
    return True


def _sentence(study: StudyRecord, holder: str | None, **found: Any) -> str:
    if holder is not None and not found["has_stopped"]:
        return f"asked {holder} to stop study {study.name!r}"
    if holder is not None:
        return f"study {study.name!r} has stopped; what is finished is kept, and the same command goes on from there"
    sentence = f"nobody runs study {study.name!r}"
    if found["ended"] is None:
        return sentence
    address = study.provenance["ray_address"]
    return f"{sentence}; stages that it had left on the Ray cluster {address} and that were ended: {found['ended']}"
