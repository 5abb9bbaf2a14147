"""``tuner studies``: what is in the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuner.cli.arguments import AsJson, Storage, new_app

if TYPE_CHECKING:
    from tuner.store import StudyRecord
    from tuner_storage import SqlTrialStore

app = new_app()

RUNNING, INTERRUPTED, ENDED = "running", "interrupted", "ended"


@app.command("studies")
def studies(storage: Storage = None, as_json: AsJson = False) -> None:
    """List the studies in the database, oldest first: running, interrupted, or ended with which verdict."""
    from tuner.cli.output import print_json
    from tuner.cli.stored import opened_store

    with opened_store(storage) as store:
        found = [_description(store, study) for study in store.studies()]
    if as_json:
        print_json({"studies": found})
        return
    _print_table(found)


def _description(store: SqlTrialStore, study: StudyRecord) -> dict[str, Any]:
    from tuner.store import TrialState
    from tuner_storage import lock_holder

    decision = (study.conclusion or {}).get("decision") or {}
    holder = lock_holder(store, study.name)
    done = [trial for trial in store.trials(study.name) if trial.state is not TrialState.RUNNING]
    return {
        "study": study.name,
        "created_at": study.created_at.isoformat(),
        "workload": study.spec.get("workload", {}).get("name"),
        "target": study.spec.get("target"),
        "state": RUNNING if holder else INTERRUPTED if study.conclusion is None else ENDED,
        "run_by": holder,
        "stop_asked": holder is not None and store.stop_asked(study.name),
        "trials_done": len(done),
        "verdict": decision.get("verdict"),
        "sentence": decision.get("sentence"),
    }


def _print_table(found: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from tuner.cli.output import stdout_console

    console = stdout_console()
    if not found:
        console.print("No study yet; `tuner search --workload code-gen --quick` makes one.")
        return
    table = Table("Study", "Started", "State", box=None, pad_edge=False)
    table.add_column("Trials done", justify="right")
    table.add_column("Verdict")
    for one in found:
        started = one["created_at"][:16].replace("T", " ")
        table.add_row(one["study"], started, one["state"], str(one["trials_done"]), _verdict(one))
    console.print(table)


def _verdict(one: dict[str, Any]) -> str:
    if one["state"] == RUNNING:
        return f"run by {one['run_by']}" + (", which is asked to stop" if one["stop_asked"] else "")
    return one["sentence"] or "none yet; the command that started it goes on with it"
