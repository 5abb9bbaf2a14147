"""Finding a file on the Python package indexes that pip is configured for, so that mirrors work as they do for pip."""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx

from tuner.errors import DownloadError

DEFAULT_INDEX = "https://pypi.org/simple"
# PEP 691, with the HTML of PEP 503 for indexes that know nothing else.
_ACCEPTED = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A URL and the credentials it came with, kept apart so that no log or message shows them.

    Attributes:
        url: Without credentials.
        auth: User and password; None where none are needed.
    """

    url: httpx.URL
    auth: httpx.BasicAuth | None = None

    def linked(self, link: str) -> Address:
        """The address that a page at this one links to; credentials go along to the same host only."""
        target = self.url.join(link)
        stated = address_of(str(target))
        same_host = (target.scheme, target.host, target.port) == (self.url.scheme, self.url.host, self.url.port)
        return Address(url=stated.url, auth=stated.auth or (self.auth if same_host else None))


def address_of(text: str) -> Address:
    """A URL as a person or a configuration file wrote it, taken apart."""
    url = httpx.URL(text)
    auth = httpx.BasicAuth(url.username, url.password) if url.userinfo else None
    return Address(url=url.copy_with(username="", password="") if url.userinfo else url, auth=auth)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipSettings:
    """What of pip's configuration matters here.

    Attributes:
        indexes: The main index, then the extra ones.
        ca_file: Certificates to trust instead of the system's; None for the system's.
    """

    indexes: tuple[Address, ...]
    ca_file: str | None


def read_pip_settings(env: Mapping[str, str], files: Iterable[Path] | None = None) -> PipSettings:
    """Pip's indexes and certificates, from its variables and configuration files, as pip itself ranks them.

    Args:
        env: The environment.
        files: Configuration files, later ones win; None takes pip's own places.
    """
    stated: dict[str, str] = {}
    for file in _pip_files(env) if files is None else files:
        stated |= _options(file)
    for name in ("index-url", "extra-index-url", "cert"):
        variable = f"PIP_{name.upper().replace('-', '_')}"
        if env.get(variable):
            stated[name] = env[variable]
    urls = [stated.get("index-url", DEFAULT_INDEX), *stated.get("extra-index-url", "").split()]
    # Folders (file: URLs) are pip's business: what they hold can be given as a path.
    indexes = tuple(address_of(url.rstrip("/")) for url in urls if url.startswith(("http://", "https://")))
    return PipSettings(indexes=indexes, ca_file=stated.get("cert"))


def find_on_index(client: httpx.Client, indexes: Iterable[Address], project: str, file: str) -> Address:
    """Where a file of a project can be downloaded, from the first index that has it.

    Raises:
        DownloadError: No index has it; the message says what each answered.
    """
    answers = []
    for index in indexes:
        page = Address(url=httpx.URL(f"{index.url}/{project}/"), auth=index.auth)
        try:
            response = client.get(page.url, auth=page.auth or httpx.USE_CLIENT_DEFAULT, headers={"Accept": _ACCEPTED})
        except httpx.HTTPError as error:
            answers.append(f"{index.url.host}: {type(error).__name__}")
            continue
        links = _links(response) if response.is_success else {}
        if file in links:
            return Address(url=response.url, auth=page.auth).linked(links[file])
        answers.append(f"{index.url.host}: {'not there' if response.is_success else _refusal(response.status_code)}")
    raise DownloadError(
        f"{file} is on no package index: {'; '.join(answers) or 'none is configured'}",
        "check the network and pip's index-url, or fetch the model elsewhere and give its folder or GGUF file",
    )


def _refusal(status: int) -> str:
    return f"{status}, credentials needed in PIP_INDEX_URL" if status in {401, 403} else str(status)


def _pip_files(env: Mapping[str, str]) -> tuple[Path, ...]:
    """Pip's configuration files, the later ones winning: global, user, virtual environment, PIP_CONFIG_FILE."""
    named = env.get("PIP_CONFIG_FILE")
    if named == os.devnull:  # pip's way to say: none at all
        return ()
    home = Path.home()
    config_home = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    files = [
        *(Path(folder) / "pip" / "pip.conf" for folder in env.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")),
        Path("/etc/pip.conf"),
        home / "Library" / "Application Support" / "pip" / "pip.conf",
        home / ".pip" / "pip.conf",
        config_home / "pip" / "pip.conf",
        Path(sys.prefix) / "pip.conf",
    ]
    return (*files, Path(named)) if named else tuple(files)


def _options(file: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(file, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        return {}  # pip complains about its own files
    return {
        name.replace("_", "-"): value
        for section in ("global", "download")
        if parser.has_section(section)
        for name, value in parser.items(section)
    }


def _links(response: httpx.Response) -> dict[str, str]:
    """File names and where they are, of a project's page in either form."""
    if response.headers.get("content-type", "").startswith("application/vnd.pypi.simple.v1+json"):
        files: list[dict[str, Any]] = response.json().get("files", [])
        return {entry["filename"]: entry["url"] for entry in files}
    page = _AnchorParser()
    page.feed(response.text)
    return page.links


class _AnchorParser(HTMLParser):
    """Collects the text and target of every anchor."""

    def __init__(self) -> None:
        super().__init__()
        self.links: dict[str, str] = {}
        self._target: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self._target = dict(attrs).get("href")

    def handle_data(self, data: str) -> None:
        if self._target is not None and data.strip():
            self.links[data.strip()] = self._target

    def handle_endtag(self, tag: str) -> None:
        if tag == "a":
            self._target = None
