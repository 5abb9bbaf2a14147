"""What is measured: prompts with named classes, the limits they run under, and why those limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tuner.errors import WorkloadError
from tuner.lookup import YAML_SUFFIXES, did_you_mean, find_file, shipped_names
from tuner.prompts import DEFAULT_CLASS, PromptFile, SkippedLine, prompts_digest, read_prompts
from tuner.records import Prompt, Sampling
from tuner.speculation import content_key
from tuner.yaml_files import Number, WholeNumber, YamlDocument, read_yaml, validate

_STRICT = ConfigDict(frozen=True, extra="forbid")
Milliseconds = Annotated[Number | None, Field(gt=0, le=3_600_000, allow_inf_nan=False)]


class PromptClass(BaseModel):
    """A kind of prompt within a workload; results are reported per class too."""

    model_config = _STRICT

    description: str = Field(min_length=1, max_length=300, description="what the prompts of this class ask for")
    repetition_expected: bool = Field(False, description="true where a repetitive output is right, not a looping model")


class SamplingSettings(BaseModel):
    """How the target's next token is chosen."""

    model_config = _STRICT

    temperature: Number = Field(0.0, ge=0, le=10, allow_inf_nan=False, description="0 is greedy; 0 to 10")
    top_p: Number = Field(1.0, gt=0, le=1, allow_inf_nan=False, description="nucleus; above 0, up to 1 (all tokens)")
    top_k: WholeNumber = Field(0, ge=0, le=1_000_000, description="tokens kept; 0 keeps all")
    seed: WholeNumber = Field(0, ge=0, lt=2**63, description="seed of the sampling, 0 or above")


class QuickSample(BaseModel):
    """The small sample of ``--quick``."""

    model_config = _STRICT

    search_prompts: WholeNumber = Field(6, ge=1, le=100_000, description="prompts of the search, 1 or more")
    certify_prompts: WholeNumber = Field(10, ge=1, le=100_000, description="prompts of the final comparison, 1 or more")
    max_output_tokens: WholeNumber = Field(64, ge=1, le=131_072, description="cap of output tokens, 1 to 131072")


class Slo(BaseModel):
    """Latency limits of one request, and where they come from. A request that meets them all counts as goodput."""

    model_config = _STRICT

    ttft_ms: Milliseconds = Field(None, description="most milliseconds to the first token")
    tpot_ms: Milliseconds = Field(None, description="most milliseconds per output token after the first")
    e2e_ms: Milliseconds = Field(None, description="most milliseconds to the last token")
    reason: str = Field(min_length=1, max_length=1000, description="why these limits: what breaks when they are missed")

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if self.ttft_ms is None and self.tpot_ms is None and self.e2e_ms is None:
            raise ValueError("needs at least one of ttft_ms, tpot_ms, e2e_ms")
        return self


class _Limits(BaseModel):
    """What a workload file and a workload have in common."""

    model_config = _STRICT

    name: str = Field(min_length=1, max_length=100, description="what tables and the store call this workload")
    description: str = Field(min_length=1, max_length=500, description="what the prompts stand for, in a sentence")
    max_output_tokens: WholeNumber = Field(96, ge=1, le=131_072, description="cap of output tokens, 1 to 131072")
    limits_reason: str = Field(min_length=1, max_length=1000, description="why this cap, these counts and any SLO")
    concurrency: WholeNumber = Field(1, ge=1, le=4096, description="requests in flight at any time, 1 to 4096")
    classes: dict[str, PromptClass] = Field(
        default_factory=dict, max_length=200, description="the classes of the prompts: {name: {description: …}}"
    )
    search_prompts: WholeNumber = Field(24, ge=1, le=100_000, description="prompts of the search, 1 or more")
    certify_prompts: WholeNumber = Field(
        16, ge=1, le=100_000, description="prompts of the final comparison, none used in the search, 1 or more"
    )
    slo: Slo | None = Field(None, description="latency limits of one request: {ttft_ms, tpot_ms, e2e_ms, reason}")


class WorkloadFile(_Limits):
    """A workload as it is written in YAML."""

    prompts: str = Field(min_length=1, max_length=500, description="name of the prompt file beside this file")
    sampling: SamplingSettings = Field(
        default_factory=SamplingSettings, description="temperature, top_p, top_k and seed; greedy where it is left out"
    )
    quick: QuickSample = Field(default_factory=QuickSample, description="the small sample of --quick")


class Workload(_Limits):
    """Prompts and the limits they are measured under."""

    prompts: tuple[Prompt, ...] = Field(min_length=1, description="all prompts, in file order")
    sampling: Sampling = Field(default_factory=Sampling, description="how the next token is chosen")
    quick_sample: QuickSample = Field(default_factory=QuickSample, description="the small sample of --quick")
    skipped: tuple[SkippedLine, ...] = Field((), description="lines of the prompt file that were skipped on request")

    @property
    def prompts_sha256(self) -> str:
        """Hash of the prompts' content, in order."""
        return prompts_digest(self.prompts)

    @property
    def key(self) -> str:
        """Equal for workloads that measure the same thing; texts written for people do not count."""
        shown_only = {"name", "description", "limits_reason", "prompts", "skipped", "quick_sample"}
        return content_key([self.model_dump(mode="json", exclude=shown_only), self.prompts_sha256])

    @property
    def certify_is_held_out(self) -> bool:
        """Whether there are enough prompts for a final comparison on prompts that the search has not seen."""
        return len(self.prompts) >= self.search_prompts + self.certify_prompts

    @property
    def reuse_notice(self) -> str | None:
        """What a person should know where the final comparison is not held out; None where it is."""
        if self.certify_is_held_out:
            return None
        return (
            f"{len(self.prompts)} prompts, but {self.search_prompts + self.certify_prompts} are needed for a final "
            "comparison on prompts that the search has not seen; some will be used twice"
        )

    def search_sample(self) -> tuple[Prompt, ...]:
        """The prompts of the search: the classes in turn, each in file order."""
        return tuple(self._in_turn())[: self.search_prompts]

    def certify_sample(self) -> tuple[Prompt, ...]:
        """The prompts of the final comparison: those the search leaves, filled up with its own where they are few."""
        ordered = tuple(self._in_turn())
        unseen, seen = ordered[self.search_prompts :], ordered[: self.search_prompts]
        return (unseen + seen)[: self.certify_prompts]

    def quick(self) -> Workload:
        """The same workload cut down to its small sample."""
        small = self.quick_sample
        return self._changed(
            search_prompts=min(small.search_prompts, self.search_prompts),
            certify_prompts=min(small.certify_prompts, self.certify_prompts),
            max_output_tokens=min(small.max_output_tokens, self.max_output_tokens),
        )

    def with_prompts(self, prompts: Sequence[Prompt]) -> Workload:
        """The same limits around other prompts, whose classes need not be described."""
        if not prompts:
            raise WorkloadError(f"no prompts for workload {self.name!r}", "give at least one prompt")
        return self._changed(prompts=tuple(prompts), skipped=())

    def repetition_expected(self, prompt_class: str) -> bool:
        """Whether a repetitive output of this class is right. False for a class that is not described."""
        described = self.classes.get(prompt_class)
        return described is not None and described.repetition_expected

    def output_cap(self, prompt: Prompt) -> int:
        """The cap of output tokens of one prompt: the workload's, or the prompt's own where that is lower."""
        own = prompt.max_output_tokens
        return self.max_output_tokens if own is None else min(own, self.max_output_tokens)

    def _in_turn(self) -> Iterator[Prompt]:
        by_class: dict[str, list[Prompt]] = {}
        for prompt in self.prompts:
            by_class.setdefault(prompt.prompt_class, []).append(prompt)
        for turn in range(max(len(members) for members in by_class.values())):
            yield from (members[turn] for members in by_class.values() if turn < len(members))

    def _changed(self, **update: Any) -> Workload:
        return self.model_copy(update=update)


def workload_names() -> tuple[str, ...]:
    """Names of the workloads that come with the package."""
    return shipped_names("workloads")


def read_workload(reference: str | Path, *, skip_invalid: bool = False) -> Workload:
    """The workload of a shipped name, a YAML file, or a prompt file with default limits around it.

    Args:
        reference: A name of ``workload_names()`` or a path.
        skip_invalid: Leave invalid lines of the prompt file out, and report them in ``skipped``.

    Raises:
        NotFoundError: The reference is neither a name nor a file.
        WorkloadError: The file or its prompt file cannot be used; the message has file, line and reason.
    """
    path = find_file("workloads", reference)
    if path.suffix.lower() not in YAML_SUFFIXES:
        return _around_prompts(read_prompts(path, skip_invalid=skip_invalid))
    document = read_yaml(path, WorkloadError)
    written = validate(document, WorkloadFile, WorkloadError)
    found = _prompts_of(document, written, skip_invalid=skip_invalid)
    shared = {name: getattr(written, name) for name in _Limits.model_fields}
    return Workload(
        **shared,
        prompts=_classed(found, written.classes),
        sampling=Sampling(**written.sampling.model_dump()),
        quick_sample=written.quick,
        skipped=found.skipped,
    )


def _around_prompts(found: PromptFile) -> Workload:
    return Workload(
        name=found.path.name.partition(".")[0] or found.path.name,
        description=f"The prompts of {found.path.name}.",
        limits_reason="Default limits: the prompts were given without a workload file.",
        prompts=found.prompts,
        skipped=found.skipped,
    )


def _prompts_of(document: YamlDocument, written: WorkloadFile, *, skip_invalid: bool) -> PromptFile:
    path = document.path.parent / written.prompts
    if not path.is_file():
        line = document.line_of(("prompts",))
        raise WorkloadError(f"{document.path}:{line}: prompts: no such file: {path}", "name a file beside the YAML")
    return read_prompts(path, skip_invalid=skip_invalid)


def _classed(found: PromptFile, classes: dict[str, PromptClass]) -> tuple[Prompt, ...]:
    """The prompts, each in a described class. Without described classes any class will do."""
    only = next(iter(classes)) if len(classes) == 1 else DEFAULT_CLASS
    prompts = []
    for prompt, line in zip(found.prompts, found.lines, strict=True):
        named = replace(prompt, prompt_class=only) if prompt.prompt_class == DEFAULT_CLASS else prompt
        if classes and named.prompt_class not in classes:
            raise WorkloadError(
                f"{found.path}:{line}: class {named.prompt_class!r} is not described in the workload",
                did_you_mean(named.prompt_class, classes),
            )
        prompts.append(named)
    return tuple(prompts)
