"""``tuner traces``: acceptance traces in the database, and carrying them to another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.arguments import AsJson, Storage, new_app
from tuner.errors import ConfigurationError, NotFoundError, TraceError

if TYPE_CHECKING:
    from tuner.store import TrialStore
    from tuner.traces import TraceRecord

app = new_app(no_args_is_help=True, help="List, export and import acceptance traces.")


@app.command("list")
def list_traces(storage: Storage = None, as_json: AsJson = False) -> None:
    """List the acceptance traces in the database, oldest first."""
    from tuner.cli.output import print_json

    with _open(storage, create=storage is None) as store:  # one's own may not be there yet, a named one must be
        found = store.traces()
    if as_json:
        print_json({"traces": [_document(trace) for trace in found]})
        return
    _print_table(found)


@app.command("export", short_help="Write a trace to a file.")
def export_trace(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key of a trace, as `tuner traces list` shows it.")],
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where it goes: an npz file.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Write an acceptance trace to a file, to be imported into another database."""
    from tuner.cli.output import print_json
    from tuner.text_files import replace_bytes

    with _open(storage, create=storage is None) as store:
        trace = _find(store, key)
    data = _checked(trace)
    if path.exists() and not force:
        raise ConfigurationError(f"{path} is there already", "give another path, or --force to replace it")
    replace_bytes(path, data)
    if as_json:
        print_json({**_document(trace), "path": str(path)})
        return
    typer.echo(f"{path}: trace {trace.key} of {_draft(trace)}, up to {trace.depth} drafted tokens")


@app.command("import", short_help="Check a file, and keep its trace.")
def import_trace(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="What `tuner traces export` wrote.")],
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Check every figure of a trace in a file, and keep it in the database.

    A search uses it where target, draft, outputs, sampling and numerics are the same. One that the database has for as
    many drafted tokens or more stays.
    """
    from tuner.cli.output import print_json

    trace = _read(path)
    with _open(storage, create=True) as store:
        is_new = store.save_trace(trace)
    if as_json:
        print_json({**_document(trace), "is_new": is_new})
        return
    what = "kept" if is_new else "the database has it already, for as many drafted tokens or more"
    typer.echo(f"trace {trace.key} of {_draft(trace)}: {what}")


@contextmanager
def _open(storage: str | None, *, create: bool) -> Iterator[TrialStore]:
    from tuner.settings import read_settings
    from tuner_storage import open_store

    store = open_store(read_settings(storage_url=storage).storage_url, create=create)
    try:
        yield store
    finally:
        store.close()


def _find(store: TrialStore, key: str) -> TraceRecord:
    from tuner.lookup import did_you_mean

    trace = store.trace(key)
    if trace is None:
        raise NotFoundError(f"no trace {key!r}", did_you_mean(key, [one.key for one in store.traces()]))
    return trace


def _checked(trace: TraceRecord) -> bytes:
    """The trace's data, which is good."""
    from tuner.traces import unpack_trace

    data = trace.data or b""
    try:
        unpack_trace(data)
    except TraceError as error:
        raise TraceError(f"trace {trace.key} in the database: {error.message}", error.hint) from error
    return data


def _read(path: Path) -> TraceRecord:
    """The trace in a file.

    Raises:
        NotFoundError: There is no such file.
        ConfigurationError: It cannot be read.
        TraceError: It is no trace, or one that cannot be used; names the file.
    """
    from tuner.traces import TraceRecord

    try:
        return TraceRecord.of(path.read_bytes())
    except FileNotFoundError as error:
        raise NotFoundError(f"no such file: {path}", "give a file that `tuner traces export` wrote") from error
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}", "check the path") from error
    except TraceError as error:
        raise TraceError(f"{path}: {error.message}", error.hint) from error


def _document(trace: TraceRecord) -> dict[str, Any]:
    return {
        "trace": trace.key,
        "path_key": trace.path_key,
        "num_speculative_tokens": trace.depth,
        "created_at": trace.created_at.isoformat(),
        **trace.header,
    }


def _draft(trace: TraceRecord) -> str:
    return str(trace.header["draft_name"])


def _print_table(found: tuple[TraceRecord, ...]) -> None:
    from rich.table import Table

    from tuner.cli.output import stdout_console

    console = stdout_console()
    if not found:
        console.print("No trace yet; a search makes one of each draft.")
        return
    table = Table(
        "Key", "Draft", "k up to", "Prompts", "Workload", "Target", "Numerics", "Kept", box=None, pad_edge=False
    )
    for trace in found:
        made, numerics = trace.header["provenance"], trace.header["key"]["numerics"]
        table.add_row(
            trace.key,
            _draft(trace),
            str(trace.depth),
            str(trace.header["prompts"]),
            str(made.get("workload", "–")),
            str(made.get("target", "–")),
            f"{numerics['engine']} {numerics['weight_format']}",
            trace.created_at.isoformat()[:16].replace("T", " "),
        )
    console.print(table)
