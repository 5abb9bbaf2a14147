"""``tuner studies``: what is in the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuner.cli.arguments import AsJson, Storage, new_app

if TYPE_CHECKING:
    from tuner.store import StudyRecord

app = new_app()


@app.command("studies")
def studies(storage: Storage = None, as_json: AsJson = False) -> None:
    """List the studies in the database, oldest first."""
    from tuner.cli.output import print_json

    found = [_description(study) for study in _read_studies(storage)]
    if as_json:
        print_json({"studies": found})
        return
    _print_table(found)


def _read_studies(storage: str | None) -> tuple[StudyRecord, ...]:
    from tuner.settings import read_settings
    from tuner_storage import open_store

    is_own = storage is None  # one's own database may not be there yet, one that was named must be
    store = open_store(read_settings(storage_url=storage).storage_url, create=is_own)
    try:
        return store.studies()
    finally:
        store.close()


def _description(study: StudyRecord) -> dict[str, Any]:
    decision = (study.conclusion or {}).get("decision") or {}
    return {
        "study": study.name,
        "created_at": study.created_at.isoformat(),
        "workload": study.spec.get("workload", {}).get("name"),
        "target": study.spec.get("target"),
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
    table = Table("Study", "Started", "Verdict", box=None, pad_edge=False)
    for one in found:
        table.add_row(one["study"], one["created_at"][:16].replace("T", " "), one["sentence"] or "not ended")
    console.print(table)
