"""``tuner doctor``: whether a search could be run here, or on a cluster, and what to do where not."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli import search_options as options
from tuner.cli.arguments import AsJson, Storage, new_app

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from tuner.dispatch import Dispatcher
    from tuner.doctor.examination import Intended
    from tuner.doctor.findings import Finding

app = new_app()

FAILED = 5
"""Exit code where a check failed: that of the machines."""

SUBJECT_WIDTH = 13
"""Of the longest subject."""

BEFORE_MESSAGE = " " * (8 + 1 + SUBJECT_WIDTH + 1)

NoRay = Annotated[bool, typer.Option("--no-ray", help="Neither start nor join Ray, which takes seconds.")]


@app.command("doctor")
def doctor(
    *,
    hardware: options.Hardware = "cpu",
    space: options.Space = "cpu-default",
    ray_address: options.RayAddress = None,
    no_ray: NoRay = False,
    storage: Storage = None,
    artifacts: options.Artifacts = None,
    as_json: AsJson = False,
) -> None:
    """Check what a search needs: what is installed, this machine, Ray, disks, the database, shared artifacts.

    Exit code 0 unless a check failed; a warning says what a search may suffer from.
    """
    from tuner.doctor.examination import Doors, Intended, examine
    from tuner.hardware import read_hardware
    from tuner.search_space import read_search_space
    from tuner.settings import read_settings

    intended = Intended(
        hardware=read_hardware(hardware),
        space=read_search_space(space),
        settings=read_settings(storage_url=storage),
        artifacts=artifacts,
        ray_address=ray_address,
        with_ray=not no_ray,
    )
    doors = Doors(
        start_ray=lambda: _start_ray(intended),
        see_machines=_machines_of_ray,
        look_at_database=lambda: _look_at(intended.settings.storage_url),
    )
    findings = _told(examine(intended, doors), as_json=as_json)
    if any(one.state == "failed" for one in findings):
        raise typer.Exit(FAILED)


def _start_ray(intended: Intended) -> Dispatcher:
    from tuner.doctor.installation import devices_here
    from tuner.ray_dispatch import RayDispatcher

    hardware = intended.hardware
    devices = devices_here(hardware.device, hardware.devices_per_machine)
    return RayDispatcher(intended.ray_address, devices=devices).start()


def _machines_of_ray() -> str:
    from tuner.ray_nodes import alive_nodes, described

    return described(alive_nodes())


def _look_at(url: str) -> str:
    """How the database is; one that is not there yet is right, as a search makes it."""
    from tuner_storage import hidden, open_engine, parse_storage_url, require_current_schema, schema_status

    parsed = parse_storage_url(url)
    if _is_missing_file(parsed):
        return f"{hidden(parsed)} is not there yet; the first search makes it"
    engine = open_engine(url, create=False)
    try:
        status = schema_status(engine)
        if status.is_new:
            return f"{hidden(engine.url)} is empty; the first search makes its tables"
        require_current_schema(engine, create=False)
        return f"{hidden(engine.url)} has schema {status.revision}, which is the newest"
    finally:
        engine.dispose()


def _is_missing_file(url: Any) -> bool:
    from pathlib import Path

    named = url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:")
    return named and not Path(str(url.database)).expanduser().exists()


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────────────────────


def _told(found: Iterable[Finding], *, as_json: bool) -> Sequence[Finding]:
    """All findings, each shown as soon as it is there, as some take seconds."""
    from tuner.cli.output import print_json, stdout_console

    if as_json:
        findings = list(found)
        print_json(
            {"ok": not any(one.state == "failed" for one in findings), "checks": [_document(one) for one in findings]}
        )
        return findings
    console = stdout_console()
    findings = []
    for one in found:
        _print(console, one)
        findings.append(one)
    console.print(_summary(findings))
    return findings


def _document(one: Finding) -> dict[str, Any]:
    return {"check": one.subject, "state": str(one.state), "message": one.message, "hint": one.hint or None}


def _print(console: Console, one: Finding) -> None:
    from rich.text import Text

    from tuner.redact import hide_passwords

    style = {"ok": "green", "warning": "yellow", "failed": "bold red"}[one.state]
    message = hide_passwords(one.message).replace("\n", "\n" + BEFORE_MESSAGE)
    line = Text.assemble((f"{one.state:<8}", style), f" {one.subject:<{SUBJECT_WIDTH}} ", message)
    console.print(line, soft_wrap=True)
    if one.hint:
        console.print(f"{BEFORE_MESSAGE}→ {hide_passwords(one.hint)}", soft_wrap=True)


def _summary(findings: Sequence[Finding]) -> str:
    counted = Counter(str(one.state) for one in findings)
    parts = [f"{counted[state]} {state}" for state in ("ok", "warning", "failed") if counted[state]]
    return f"{len(findings)} checks: {', '.join(parts)}"
