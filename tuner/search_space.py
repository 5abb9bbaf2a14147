"""What may be tried: the drafts, and how many tokens each may propose."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tuner.errors import NotFoundError, SearchSpaceError
from tuner.lookup import did_you_mean, find_file, shipped_names
from tuner.proposers import LOOKUP_METHODS, PROMPT_LOOKUP_MAX, PROMPT_LOOKUP_MIN, SuffixRule
from tuner.speculation import NO_SPECULATION, Method, Speculation, content_key
from tuner.yaml_files import Number, WholeNumber, read_yaml, validate

NO_DRAFT = NO_SPECULATION.draft_name
DRAFT_NAME_PATTERN = r"^[a-z0-9][a-z0-9-]*$"
SETTINGS_OF = {
    Method.NGRAM: ("prompt_lookup_max", "prompt_lookup_min"),
    Method.SUFFIX: (
        "suffix_decoding_max_tree_depth",
        "suffix_decoding_max_spec_factor",
        "suffix_decoding_min_token_prob",
    ),
}
"""What only one method has."""

_STRICT = ConfigDict(frozen=True, extra="forbid")


class DraftTokens(BaseModel):
    """The numbers of drafted tokens that may be tried, both ends included."""

    model_config = _STRICT

    min: WholeNumber = Field(1, ge=1, le=64, description="fewest tokens proposed per round, 1 to 64")
    max: WholeNumber = Field(12, ge=1, le=64, description="most tokens proposed per round, 1 to 64")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class Draft(BaseModel):
    """One way of proposing tokens."""

    model_config = _STRICT

    name: str = Field(
        max_length=40, pattern=DRAFT_NAME_PATTERN, description="short stable id of lower-case letters, digits and '-'"
    )
    method: Literal[Method.NGRAM, Method.SUFFIX, Method.DRAFT_MODEL, Method.EAGLE] = Field(
        description="how tokens are proposed: ngram, suffix, draft_model or eagle"
    )
    model: str | None = Field(
        None, min_length=1, description="name or folder of the draft's weights; none for ngram and suffix"
    )
    prompt_lookup_max: WholeNumber | None = Field(
        None, ge=1, le=32, description="longest n-gram looked up, 1 to 32 (ngram only)"
    )
    prompt_lookup_min: WholeNumber | None = Field(
        None, ge=1, le=32, description="shortest n-gram looked up, 1 to 32 (ngram only)"
    )
    suffix_decoding_max_tree_depth: WholeNumber | None = Field(
        None, ge=2, le=256, description="longest suffix looked up and its proposal together, 2 to 256 (suffix only)"
    )
    suffix_decoding_max_spec_factor: Number | None = Field(
        None, gt=0, le=64, description="tokens proposed per token of the suffix, above 0, up to 64 (suffix only)"
    )
    suffix_decoding_min_token_prob: Number | None = Field(
        None, ge=0, le=1, description="least estimated probability of a proposed token, 0 to 1 (suffix only)"
    )

    @model_validator(mode="before")
    @classmethod
    def _explicit_lookup(cls, data: Any) -> Any:
        """Write the defaults of lookups out, so that engines with other defaults try the same thing."""
        if not isinstance(data, dict):
            return data
        if data.get("method") == Method.SUFFIX:
            return {**_SUFFIX_DEFAULTS, **{name: value for name, value in data.items() if value is not None}}
        return _with_explicit_lengths(data) if data.get("method") == Method.NGRAM else data

    @model_validator(mode="after")
    def _fits_method(self) -> Self:
        if self.name == NO_DRAFT:
            raise ValueError(f"the name {NO_DRAFT!r} is reserved for no speculation, which is always tried")
        if self.method in LOOKUP_METHODS and self.model is not None:
            raise ValueError(f"method {self.method} has no model, but model is {self.model!r}")
        if self.method not in LOOKUP_METHODS and self.model is None:
            raise ValueError(f"method {self.method} needs a model: the name or folder of the draft's weights")
        self._check_settings()
        return self

    def _check_settings(self) -> None:
        for method, names in SETTINGS_OF.items():
            if method is not self.method and any(getattr(self, name) is not None for name in names):
                written = f"{', '.join(names[:-1])} and {names[-1]}"
                raise ValueError(f"{written} belong to method {method}, not to {self.method}")
        if (self.prompt_lookup_min or 0) > (self.prompt_lookup_max or 0):
            raise ValueError(
                f"prompt_lookup_min {self.prompt_lookup_min} is above prompt_lookup_max {self.prompt_lookup_max}"
            )


_SUFFIX_DEFAULTS = {f"suffix_decoding_{name}": value for name, value in asdict(SuffixRule()).items()}


def _with_explicit_lengths(data: dict[str, Any]) -> dict[str, Any]:
    longest = data.get("prompt_lookup_max")
    shortest = data.get("prompt_lookup_min")
    if longest is None:
        least = shortest if isinstance(shortest, int) else 1
        longest = max(PROMPT_LOOKUP_MAX, least)
    if shortest is None:
        most = longest if isinstance(longest, int | float) else 1
        shortest = max(1, min(PROMPT_LOOKUP_MIN, most))
    return {**data, "prompt_lookup_max": longest, "prompt_lookup_min": shortest}


class SearchSpace(BaseModel):
    """The configurations that a search chooses from. "Do not speculate" is always one of them."""

    model_config = _STRICT

    name: str = Field(min_length=1, max_length=60, description="what tables and the store call this space")
    description: str = Field(min_length=1, max_length=500, description="what it is for, in a sentence")
    engine: str = Field("cpu", pattern=r"^[a-z0-9][a-z0-9_-]*$", description="name of the engine, e.g. cpu")
    drafts: tuple[Draft, ...] = Field(min_length=1, max_length=32, description="the drafts that may be tried, 1 to 32")
    num_speculative_tokens: DraftTokens = Field(
        default_factory=lambda: DraftTokens(min=1, max=12), description="range of tokens proposed per round: {min, max}"
    )

    @model_validator(mode="after")
    def _distinct_names(self) -> Self:
        names = [draft.name for draft in self.drafts]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"draft names must differ; given more than once: {', '.join(repeated)}")
        return self

    @property
    def draft_names(self) -> tuple[str, ...]:
        """Names of the drafts, in file order."""
        return tuple(draft.name for draft in self.drafts)

    @property
    def choices(self) -> tuple[str, ...]:
        """What a sampler chooses the draft from: ``"none"`` first, then the drafts."""
        return (NO_DRAFT, *self.draft_names)

    @property
    def drafted_tokens(self) -> range:
        """The numbers of drafted tokens that may be tried."""
        return range(self.num_speculative_tokens.min, self.num_speculative_tokens.max + 1)

    @property
    def key(self) -> str:
        """Equal for spaces that offer the same configurations on the same engine."""
        return content_key([self.engine, [speculation.key for speculation in self.configurations()]])

    def draft(self, name: str) -> Draft:
        """The draft of that name.

        Raises:
            NotFoundError: There is none.
        """
        for draft in self.drafts:
            if draft.name == name:
                return draft
        raise NotFoundError(f"search space {self.name!r} has no draft named {name!r}", did_you_mean(name, self.choices))

    def speculation(self, draft_name: str, drafted_tokens: int) -> Speculation:
        """The configuration of a draft and a number of drafted tokens.

        ``"none"`` and 0 drafted tokens both mean no speculation, whatever the other argument is.

        Raises:
            NotFoundError: No draft has that name.
            SearchSpaceError: The number is outside the space.
        """
        if draft_name == NO_DRAFT or drafted_tokens == 0:
            return NO_SPECULATION
        draft = self.draft(draft_name)
        if drafted_tokens not in self.drafted_tokens:
            limits = self.num_speculative_tokens
            raise SearchSpaceError(
                f"num_speculative_tokens {drafted_tokens} is outside {limits.min} to {limits.max} of {self.name!r}",
                "widen num_speculative_tokens in the search space",
            )
        return Speculation(
            method=draft.method,
            draft_name=draft.name,
            draft_model=draft.model,
            drafted_tokens=drafted_tokens,
            prompt_lookup_max=draft.prompt_lookup_max,
            prompt_lookup_min=draft.prompt_lookup_min,
            suffix_decoding_max_tree_depth=draft.suffix_decoding_max_tree_depth,
            suffix_decoding_max_spec_factor=draft.suffix_decoding_max_spec_factor,
            suffix_decoding_min_token_prob=draft.suffix_decoding_min_token_prob,
        )

    def configurations(self) -> tuple[Speculation, ...]:
        """Every configuration: the baseline, then draft by draft with rising numbers of drafted tokens."""
        tried = (self.speculation(name, count) for name in self.draft_names for count in self.drafted_tokens)
        return (NO_SPECULATION, *tried)

    def with_drafts(self, references: Sequence[str]) -> SearchSpace:
        """The same space with only the drafts given on a command line.

        Args:
            references: Each is the name of a draft of this space, ``ngram``, ``suffix``, or a name or folder of
                weights. Weights are a draft model unless their name says eagle; ``eagle:FOLDER`` or
                ``draft_model:FOLDER`` decides it.

        Raises:
            SearchSpaceError: Nothing to try is left.
        """
        drafts: list[Draft] = []
        for reference in dict.fromkeys(references):
            known = {draft.name: draft for draft in self.drafts}
            taken = {draft.name for draft in drafts}
            drafts.append(known.get(reference) or _draft_from(reference, taken | set(known)))
        return SearchSpace(
            name=self.name,
            description=self.description,
            engine=self.engine,
            drafts=tuple(drafts),
            num_speculative_tokens=self.num_speculative_tokens,
        )


def _draft_from(reference: str, taken: set[str]) -> Draft:
    if reference == NO_DRAFT or not reference.strip():
        raise SearchSpaceError(f"{reference!r} is not a draft: no speculation is always tried", "name another draft")
    if reference in LOOKUP_METHODS:
        return Draft.model_validate({"name": _free_name(reference, taken), "method": reference})
    prefix, separator, rest = reference.partition(":")
    if separator and prefix in {Method.EAGLE, Method.DRAFT_MODEL} and rest:
        method, model = Method(prefix), rest
    else:
        # Every published EAGLE head carries the word in its name; the prefix is for those that do not.
        model = reference
        method = Method.EAGLE if "eagle" in Path(reference).name.lower() else Method.DRAFT_MODEL
    return Draft.model_validate({"name": _free_name(Path(model).name, taken), "method": method, "model": model})


def _free_name(text: str, taken: set[str]) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:32].strip("-") or "draft"
    candidates = (name, *(f"{name}-{number}" for number in range(2, len(taken) + 3)))
    return next(candidate for candidate in candidates if candidate not in taken | {NO_DRAFT})


def space_names() -> tuple[str, ...]:
    """Names of the search spaces that come with the package."""
    return shipped_names("search_spaces")


def read_search_space(reference: str | Path) -> SearchSpace:
    """The search space of a shipped name or a YAML file.

    Raises:
        NotFoundError: It is neither.
        SearchSpaceError: The file is not a valid search space; the message has file, line and field.
    """
    document = read_yaml(find_file("search_spaces", reference), SearchSpaceError)
    return validate(document, SearchSpace, SearchSpaceError)
