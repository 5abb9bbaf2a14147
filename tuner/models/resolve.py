"""From what a person wrote as ``--target`` or ``--draft`` to a folder in Hugging Face format."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from tuner.catalog import read_catalog
from tuner.errors import ModelError
from tuner.lookup import did_you_mean
from tuner.models.files import CONFIG, describe_folder
from tuner.models.progress import Report, progress_bars
from tuner.settings import Settings

GGUF_SUFFIX = ".gguf"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def resolve_model(reference: str, *, settings: Settings, report: Report | None = None) -> Path:
    """The folder that a reference stands for; what is not on this machine is fetched.

    Args:
        reference: A name of the catalogue, a folder in Hugging Face format, a GGUF file, or ``owner/name`` on the hub.
        settings: Where models are kept.
        report: Told how far a transfer or conversion is; None shows bars on stderr.

    Raises:
        ModelError: It is none of these, or the folder holds no model.
        DownloadError: It could not be fetched.
    """
    with ExitStack() as stack:
        shown = stack.enter_context(progress_bars()) if report is None else report
        return _resolve(reference, settings, shown)


def find_model(reference: str, *, settings: Settings) -> Path | None:
    """The folder or GGUF file that a reference stands for; None where it would have to be fetched.

    Raises:
        ModelError: It is nothing that could be fetched, or the folder holds no model.
    """
    entry = read_catalog().find(reference)
    if entry is not None:
        from tuner.models.pull import find_pulled

        return find_pulled(entry, settings)
    path = Path(reference).expanduser()
    if path.is_file():
        return _gguf_file(path)
    if path.is_dir():
        return _from_folder(path)
    if not _is_hub_id(reference):
        raise _no_such_model(reference)
    from tuner.models.hub import find_in_hub_cache

    return find_in_hub_cache(reference)


def resolve_models(references: Iterable[str], *, settings: Settings, report: Report | None = None) -> dict[str, Path]:
    """The folder of each reference. Access to all hub models is asked for before any of them is fetched.

    Raises:
        ModelError: As ``resolve_model``.
        DownloadError: As ``resolve_model``; a draft that may not be fetched is refused before a target is.
    """
    wanted = tuple(dict.fromkeys(references))
    for reference in wanted:
        _check_access(reference)
    return {reference: resolve_model(reference, settings=settings, report=report) for reference in wanted}


def _check_access(reference: str) -> None:
    from tuner.models.hub import check_hub_access, find_in_hub_cache

    if _is_hub_id(reference) and find_in_hub_cache(reference) is None:
        check_hub_access(reference)


def _resolve(reference: str, settings: Settings, report: Report) -> Path:
    if read_catalog().find(reference) is not None:
        from tuner.models.pull import pull

        return pull(reference, settings=settings, report=report).absolute()
    path = Path(reference).expanduser()
    if path.is_file():
        from tuner.models.gguf import convert_gguf

        return convert_gguf(_gguf_file(path), settings.cache_dir, report).absolute()
    if path.is_dir():
        return _from_folder(path)
    if _is_hub_id(reference):
        from tuner.models.hub import fetch_from_hub

        return fetch_from_hub(reference)
    raise _no_such_model(reference)


def _no_such_model(reference: str) -> ModelError:
    if _looks_like_path(reference):
        return ModelError(f"no model at {Path(reference).expanduser().absolute()}", "check the path")
    near = did_you_mean(reference, read_catalog().names)
    return ModelError(
        f"no model named {reference!r}", f"{near} (or give a folder, a GGUF file, or owner/name on the hub)"
    )


def _gguf_file(path: Path) -> Path:
    if path.suffix.lower() != GGUF_SUFFIX:
        raise ModelError(f"{path} is no model", "give a folder in Hugging Face format, or a .gguf file")
    return path


def _from_folder(path: Path) -> Path:
    if not (path / CONFIG).is_file():
        raise ModelError(f"{path.absolute()} has no {CONFIG}", describe_folder(path))
    return path.absolute()


def _is_hub_id(reference: str) -> bool:
    is_id = _HUB_ID.fullmatch(reference) is not None and not reference.startswith(".")
    return is_id and not reference.endswith(GGUF_SUFFIX) and not Path(reference).exists()


def _looks_like_path(reference: str) -> bool:
    return os.sep in reference or reference.startswith(("~", ".")) or reference.endswith(GGUF_SUFFIX)
