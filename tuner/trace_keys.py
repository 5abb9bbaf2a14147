"""What an acceptance trace is of: the key under which it is made once, and found again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self

from tuner.errors import TraceError
from tuner.records import GREEDY, Sampling, TargetOutput
from tuner.speculation import Method, Speculation, content_key

FORMAT_VERSION = 1
"""Raised when a file of before means something else."""

_LABELS = {
    "target": "target (its config, tokenizer or weights)",
    "draft": "draft (its config or weights)",
    "outputs": "outputs (prompts, caps or the target's answers)",
}

_NOT_OF_THE_RULE = {"method", "draft_name", "draft_model", "drafted_tokens"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """What computed the outputs and the draft's answers: the largest of two near logits can turn on it.

    Attributes:
        weight_format: As the engine resolved it, never ``"auto"`` where it says so.
        lossless: Whether a row's result is the same however many rows are computed together; None: it does not say.
    """

    engine: str
    weight_format: str
    lossless: bool | None

    @classmethod
    def of(cls, engine: str, environment: Mapping[str, str], asked_format: str) -> Self:
        """The numerics of a measurement, from what the engine said of itself."""
        said = environment.get("lossless")
        return cls(
            engine=engine,
            weight_format=environment.get("weight_format", asked_format),
            lossless=None if said is None else said == "yes",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceKey:
    """Everything that an acceptance trace depends on but its depth: a deeper trace serves a shallower search.

    Attributes:
        target: ``models.fingerprint`` of the target: ``config.json``, ``generation_config.json``, ``tokenizer.json``
            and weights. A chat template outside these files is seen only through ``outputs``.
        method: How tokens are proposed.
        draft: The draft's fingerprint, of the same files; None for a matching rule.
        outputs: ``outputs_key`` of what it was traced along.
        sampling: How the target chose them; ``decisive`` of it.
        max_model_len: Prompt plus output tokens; near it a round may propose less.
        numerics: What computed it.
        rule: ``rule_of`` the method, such as the lengths of n-grams that are looked up.
        source: A pass of the draft, or a run's log, which does not show every position.
    """

    target: str
    method: Method
    draft: str | None
    outputs: str
    sampling: Sampling
    max_model_len: int
    numerics: Numerics
    rule: Mapping[str, int | float | str] = field(default_factory=dict)
    source: Literal["draft", "log"] = "draft"
    format_version: int = FORMAT_VERSION

    @property
    def key(self) -> str:
        """Equal for traces that are the same."""
        return content_key(asdict(self))

    @property
    def path_key(self) -> str:
        """Equal for traces along the same outputs, whatever computed them.

        A trace with this and another ``key`` is *transferred*: where two logits are nearer to each other than the
        numerics' noise, it may differ from what would be seen here. See ``share_of_near_ties``.
        """
        return content_key({name: value for name, value in asdict(self).items() if name != "numerics"})

    def differences(self, other: TraceKey) -> dict[str, tuple[Any, Any]]:
        """``{field: (here, there)}`` of every field that differs; those of parts have dotted names."""
        here, there = _flat(asdict(self)), _flat(asdict(other))
        return {name: (here[name], there[name]) for name in here if here[name] != there[name]}


def decisive(sampling: Sampling) -> Sampling:
    """The sampling without what decides nothing: at temperature 0 neither seed nor cuts do."""
    return sampling if sampling.temperature > 0 else GREEDY


def rule_of(speculation: Speculation) -> dict[str, Any]:
    """Every setting that decides what is proposed, beside method, weights and number of tokens."""
    settings = asdict(speculation).items()
    return {name: value for name, value in settings if name not in _NOT_OF_THE_RULE and value is not None}


def outputs_key(outputs: Sequence[TargetOutput]) -> str:
    """Hash of prompts, caps and output ids; the order of the prompts does not matter."""
    return content_key(sorted(content_key(asdict(output)) for output in outputs))


def check_key(found: TraceKey, expected: TraceKey) -> None:
    """Refuse a trace of something else.

    Raises:
        TraceError: Names each field that differs, with both values.
    """
    differing = expected.differences(found)
    if differing:
        lines = [
            f"  {_LABELS.get(name, name)}: expected {one!r}, found {other!r}"
            for name, (one, other) in differing.items()
        ]
        raise TraceError(
            "the trace is of something else:\n" + "\n".join(lines), "make a trace of what is searched here"
        )


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, one in value.items():
        plain = one.value if isinstance(one, StrEnum) else one
        flat |= _flat(one, f"{prefix}{name}.") if isinstance(one, Mapping) else {prefix + name: plain}
    return flat
