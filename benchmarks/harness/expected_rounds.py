"""Rounds that rejection sampling really took beside those that replay expects of p and q along sampled outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from tuner.engines.cpu.model import LanguageModel
from tuner.records import PromptTrace, Sampling, Trace, TraceKind
from tuner.replay import replay_all

from .comparison import Task
from .rejection_sampling import RejectionSampler, Sampled
from .shared_target import SharedTarget

Floats = NDArray[np.float64]

NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Numerators and denominators of τ over sequences of several prompts.

    Attributes:
        decoded: N − 1 of each sequence.
        rounds: Of each, counted or expected.
        prompts: Number of the prompt of each.
    """

    decoded: Floats
    rounds: Floats
    prompts: NDArray[np.int64]

    @property
    def acceptance_length(self) -> float:
        """τ = Σ(N − 1) / Σ rounds."""
        return float(self.decoded.sum() / self.rounds.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """How far replay is from what ran.

    Attributes:
        relative: τ replayed over τ measured, minus one.
        standard_error: Of it.
    """

    relative: float
    standard_error: float

    @property
    def beyond_its_limits(self) -> float:
        """What of the error chance does not explain at the 95 % level."""
        return max(0.0, abs(self.relative) - NORMAL_95 * self.standard_error)

    def describe(self) -> dict[str, float]:
        """As the JSON shows it."""
        return {
            "relative_error": round(self.relative, 5),
            "standard_error": round(self.standard_error, 5),
            "beyond_its_limits": round(self.beyond_its_limits, 5),
        }


@dataclass(slots=True)
class Cell:
    """One k under one sampling: every sequence of every prompt.

    Attributes:
        ran: By rejection sampling.
        along_own: What replay expects along the very outputs of ``ran``.
        along_target: What replay expects along outputs that the target sampled alone.
    """

    drafted_tokens: int
    sampling: Sampling
    ran: list[Column] = field(default_factory=list)
    along_own: list[Column] = field(default_factory=list)
    along_target: list[Column] = field(default_factory=list)

    def own_error(self) -> Error:
        """Along its own outputs: only the acceptance draws are left to chance."""
        ran, expected = _joined(self.ran), _joined(self.along_own)
        return Error(
            relative=expected.acceptance_length / ran.acceptance_length - 1,
            standard_error=_log_ratio_error(ran.rounds, expected.rounds, ran.prompts),
        )

    def target_error(self) -> Error:
        """Along the target's own samples, as a study has them: the outputs differ by chance too."""
        ran, expected = _joined(self.ran), _joined(self.along_target)
        errors = [_log_ratio_error(one.decoded, one.rounds, one.prompts) for one in (ran, expected)]
        return Error(
            relative=expected.acceptance_length / ran.acceptance_length - 1,
            standard_error=float(np.hypot(*errors)),
        )

    def describe(self) -> dict[str, object]:
        """As the JSON shows it."""
        ran = _joined(self.ran)
        return {
            "drafted_tokens": self.drafted_tokens,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "top_k": self.sampling.top_k,
            "sequences": len(ran.rounds),
            "rounds": int(ran.rounds.sum()),
            "measured_acceptance_length": round(ran.acceptance_length, 4),
            "replayed_along_own_outputs": round(_joined(self.along_own).acceptance_length, 4),
            "replayed_along_target_outputs": round(_joined(self.along_target).acceptance_length, 4),
            "along_own_outputs": self.own_error().describe(),
            "along_target_outputs": self.target_error().describe(),
        }


def _joined(columns: Sequence[Column]) -> Column:
    return Column(
        decoded=np.concatenate([one.decoded for one in columns]),
        rounds=np.concatenate([one.rounds for one in columns]),
        prompts=np.concatenate([one.prompts for one in columns]),
    )


def _log_ratio_error(numerators: Floats, denominators: Floats, strata: NDArray[np.int64]) -> float:
    """Standard error of log(Σ numerators / Σ denominators), where the number of sequences of each prompt is fixed."""
    influence = numerators / numerators.sum() - denominators / denominators.sum()
    parts = [influence[strata == one] for one in np.unique(strata)]
    return float(np.sqrt(sum(len(part) * part.var(ddof=1) for part in parts)))


def sample_cells(
    shared: SharedTarget,
    draft: LanguageModel,
    tasks: Sequence[Task],
    samplings: Collection[Sampling],
    drafted_tokens: Sequence[int],
    *,
    sequences: int,
    seed: int,
    one_done: Callable[[], None],
) -> list[Cell]:
    """Decode every prompt ``sequences`` times with each k and sampling, and replay the same.

    Args:
        shared: The target; its caches have ``sequences`` slots or more.
        draft: With as many.
        tasks: Prompts with their caps.
        samplings: Of target and draft alike.
        drafted_tokens: Values of k, from 1 on.
        sequences: Of each prompt; 2 or more.
        seed: Of all draws.
        one_done: Called after each prompt and sampling.
    """
    cells = [Cell(k, sampling) for sampling in samplings for k in drafted_tokens]
    generator = torch.Generator().manual_seed(seed)
    for number, task in enumerate(tasks):
        for sampling in samplings:
            sampler = RejectionSampler(
                target=shared.model,
                draft=draft,
                prompt=shared.tokenizer.encode(task.prompt),
                sampling=sampling,
                ends=shared.tokenizer.eos_token_ids,
                cap=task.max_output_tokens,
                generator=generator,
            )
            alone = _Traced.of(sampler, sampler.run(sequences, 0), sampling, number)
            for cell in (one for one in cells if one.sampling == sampling):
                ran = sampler.run(sequences, cell.drafted_tokens)
                cell.ran.append(_counted(ran, number))
                cell.along_own.append(_Traced.of(sampler, ran, sampling, number).expected(cell.drafted_tokens))
                cell.along_target.append(alone.expected(cell.drafted_tokens))
            one_done()
    return cells


@dataclass(frozen=True, slots=True)
class _Traced:
    """Outputs of one prompt with p and q along them."""

    prompts: tuple[PromptTrace, ...]
    sampling: Sampling
    number: int

    @classmethod
    def of(cls, sampler: RejectionSampler, sequences: Sequence[Sampled], sampling: Sampling, number: int) -> _Traced:
        return cls(tuple(sampler.traced(sequences)), sampling, number)

    def expected(self, drafted_tokens: int) -> Column:
        trace = Trace(
            draft_name="shallow",
            max_drafted_tokens=drafted_tokens,
            prompts=self.prompts,
            kind=TraceKind.TEACHER_FORCED,
            sampling=self.sampling,
        )
        (replayed,) = replay_all(trace, [drafted_tokens])
        return _column(replayed.output_tokens - 1, replayed.rounds, self.number)


def _counted(sequences: Sequence[Sampled], number: int) -> Column:
    return _column([len(one.output) - 1 for one in sequences], [one.rounds for one in sequences], number)


def _column(decoded: Sequence[int] | NDArray[np.int64], rounds: object, number: int) -> Column:
    return Column(
        decoded=np.asarray(decoded, dtype=np.float64),
        rounds=np.asarray(rounds, dtype=np.float64),
        prompts=np.full(len(decoded), number, dtype=np.int64),
    )
