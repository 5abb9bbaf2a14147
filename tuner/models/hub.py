"""Models of the Hugging Face hub: asked for before anything is fetched, and kept in the hub's own cache."""

from __future__ import annotations

import os
from pathlib import Path

import httpx

from tuner.errors import DownloadError, ModelError
from tuner.models.download import CONNECT_TIMEOUT_S
from tuner.models.files import CONFIG
from tuner.models.weights import has_weights

_WANTED = ["*.json", "*.jinja", "*.safetensors"]
# Second copies of the weights, in formats that nothing here reads.
_UNWANTED = ["original/*", "onnx/*", "openvino/*", "runs/*"]
_TRUE_WORDS = frozenset({"1", "true", "yes", "on"})


def hub_is_offline() -> bool:
    """Whether the person forbade every request, by HF_HUB_OFFLINE."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE_WORDS


def check_hub_access(repo: str, revision: str = "main") -> None:
    """Ask the hub whether a model may be fetched, in one short request.

    Raises:
        DownloadError: It may not, or the hub cannot be reached.
    """
    if hub_is_offline():
        raise DownloadError(
            f"{repo} is not in the hub's cache, and HF_HUB_OFFLINE is set", "unset it, or give a folder"
        )
    from huggingface_hub import get_token

    url = f"{_endpoint()}/{repo}/resolve/{revision}/{CONFIG}"
    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        response = httpx.head(url, headers=headers, timeout=CONNECT_TIMEOUT_S)
    except httpx.HTTPError as error:
        raise DownloadError(
            f"{repo} cannot be fetched: no answer from {httpx.URL(url).host} ({type(error).__name__})",
            "check the network or HF_ENDPOINT, or give a folder",
        ) from error
    if response.is_error:
        raise _refusal(repo, response.status_code)


def fetch_from_hub(repo: str, revision: str = "main") -> Path:
    """The folder of a hub model. What the cache holds complete is taken from there without a request.

    Raises:
        DownloadError: It cannot be fetched.
    """
    cached = find_in_hub_cache(repo, revision)
    if cached is not None:
        return cached
    check_hub_access(repo, revision)
    return _download_snapshot(repo, revision)


def find_in_hub_cache(repo: str, revision: str = "main") -> Path | None:
    """The folder of a model in the hub's cache; None where it is absent or lacks a file."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repo, revision=revision, local_files_only=True))
        is_complete = (folder / CONFIG).is_file() and has_weights(folder)
    except (LocalEntryNotFoundError, ModelError):
        return None
    return folder if is_complete else None


def _download_snapshot(repo: str, revision: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            repo,
            revision=revision,
            allow_patterns=_WANTED,
            ignore_patterns=_UNWANTED,
            endpoint=_endpoint(),
            etag_timeout=CONNECT_TIMEOUT_S,
        )
    except HfHubHTTPError as error:
        raise _refusal(repo, error.response.status_code if error.response is not None else 0) from error
    except (LocalEntryNotFoundError, httpx.HTTPError, OSError) as error:
        raise DownloadError(
            f"{repo} could not be fetched completely ({type(error).__name__})",
            "run the same command again: it goes on from there",
        ) from error
    return Path(folder)


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _refusal(repo: str, status: int) -> DownloadError:
    if status in {401, 403}:
        return DownloadError(
            f"the hub refuses {repo} ({status}): it is gated or private, or does not exist",
            "accept its terms on the hub and set HF_TOKEN to a token that may read it, or check the name",
        )
    if status == 404:
        return DownloadError(f"the hub has no model {repo}", "check the name: owner/name, as on the hub")
    return DownloadError(f"{repo} cannot be fetched: the hub answers {status}", "try again later, or give a folder")
