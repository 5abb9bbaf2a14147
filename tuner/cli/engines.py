"""``tuner engines``: which engines are installed, what each can do, or why it cannot be used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tuner.cli.arguments import AsJson, new_app

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from tuner.engines import Capabilities

app = new_app()


@app.command("engines")
def engines(as_json: AsJson = False) -> None:
    """List the engines and what each can do."""
    from importlib.metadata import entry_points

    from tuner.cli.output import print_json
    from tuner.engines import ENTRY_POINT_GROUP, engine_names

    by_name = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    found = [_description(by_name[name]) for name in engine_names()]
    if as_json:
        print_json({"engines": found})
        return
    _print_table(found)


def _description(entry: EntryPoint) -> dict[str, Any]:
    from tuner.engines import load_engine
    from tuner.errors import EngineNotInstalledError

    where = {
        "name": entry.name,
        "distribution": None if entry.dist is None else entry.dist.name,
        "version": None if entry.dist is None else entry.dist.version,
    }
    try:
        capabilities = load_engine(entry.name).capabilities
    except EngineNotInstalledError as error:
        return {**where, "available": False, "reason": error.message, "hint": error.hint, "capabilities": None}
    return {**where, "available": True, "reason": None, "hint": None, "capabilities": _abilities(capabilities)}


def _abilities(capabilities: Capabilities) -> dict[str, Any]:
    return {
        "methods": sorted(str(method) for method in capabilities.methods),
        "max_num_seqs": capabilities.max_num_seqs,
        "max_drafted_tokens": capabilities.max_drafted_tokens,
        "needs_compile": capabilities.needs_compile,
        "gives_token_ids": capabilities.gives_token_ids,
        "loads_at_once": capabilities.loads_at_once,
    }


def _print_table(found: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from tuner.cli.output import stdout_console

    console = stdout_console()
    if not found:
        console.print("No engine is installed; `pip install 'specdec-tuner[cpu]'` brings the engine cpu.")
        return
    table = Table("Engine", "Distribution", "Version", "Methods", box=None, pad_edge=False)
    for title in ("Most requests", "Most drafted tokens"):
        table.add_column(title, justify="right")
    for one in found:
        able = one["capabilities"]
        where = (one["name"], one["distribution"] or "–", one["version"] or "–")
        if able is None:
            table.add_row(*where, "not available", "–", "–")
        else:
            numbers = (str(able["max_num_seqs"]), str(able["max_drafted_tokens"]))
            table.add_row(*where, ", ".join(able["methods"]), *numbers)
    console.print(table)
    for one in found:
        if one["reason"] is not None:
            console.print(f"{one['name']}: {one['reason']}; {one['hint']}")
