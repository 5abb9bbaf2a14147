"""Tensors of a model folder, read by name, one at a time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from tuner.errors import ModelError
from tuner.models.files import WEIGHT_INDEX, WEIGHTS, read_json

# Missing tensors that a message names: enough to see which layers or kinds are gone.
NAMED = 4


class Weights:
    """The tensors of one folder. Nothing is read before it is asked for.

    Args:
        folder: Holds ``model.safetensors``, or several files and their index.

    Raises:
        ModelError: There is no such file, or it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file_of = _tensor_files(folder)

    @property
    def names(self) -> frozenset[str]:
        """All tensors of the folder."""
        return frozenset(self._file_of)

    def require(self, names: Iterable[str]) -> None:
        """Make sure that tensors exist.

        Raises:
            ModelError: Some do not; all of them are named.
        """
        missing = sorted(set(names) - self.names)
        if missing:
            named = ", ".join(missing[:NAMED]) + (" …" if len(missing) > NAMED else "")
            raise ModelError(
                f"{self.folder} lacks {len(missing)} tensors: {named}",
                "convert or download the model again",
            )

    def get(self, name: str) -> Any:
        """The tensor of that name, a ``torch.Tensor`` in the type it was stored in."""
        self.require([name])
        with safe_open(self._file_of[name], framework="pt") as file:
            return file.get_tensor(name)


def _tensor_files(folder: Path) -> dict[str, Path]:
    index = folder / WEIGHT_INDEX
    if index.is_file():
        names: dict[str, str] = read_json(index).get("weight_map", {})
        return {name: folder / file for name, file in names.items()}
    file = folder / WEIGHTS
    if not file.is_file():
        raise ModelError(f"{folder} holds no {WEIGHTS}", "give a folder in Hugging Face format with safetensors")
    try:
        with safe_open(file, framework="np") as opened:
            return dict.fromkeys(opened.keys(), file)
    except SafetensorError as error:
        raise ModelError(f"{file} is damaged: {error}", "download the model again") from error
