"""``tuner logs``: what the stages of a study wrote while they ran."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.arguments import AsJson, Storage, new_app
from tuner.errors import NotFoundError

if TYPE_CHECKING:
    from tuner.records import StageKind
    from tuner.store import StageLog, StageRecord, StudyRecord, TrialRecord

app = new_app()


@app.command("logs")
def logs(
    trial: Annotated[
        int | None,
        typer.Argument(metavar="TRIAL", min=0, show_default=False, help="Number of a trial; without it, a list."),
    ] = None,
    study: Annotated[
        str | None, typer.Option("--study", metavar="NAME", help="Name of a study; without it, the newest.")
    ] = None,
    stage: Annotated[
        str | None,
        typer.Option("--stage", metavar="KIND", help="Only baseline, trace, compile, measure or certify."),
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", metavar="N", min=0, help="Only the last N lines of each.")
    ] = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Show what the stages of a trial wrote, each attempt of them, or list the logs that are kept."""
    from tuner.cli.output import print_json
    from tuner.cli.stored import newest_study, opened_store, trial_of

    _check_kind(stage)
    with opened_store(storage) as store:
        record = newest_study(store) if study is None else store.study(study)
        trials = store.trials(record.name)
        chosen = None if trial is None else trial_of(record.name, trials, trial)
        found = store.logs(record.name, None if chosen is None else chosen.speculation.label)
        rows = {(row.kind, row.key, row.attempt): row for row in store.stages(record.name)}
    wanted = [log for log in found if stage in (None, log.kind)]
    if as_json:
        print_json({"study": record.name, "trial": trial, "logs": [_document(log, rows, tail) for log in wanted]})
    elif not wanted:
        sys.stdout.write(_nothing(record, chosen, stage) + "\n")
    elif chosen is None and stage is None:
        _print_list(record, wanted, trials)
    else:
        for log in wanted:
            _print_log(log, rows, tail)


_Rows = Mapping[tuple["StageKind", str, int], "StageRecord"]


def _check_kind(stage: str | None) -> None:
    from tuner.lookup import did_you_mean
    from tuner.records import StageKind

    kinds = tuple(kind.value for kind in StageKind)
    if stage is not None and stage not in kinds:
        raise NotFoundError(f"there is no kind of stage named {stage!r}", did_you_mean(stage, kinds))


def _nothing(study: StudyRecord, trial: TrialRecord | None, stage: str | None) -> str:
    stages = "any stage" if stage is None else f"stage {stage}"
    whose = "" if trial is None else f" of trial {trial.number} ({trial.speculation.label})"
    return f"study {study.name!r} has no log of {stages}{whose}: none has ended, or they wrote nothing"


def _print_log(log: StageLog, rows: _Rows, tail: int | None) -> None:
    from tuner.redact import hide_passwords

    row = rows.get((log.kind, log.key, log.attempt))
    facts = [f"{log.kind} of {log.label}", f"attempt {log.attempt}"]
    if log.node is not None:
        facts.append(f"on {log.node}")
    facts.append(f"ended {log.ended_at:%Y-%m-%d %H:%M:%S} UTC")
    if row is not None:
        facts.append(f"after {(log.ended_at - row.started_at).total_seconds():.1f} s")
        facts.append(f"{row.state} with {row.error_type}" if row.error_type else row.state)
    text = hide_passwords(_last_lines(log.text, tail)).rstrip("\n")
    sys.stdout.write(f"── {', '.join(facts)} ──\n{text}\n\n")


def _last_lines(text: str, tail: int | None) -> str:
    lines = text.splitlines(keepends=True)
    return text if tail is None else "".join(lines[len(lines) - min(tail, len(lines)) :])


def _document(log: StageLog, rows: _Rows, tail: int | None) -> dict[str, Any]:
    row = rows.get((log.kind, log.key, log.attempt))
    return {
        "kind": log.kind,
        "key": log.key,
        "attempt": log.attempt,
        "label": log.label,
        "node": log.node,
        "started_at": None if row is None else row.started_at.isoformat(),
        "ended_at": log.ended_at.isoformat(),
        "state": None if row is None else row.state,
        "error_type": None if row is None else row.error_type,
        "text": _last_lines(log.text, tail),
    }


def _print_list(study: StudyRecord, found: Sequence[StageLog], trials: Sequence[TrialRecord]) -> None:
    from rich.table import Table

    from tuner.cli.output import stdout_console

    numbers = {trial.speculation.label: trial.number for trial in reversed(trials)}
    table = Table("Trial", "Configuration", "Stage", "Attempt", "Node", "Ended (UTC)", box=None, pad_edge=False)
    table.add_column("Lines", justify="right")
    for log in found:
        table.add_row(
            str(numbers.get(log.label, "–")),
            log.label,
            log.kind,
            str(log.attempt),
            log.node or "–",
            f"{log.ended_at:%Y-%m-%d %H:%M:%S}",
            str(len(log.text.splitlines())),
        )
    console = stdout_console()
    console.print(f"study {study.name}; `tuner logs TRIAL --study {study.name}` shows those of a trial", soft_wrap=True)
    console.print(table)
