"""A configuration in the words of the server that will run it, written so that it is read back as it was meant."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from tuner.errors import ConfigurationError, ModelError, StorageError, UnsupportedConfigurationError
from tuner.speculation import EngineConfig, Method, Speculation

OWN_DRAFT_PREFIX = "tuner_"
"""``model_type`` of the draft formats of this project, which no other server loads."""

EXPORT_MARK = "written by `tuner export`"
"""What tells a file of ours from one that a person wrote."""

FLAGS_WITHOUT_NEGATIVE = frozenset({"trust-remote-code", "disable-log-requests"})
"""Options of ``vllm serve`` that are off by default and have no ``--no-`` spelling."""


class ExportFormat(StrEnum):
    """What a configuration is written for."""

    VLLM = "vllm"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A configuration as text, and what a loader must make of that text.

    Attributes:
        document: What reading ``text`` gives back.
    """

    export_format: ExportFormat
    text: str
    document: Mapping[str, Any]

    def is_read_back_from(self, text: str) -> bool:
        """Whether a loader of this format makes of ``text`` what was meant."""
        loaded = json.loads(text) if self.export_format is ExportFormat.JSON else yaml.safe_load(text)
        return bool(loaded == self.document)


def vllm_settings(config: EngineConfig) -> dict[str, Any]:
    """The options of ``vllm serve`` that this configuration fixes; the rest stays at vLLM's defaults.

    Raises:
        UnsupportedConfigurationError: The draft is in a format that only our own engine runs.
        ModelError: The draft's description cannot be read.
    """
    settings: dict[str, Any] = {
        "model": config.target_model,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
    }
    if not config.speculation.is_baseline:
        settings["speculative_config"] = speculative_config(config.speculation)
    return settings


def speculative_config(speculation: Speculation) -> dict[str, Any]:
    """vLLM's speculative configuration. Both n-gram bounds are written: vLLM copies a missing one from the other.

    Raises:
        UnsupportedConfigurationError: The draft is in a format that only our own engine runs.
        ModelError: The draft's description cannot be read.
    """
    settings: dict[str, Any] = {
        "method": str(speculation.method),
        "num_speculative_tokens": speculation.drafted_tokens,
    }
    if speculation.method is Method.NGRAM:
        return settings | {
            "prompt_lookup_max": speculation.prompt_lookup_max,
            "prompt_lookup_min": speculation.prompt_lookup_min,
        }
    _refuse_own_format(speculation)
    return settings | {"model": speculation.draft_model}


def _refuse_own_format(speculation: Speculation) -> None:
    description = Path(speculation.draft_model or "") / "config.json"
    if not description.is_file():  # a name on a hub: every format there is one that vLLM may know
        return
    try:
        model_type = str(json.loads(description.read_bytes()).get("model_type", ""))
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"{description} cannot be read: {error}", "fetch the draft again") from error
    if model_type.startswith(OWN_DRAFT_PREFIX):
        raise UnsupportedConfigurationError(
            f"draft {speculation.draft_name!r} has the format {model_type!r}, which vLLM cannot serve: "
            "it runs in the cpu engine only",
            "give `--format json`, or search with --draft ngram or a draft in Hugging Face format",
        )


def vllm_export(settings: Mapping[str, Any], comments: Sequence[str] = ()) -> Export:
    """Settings as ``vllm serve --config`` takes them, in every generation of its loader.

    Keys have dashes; what is None is left out; a switch that is off is written as ``no-…: true``, because a plain
    false is dropped; a nested object is one JSON string, because older loaders pass on its Python form.

    Raises:
        ConfigurationError: Nothing is left to write, or a value has no form in YAML.
    """
    written: dict[str, Any] = {}
    for name, value in settings.items():
        written |= _vllm_item(name.replace("_", "-"), _plain(name, value))
    if not written:
        raise ConfigurationError("there is no setting to export: vLLM refuses an empty file", "give a configuration")
    body = yaml.safe_dump(written, sort_keys=False, allow_unicode=True, width=float("inf"))
    head = "".join(f"# {' '.join(line.split())}\n" for line in (EXPORT_MARK, *comments))
    return Export(export_format=ExportFormat.VLLM, text=head + body, document=written)


def _vllm_item(key: str, value: Any) -> dict[str, Any]:
    if value is None or (value is False and key in FLAGS_WITHOUT_NEGATIVE):
        return {}
    if value is False:
        return {f"no-{key}": True}
    if isinstance(value, dict):
        return {key: json.dumps(value, ensure_ascii=False, allow_nan=False)}
    return {key: value}


def _plain(name: str, value: Any) -> Any:
    """The value in Python's own types: samplers give numpy's, and steps of 0.01 that end in 0.9199999999999999."""
    if isinstance(value, Mapping):
        return {str(key): _plain(f"{name}.{key}", one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, one) for one in value]
    scalar = value.item() if hasattr(value, "item") else value
    if isinstance(scalar, float):
        if scalar != scalar or abs(scalar) == float("inf"):
            raise ConfigurationError(f"{name} is {scalar}, which is not a number to export", "give a finite number")
        return float(f"{scalar:.12g}")
    if scalar is None or isinstance(scalar, bool | int | str):
        return scalar
    raise ConfigurationError(f"{name} is a {type(value).__name__}, which has no form in YAML", "give plain values")


def json_export(document: Mapping[str, Any]) -> Export:
    """A document as strict JSON, with the mark that tells it is ours.

    Raises:
        ValueError: A number in it is not finite.
    """
    marked = {"comment": EXPORT_MARK, **document}
    text = json.dumps(marked, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return Export(export_format=ExportFormat.JSON, text=text, document=json.loads(text))


def write_export(path: Path, export: Export, *, force: bool = False) -> None:
    """Write a configuration at once or not at all, after what is read back was compared with what was meant.

    Args:
        path: Its folder must exist.
        export: What ``vllm_export`` or ``json_export`` made.
        force: Replace a file that the tuner did not write.

    Raises:
        ConfigurationError: The folder does not exist, cannot be written, the name has a suffix that vLLM refuses, or
            the file is not ours.
        StorageError: What was written reads back differently.
    """
    _check_destination(path, export.export_format, force=force)
    try:
        _replace(path, export)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}", "give another --output") from error


def _check_destination(path: Path, export_format: ExportFormat, *, force: bool) -> None:
    if not path.absolute().parent.is_dir():
        raise ConfigurationError(f"no such folder: {path.absolute().parent}", "create it, or give another --output")
    if path.is_dir():
        raise ConfigurationError(f"{path} is a folder", "give --output the name of a file")
    if export_format is ExportFormat.VLLM and path.suffix not in (".yaml", ".yml"):
        raise ConfigurationError(f"{path.name}: `vllm serve --config` takes .yaml or .yml only", "rename --output")
    if path.exists() and not force and EXPORT_MARK not in path.read_text(encoding="utf-8", errors="replace"):
        raise ConfigurationError(
            f"{path} exists and was not written by the tuner", "give another --output, or --force to replace it"
        )


def _replace(path: Path, export: Export) -> None:
    handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(export.text)
            file.flush()
            os.fsync(file.fileno())
        if not export.is_read_back_from(temporary.read_text(encoding="utf-8")):
            raise StorageError(f"{path}: what was written reads back differently", "check the disk; nothing was kept")
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current
