"""A hash that tells one model's weights from another's without reading all of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

SAMPLE_BYTES = 64 * 1024
STRIDE_BYTES = 16 * 1024 * 1024
_SMALL_FILES = ("config.json", "tokenizer.json", "generation_config.json")


def model_fingerprint(folder: Path) -> str:
    """Sixteen hex digits for the configuration, the tokenizer and the weights of a model folder.

    Weights are sampled: the first 64 KiB of every 16 MiB and the end, with each file's name and size. A 65 GB
    checkpoint takes well under a second; any training step changes all samples.
    """
    digest = hashlib.sha256()
    for name in _SMALL_FILES:
        file = folder / name
        digest.update(file.read_bytes() if file.is_file() else b"-")
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(f"{file.name}:{file.stat().st_size}".encode())
        _add_samples(digest, file)
    return digest.hexdigest()[:16]


def _add_samples(digest: hashlib._Hash, file: Path) -> None:
    size = file.stat().st_size
    offsets = {*range(0, size, STRIDE_BYTES), max(0, size - SAMPLE_BYTES)}
    with file.open("rb") as stream:
        for offset in sorted(offsets):
            stream.seek(offset)
            digest.update(stream.read(SAMPLE_BYTES))
