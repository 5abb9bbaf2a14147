from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from typer.testing import CliRunner

from tuner.cli.db import app
from tuner.errors import SchemaError, StorageError
from tuner_storage import open_engine, open_store, schema_status

HEAD = schema_status(create_engine("sqlite://")).head


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tuner.db"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_upgrade_makes_the_tables_once(url: str) -> None:
    assert run("upgrade", "--storage", url) == f"{url}: upgraded from schema none to {HEAD}\n"
    assert run("upgrade", "--storage", url) == f"{url}: at schema {HEAD}, nothing to do\n"
    open_store(url, create=False).close()


def test_every_command_prints_one_document(url: str) -> None:
    upgraded = json.loads(run("upgrade", "--storage", url, "--json"))
    assert upgraded == {"database": url, "previous_revision": None, "revision": HEAD}
    facts = {"database": url, "revision": HEAD, "needed_revision": HEAD, "is_current": True}
    assert json.loads(run("current", "--storage", url, "--json")) == facts
    assert json.loads(run("check", "--storage", url, "--json")) == {**facts, "ok": True}


def test_current_and_check_say_where_and_what(url: str) -> None:
    open_store(url).close()
    assert run("current", "--storage", url) == f"{url}: schema {HEAD}, this program needs {HEAD}\n"
    assert run("check", "--storage", url) == f"{url}: ok\n"


def test_check_refuses_a_database_without_tables(url: str) -> None:
    engine = open_engine(url)
    engine.connect().close()
    engine.dispose()
    with pytest.raises(SchemaError, match="has no tables of the tuner"):
        run("check", "--storage", url)


@pytest.mark.parametrize("command", ["current", "check"])
def test_looking_makes_no_database(command: str, url: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no database"):
        run(command, "--storage", url)
    assert list(tmp_path.iterdir()) == []


def test_the_environment_names_the_database(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_STORAGE", url)
    assert run("upgrade").startswith(url)
