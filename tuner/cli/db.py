"""``tuner db``: the database of studies, and whether its schema is the one this program needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tuner_storage import SchemaStatus

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Create, upgrade and inspect the database.",
)

Storage = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Database: sqlite:///file or postgresql://user:password@host/name; default TUNER_STORAGE, else a file"
        " in your data folder.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command("upgrade", short_help="Create the tables, or bring older ones up to date.")
def upgrade_database(storage: Storage = None, as_json: AsJson = False) -> None:
    """Create the tables, or bring older ones up to date; nothing is lost."""
    from tuner_storage import upgrade

    with _Database(storage, create=True) as database:
        before = upgrade(database.engine)
        text = f"at schema {before.head}, nothing to do"
        if not before.is_current:
            text = f"upgraded from schema {before.revision or 'none'} to {before.head}"
        database.report(text, {"previous_revision": before.revision, "revision": before.head}, as_json=as_json)


@app.command("current")
def show_current(storage: Storage = None, as_json: AsJson = False) -> None:
    """Show the schema of the database, and the one that is needed."""
    from tuner_storage import schema_status

    with _Database(storage, create=False) as database:
        status = schema_status(database.engine)
        text = f"schema {status.revision or 'none'}, this program needs {status.head}"
        database.report(text, _facts(status), as_json=as_json)


@app.command("check")
def check_database(storage: Storage = None, as_json: AsJson = False) -> None:
    """Fail unless the database can be reached and is up to date."""
    from tuner_storage import require_current_schema, schema_status

    with _Database(storage, create=False) as database:
        require_current_schema(database.engine, create=False)
        database.report("ok", {"ok": True, **_facts(schema_status(database.engine))}, as_json=as_json)


class _Database:
    """The database that the option, the environment or the default names; closed at the end of the command."""

    def __init__(self, storage: str | None, *, create: bool) -> None:
        from tuner.settings import read_settings
        from tuner_storage import open_engine

        self.engine = open_engine(read_settings(storage_url=storage).storage_url, create=create)

    def __enter__(self) -> _Database:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.engine.dispose()

    def report(self, text: str, facts: dict[str, Any], *, as_json: bool) -> None:
        """Say something of the database, by its address without the password."""
        from tuner.cli.output import print_json
        from tuner_storage import hidden

        if as_json:
            print_json({"database": hidden(self.engine.url), **facts})
        else:
            typer.echo(f"{hidden(self.engine.url)}: {text}")


def _facts(status: SchemaStatus) -> dict[str, Any]:
    return {"revision": status.revision, "needed_revision": status.head, "is_current": status.is_current}
