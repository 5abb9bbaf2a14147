"""Which model a folder holds, by content, so that studies of other weights are other studies."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tuner.models.building import file_sha256
from tuner.models.files import CONFIG, GENERATION_CONFIG, TOKENIZER
from tuner.models.weights import weight_files
from tuner.speculation import content_key

# Hashing 65 GB takes minutes at every start. Larger files are told apart by size, header and evenly spread blocks:
# two trainings or quantisations of one model differ in nearly every block.
_LARGEST_HASHED_BYTES = 2 << 30
_SAMPLED_BLOCKS = 64
_SAMPLED_BLOCK_BYTES = 1 << 20


def model_fingerprint(folder: Path) -> str:
    """Sixteen hex digits that depend on config, tokenizer and weights of the model in ``folder``, not on its place.

    Raises:
        ModelError: The weight index is broken.
    """
    described = [folder / name for name in (CONFIG, GENERATION_CONFIG, TOKENIZER)]
    files = [file for file in (*described, *weight_files(folder)) if file.is_file()]
    return content_key({file.name: _digest(file) for file in files})


def _digest(file: Path) -> str:
    size = file.stat().st_size
    if size <= _LARGEST_HASHED_BYTES:
        return file_sha256(file)
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as stream:
        for block in range(_SAMPLED_BLOCKS):
            stream.seek(block * (size - _SAMPLED_BLOCK_BYTES) // (_SAMPLED_BLOCKS - 1))
            digest.update(stream.read(_SAMPLED_BLOCK_BYTES))
    return digest.hexdigest()
