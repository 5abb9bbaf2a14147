"""A configuration in the words of the server that will run it, written so that it is read back as it was meant."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

import yaml

from tuner.decide import Decision, Verdict
from tuner.errors import ConfigurationError, NotFoundError, UnsupportedConfigurationError
from tuner.models.files import CONFIG, read_json_if_there
from tuner.speculation import NO_SPECULATION, EngineConfig, Method, Speculation
from tuner.store import TrialRecord, TrialState
from tuner.text_files import replace_text

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


def parse_format(text: str) -> ExportFormat:
    """The format of that name.

    Raises:
        ConfigurationError: There is none.
    """
    try:
        return ExportFormat(text)
    except ValueError as error:
        known = ", ".join(ExportFormat)
        raise ConfigurationError(f"no export format named {text!r}", f"--format takes one of: {known}") from error


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The trial whose configuration is exported.

    Attributes:
        is_certified: Whether the verdict stands behind it.
        comments: What a reader of the file must know, one line each.
    """

    trial: TrialRecord
    is_certified: bool
    comments: tuple[str, ...]


def choose_trial(trials: Sequence[TrialRecord], decision: Decision | None, number: int | None = None) -> Chosen:
    """The trial that the verdict recommends, or the one that a person asked for.

    Raises:
        ConfigurationError: There is no verdict, or an open one; or the trial that was asked for has no measurement.
        NotFoundError: No trial has that number.
    """
    certified = _certified_trial(trials, decision)
    if number is None:
        return _chosen(certified or _refuse(decision), decision, is_certified=True)
    trial = _trial(trials, number)
    return _chosen(trial, decision, is_certified=certified is not None and trial.speculation == certified.speculation)


def _certified_trial(trials: Sequence[TrialRecord], decision: Decision | None) -> TrialRecord | None:
    """The trial that the verdict stands behind; that of no speculation where the verdict is not to speculate."""
    if decision is None or decision.verdict is Verdict.INCONCLUSIVE:
        return None
    wanted = decision.candidate if decision.recommends else NO_SPECULATION
    measured = [trial for trial in trials if trial.state is TrialState.COMPLETE and trial.speculation == wanted]
    return measured[0] if measured else None


def _refuse(decision: Decision | None) -> NoReturn:
    reason = "this study has no verdict yet" if decision is None else decision.sentence
    raise ConfigurationError(
        f"nothing is certified, so nothing is exported: {reason}",
        "measure more prompts, or give --trial N for a measured trial of your choice (`tuner show` lists them)",
    )


def _trial(trials: Sequence[TrialRecord], number: int) -> TrialRecord:
    numbers = ", ".join(str(trial.number) for trial in trials if trial.state is TrialState.COMPLETE)
    for trial in trials:
        if trial.number == number:
            if trial.state is TrialState.COMPLETE:
                return trial
            raise ConfigurationError(f"trial {number} was not measured: it is {trial.state}", f"measured: {numbers}")
    raise NotFoundError(f"no trial {number} in this study", f"measured: {numbers}")


def _chosen(trial: TrialRecord, decision: Decision | None, *, is_certified: bool) -> Chosen:
    comments = [f"study {trial.study_name}, trial {trial.number}: {trial.speculation.label}"]
    if is_certified and decision is not None:
        comments.append(decision.sentence)
    else:
        comments.append("NOT CERTIFIED: exported by --trial; whether it pays off was not confirmed")
    return Chosen(trial=trial, is_certified=is_certified, comments=tuple(comments))


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
    """The speculative configuration of vLLM. Both n-gram bounds are written: vLLM copies a missing one from the other.

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
    if speculation.method is Method.SUFFIX:
        return settings | {
            "suffix_decoding_max_tree_depth": speculation.suffix_decoding_max_tree_depth,
            "suffix_decoding_max_spec_factor": speculation.suffix_decoding_max_spec_factor,
            "suffix_decoding_min_token_prob": speculation.suffix_decoding_min_token_prob,
            # Past responses were not looked up when this was measured; vLLM does so by default.
            "suffix_decoding_max_cached_requests": 0,
        }
    _refuse_own_format(speculation)
    return settings | {"model": speculation.draft_model}


def own_format(draft_model: str | None) -> str | None:
    """The draft's format where it is one of ours, which vLLM cannot serve; None for all others.

    A name on a hub has no folder here and is vLLM's to judge.
    """
    if draft_model is None:
        return None
    model_type = str(read_json_if_there(Path(draft_model) / CONFIG).get("model_type", ""))
    return model_type if model_type.startswith(OWN_DRAFT_PREFIX) else None


def _refuse_own_format(speculation: Speculation) -> None:
    model_type = own_format(speculation.draft_model)
    if model_type is not None:
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
        if not math.isfinite(scalar):
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
        ConfigurationError: The folder does not exist, the file cannot be written or is not ours, or its name has a
            suffix that vLLM refuses.
        StorageError: What was written reads back differently.
    """
    if export.export_format is ExportFormat.VLLM and path.suffix not in (".yaml", ".yml"):
        raise ConfigurationError(f"{path.name}: `vllm serve --config` takes .yaml or .yml only", "rename --output")
    if path.is_file() and not force and EXPORT_MARK not in path.read_text(encoding="utf-8", errors="replace"):
        raise ConfigurationError(
            f"{path} exists and was not written by the tuner", "give another --output, or --force to replace it"
        )
    replace_text(path, export.text, export.is_read_back_from)
