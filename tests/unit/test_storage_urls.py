from __future__ import annotations

import sys
import traceback
from pathlib import Path

import pytest

from tuner.errors import StorageError
from tuner_storage import hidden, open_store, optuna_url, parse_storage_url

SECRETS = ("s3cret", "p@ss", "p%40ss", "ss#1")
UNREACHABLE = "postgresql://tuner:{password}@127.0.0.1:1/tuner"


def refusal_of(url: str) -> StorageError:
    with pytest.raises(StorageError) as caught:
        parse_storage_url(url)
    printed = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert not [secret for secret in SECRETS if secret in printed]
    return caught.value


def test_what_consoles_hand_out_becomes_psycopg() -> None:
    url = parse_storage_url("postgres://tuner:s3cret@db.internal:5432/tuner")
    assert (url.drivername, url.host, url.port, url.database) == ("postgresql+psycopg", "db.internal", 5432, "tuner")
    assert (url.username, url.password) == ("tuner", "s3cret")


def test_a_psycopg2_address_is_taken_with_its_escaped_password() -> None:
    url = parse_storage_url("postgresql+psycopg2://tuner:p%40ss%231%25@db.internal:5432/tuner")
    assert (url.drivername, url.host, url.password) == ("postgresql+psycopg", "db.internal", "p@ss#1%")


@pytest.mark.parametrize(
    "user_info", ["tuner:p@ss#1%", "tuner:p@ss", "tuner:p@ss/s3cret", "tuner:ss#1%", "tuner:ss#1%2", "tu@ner:s3cret"]
)
def test_unescaped_characters_are_refused_with_their_escapes(user_info: str) -> None:
    error = refusal_of(f"postgresql://{user_info}@db.internal:5432/tuner")
    assert "not escaped" in error.message
    assert "@ as %40" in error.hint
    assert "db.internal" not in str(error)


@pytest.mark.parametrize("password", ["s3cret/x", "s3cret#x", "s3cret:x", "s3cret?x", "s3cret%2F"])
def test_what_is_not_ambiguous_may_stay_unescaped(password: str) -> None:
    url = parse_storage_url(f"postgresql://tuner:{password}@db.internal/tuner")
    assert (url.host, url.password) == ("db.internal", password.replace("%2F", "/"))


def test_a_password_in_the_query_is_hidden_too() -> None:
    url = parse_storage_url("postgresql:///tuner?host=/run/postgresql&user=tuner&password=s3cret")
    assert url.password == "s3cret"
    assert "s3cret" not in hidden(url) + repr(url)


@pytest.mark.parametrize("port", ["s3cret", "5432x"])
def test_a_port_that_is_no_number_is_refused(port: str) -> None:
    assert "cannot be read" in refusal_of(f"postgresql://tuner:x@db.internal:{port}/tuner").message


def test_a_postgresql_address_needs_a_database() -> None:
    assert "names no database" in refusal_of("postgresql://tuner:s3cret@db.internal").message


def test_an_ipv6_host_is_taken() -> None:
    assert parse_storage_url("postgresql://tuner@[::1]:5432/tuner").host == "::1"


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("sqlite:///a.db", "a.db"),
        ("sqlite:////var/lib/a.db", "/var/lib/a.db"),
        ("sqlite:///my%20studies.db", "my studies.db"),
        ("SQLITE:///a.db", "a.db"),
        (" sqlite:///a.db\n", "a.db"),
    ],
)
def test_three_slashes_are_relative_and_four_absolute(text: str, file: str) -> None:
    assert parse_storage_url(text).database == file


@pytest.mark.parametrize("text", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_sqlite_without_a_file_lives_in_memory(text: str) -> None:
    with pytest.raises(StorageError, match="cannot be shared with Optuna"):
        optuna_url(text)


def test_the_home_folder_may_be_written_short() -> None:
    assert parse_storage_url("sqlite:///~/a.db").database == str(Path.home() / "a.db")


def test_two_slashes_are_explained() -> None:
    error = refusal_of("sqlite://a.db")
    assert "two slashes" in error.message
    assert "three slashes" in error.hint


@pytest.mark.parametrize("text", ["", "tuner.db", "./tuner.db", "/var/lib/tuner.db", "s3cret@host"])
def test_a_path_is_no_address(text: str) -> None:
    assert "sqlite:///tuner.db" in refusal_of(text).hint


@pytest.mark.parametrize(
    "text", ["mysql://root:s3cret@host/db", "postgresql+asyncpg://u:s3cret@host/db", "http://host"]
)
def test_other_databases_are_refused_by_their_scheme(text: str) -> None:
    assert text.partition("://")[0] in refusal_of(text).message


def test_file_uris_are_refused() -> None:
    assert "file: URI" in refusal_of("sqlite:///file:a.db?uri=true").message


def test_optuna_gets_the_same_file_from_any_folder_and_waits_as_long_as_we_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert optuna_url("sqlite:///a.db") == f"sqlite:///{tmp_path}/a.db?timeout=30"


def test_optuna_gets_the_password_escaped() -> None:
    url = optuna_url("postgres://tuner:p%40ss%231%25@db.internal/tuner")
    assert url.partition("?")[0] == "postgresql+psycopg://tuner:p%40ss%231%25@db.internal/tuner"


def test_optuna_notices_a_server_that_vanished() -> None:
    assert "connect_timeout=10&" in optuna_url("postgresql://db.internal/tuner")
    chosen = optuna_url("postgresql://db.internal/tuner?connect_timeout=3")
    assert "connect_timeout=3&" in chosen
    assert chosen.count("connect_timeout") == 1


@pytest.mark.parametrize("password", ["s3cret", "p%40ss%231%25"])
def test_no_password_is_shown_when_the_connection_fails(password: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with pytest.raises(StorageError, match=r"127\.0\.0\.1") as caught:
        open_store(UNREACHABLE.format(password=password))
    assert "check host, port, user and password" in caught.value.hint
    printed = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert not [secret for secret in SECRETS if secret in printed]


def test_a_missing_driver_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StorageError, match="psycopg, which is not installed") as caught:
        open_store(UNREACHABLE.format(password="s3cret"))
    assert caught.value.hint == "pip install 'specdec-tuner[postgresql]'"
