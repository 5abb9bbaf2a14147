"""Reading the JSON files of a model folder, with errors that name file, line and column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tuner.errors import ModelError

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
WEIGHTS = "model.safetensors"
WEIGHT_INDEX = "model.safetensors.index.json"


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``.

    Raises:
        ModelError: The file is absent, is not JSON or is not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent} has no {path.name}", describe_folder(path.parent)) from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}", "check its permissions") from error
    except json.JSONDecodeError as error:
        raise ModelError(
            f"{path}, line {error.lineno}, column {error.colno}: not valid JSON ({error.msg})",
            "mend the file or fetch it again",
        ) from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}, byte {error.start}: not UTF-8 text", "fetch the file again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds a {type(value).__name__}, not a JSON object", "fetch the file again")
    return value


def read_json_if_there(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; empty when there is no such file.

    Raises:
        ModelError: The file is not JSON or is not an object.
    """
    return read_json(path) if path.is_file() else {}


def describe_folder(folder: Path) -> str:
    """A hint that says what a folder holds instead of a model."""
    if not folder.exists():
        return "the folder does not exist: check the path"
    if not folder.is_dir():
        return f"{folder.name} is a file; give a folder in Hugging Face format or a .gguf file"
    names = sorted(entry.name for entry in folder.iterdir())
    if not names:
        return "the folder is empty"
    ggufs = [name for name in names if name.endswith(".gguf")]
    if ggufs:
        return f"it holds GGUF files: give one of them instead, e.g. {folder / ggufs[0]}"
    return f"it holds {', '.join(names[:6])}{' …' if len(names) > 6 else ''}"
