"""Downloads that go on where they were cut, and that are checked by hash before anyone sees them."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import httpx

from tuner.errors import DownloadError
from tuner.models.building import file_sha256
from tuner.models.package_index import Address
from tuner.models.progress import Report, silent

# Long enough for a slow handshake, short enough that a machine without network says so at once.
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0
# A line that breaks goes on from where it was; these waits outlast a proxy's restart.
PAUSES_S = (1.0, 2.0, 4.0)


def open_client(ca_file: str | None = None) -> httpx.Client:
    """A client for downloads; proxies and certificates come from the environment unless a file is given."""
    verify = ssl.create_default_context(cafile=ca_file) if ca_file and Path(ca_file).is_file() else True
    timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    return httpx.Client(timeout=timeout, follow_redirects=True, verify=verify)


def download(
    client: httpx.Client, address: Address, destination: Path, *, sha256: str, report: Report = silent
) -> Path:
    """Fetch a file to ``destination``, unless it is there already.

    What was fetched before an interruption lies in a ``.part`` file beside it and is not fetched again.

    Args:
        client: Opened by ``open_client``.
        address: Of the file.
        destination: Appears only when it is complete and its hash is right.
        sha256: The expected hash, in hex.
        report: Told how far it is.

    Raises:
        DownloadError: The server refuses, the line breaks again and again, or the content is not what was expected.
    """
    if destination.is_file() and file_sha256(destination) == sha256:
        return destination
    destination.parent.mkdir(parents=True, exist_ok=True)
    part = destination.with_name(f"{destination.name}.part")
    went_on = part.exists()
    _fetch_persistently(client, address, part, report)
    if file_sha256(part) != sha256 and went_on:
        part.unlink()  # the older piece was of another file
        _fetch_persistently(client, address, part, report)
    if (found := file_sha256(part)) != sha256:
        part.unlink()
        raise DownloadError(
            f"{address.url} has SHA-256 {found}, expected {sha256}",
            "the file was changed on the way or on the server: try again, or use another network or index",
        )
    return part.replace(destination)


def _fetch_persistently(client: httpx.Client, address: Address, part: Path, report: Report) -> None:
    for pause_s in (0.0, *PAUSES_S):
        time.sleep(pause_s)
        try:
            if _fetch_rest(client, address, part, report):
                return
            problem = "the server is busy"
        except httpx.TransportError as error:
            problem = type(error).__name__
        except OSError as error:
            raise DownloadError(f"{part} cannot be written: {error.strerror}", "free some disk space") from error
    times = len(PAUSES_S) + 1
    raise DownloadError(
        f"{address.url} broke off {times} times ({problem})", "run the same command again: it goes on from there"
    )


def _fetch_rest(client: httpx.Client, address: Address, part: Path, report: Report) -> bool:
    """Append what is missing to ``part``; False where the server asks to come back later."""
    have = part.stat().st_size if part.exists() else 0
    # Compressed transfer would make the offsets mean something else.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    auth = address.auth or httpx.USE_CLIENT_DEFAULT
    with client.stream("GET", address.url, headers=headers, auth=auth) as response:
        if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            return True  # nothing is missing, or the piece is too long: the hash will tell
        if response.is_server_error or response.status_code == httpx.codes.TOO_MANY_REQUESTS:
            return False
        _refuse(response)
        goes_on = response.headers.get("content-range", "").startswith(f"bytes {have}-")
        _write(response, part, have if goes_on else 0, report)
    return True


def _write(response: httpx.Response, part: Path, have: int, report: Report) -> None:
    length = response.headers.get("content-length")
    total = have + int(length) if length else None
    what = f"Downloading {part.name.removesuffix('.part')}"
    with part.open("ab" if have else "wb") as out:
        for block in response.iter_raw():
            out.write(block)
            report(what, out.tell(), total)


def _refuse(response: httpx.Response) -> None:
    if response.is_success:
        return
    url = response.request.url
    if response.status_code in {401, 403}:
        raise DownloadError(f"{url} refuses access ({response.status_code})", "put the credentials in PIP_INDEX_URL")
    raise DownloadError(f"{url} answers {response.status_code}", "check the address of the index")
