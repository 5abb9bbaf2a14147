"""Safetensors files without loading them: reading what a model holds, and writing one tensor at a time."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import ModelError
from tuner.models.files import WEIGHT_INDEX, WEIGHTS, read_json

# A header lists names and shapes; the format's own implementation refuses more than this.
_LARGEST_HEADER_BYTES = 100_000_000
_DTYPE_BYTES: Mapping[str, int] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
_NUMPY_DTYPES: Mapping[str, str] = {"F16": "<f2", "F32": "<f4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Kind and shape of one stored tensor. ``dtype`` is safetensors' word, e.g. ``"BF16"``."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return self.num_elements * _DTYPE_BYTES[self.dtype]


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of the model in ``folder``, whether or not they exist; empty when it states none.

    Raises:
        ModelError: The weight index is broken.
    """
    if (folder / WEIGHT_INDEX).is_file():
        weight_map = read_json(folder / WEIGHT_INDEX).get("weight_map", {})
        return tuple(folder / name for name in sorted(set(weight_map.values())))
    return (folder / WEIGHTS,) if (folder / WEIGHTS).is_file() else ()


def has_weights(folder: Path) -> bool:
    """Whether every weight file that the model in ``folder`` states is there, and at least one is.

    Raises:
        ModelError: The weight index is broken.
    """
    files = weight_files(folder)
    return bool(files) and all(file.is_file() for file in files)


def read_tensor_infos(file: Path) -> dict[str, TensorInfo]:
    """Name, kind and shape of every tensor in a safetensors file, from its header alone.

    Raises:
        ModelError: The file is absent, cut short or no safetensors file.
    """
    try:
        header, data_bytes = _read_header(file)
        infos = {
            name: TensorInfo(dtype=entry["dtype"], shape=tuple(entry["shape"]))
            for name, entry in header.items()
            if name != "__metadata__"
        }
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        needed = sum(info.num_bytes for info in infos.values())
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}", "fetch the model again") from error
    except (struct.error, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{file} is no safetensors file: its header cannot be read", "fetch it again") from error
    if end > data_bytes or needed > data_bytes:
        raise ModelError(
            f"{file} is cut short: {data_bytes} of {max(end, needed)} bytes are there", "fetch the file again"
        )
    return infos


def write_safetensors(
    file: Path,
    tensors: Sequence[tuple[str, TensorInfo]],
    values: Callable[[str], NDArray[Any]],
    written: Callable[[int], None],
) -> None:
    """Write tensors one after the other, so that memory holds one of them at a time.

    Args:
        file: Where to write.
        tensors: Names with kind and shape, in the order they are written.
        values: Gives the tensor of a name, of the stated shape and kind.
        written: Told how many bytes were written after each tensor.

    Raises:
        ModelError: ``values`` gave another shape or kind than stated.
    """
    with file.open("wb") as out:
        out.write(_header_bytes(tensors))
        for name, info in tensors:
            array = np.ascontiguousarray(values(name), dtype=_NUMPY_DTYPES[info.dtype])
            if array.shape != info.shape:
                raise ModelError(f"{name} has shape {array.shape}, not {info.shape}", "the source file is damaged")
            out.write(array.tobytes())
            written(info.num_bytes)


def _read_header(file: Path) -> tuple[dict[str, Any], int]:
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > _LARGEST_HEADER_BYTES:
            raise struct.error(f"header of {length} bytes")
        header = json.loads(stream.read(length).decode())
    return header, file.stat().st_size - 8 - length


def _header_bytes(tensors: Iterable[tuple[str, TensorInfo]]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, info in tensors:
        end = offset + info.num_bytes
        header[name] = {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
