"""What a person may say about a search, and what of it cannot be meant."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.decide import DEFAULT_MARGIN
from tuner.errors import ConfigurationError
from tuner.hardware import DEFAULT_HARDWARE, read_hardware
from tuner.lookup import did_you_mean
from tuner.plan import DEFAULT_MAX_TRIALS
from tuner.samplers import EPSILON
from tuner.stopping import Budget
from tuner.store import check_study_name

QUICK_MAX_TRIALS = 4
SEEDS = 2**32
"""NumPy, and with it every sampler, takes seeds below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What a person may say about a search; everything has a default but the workload.

    Attributes:
        workload: Name of a shipped workload, or a YAML or JSONL file.
        target: Catalogue name, folder, GGUF file or hub id; None takes the plain machine's default.
        space: Name of a shipped search space, or a YAML file.
        drafts: Only these drafts: names of the space, or model references.
        prompts: JSONL file that replaces the workload's prompts.
        quick: The workload's small sample, and fewer configurations.
        objectives: Names, ``"e2e_ms@4"`` the figure at four requests in flight; empty takes end-to-end latency and
            waste.
        name: Of the study; None makes one from the workload and the settings, so that the same command goes on.
        epsilon: Gain over the best measured configuration that is not worth another trial.
        max_trials: Most configurations measured, the baseline among them; None takes 6, or 4 with ``quick``, and is no
            limit where one of the next three is given.
        max_compiles: Most configurations compiled, likewise; None is no limit.
        max_minutes: Of stages before the final comparison; None is no limit.
        max_cost: Likewise, in the currency of ``price_per_hour``; None is no limit.
        price_per_hour: Of the machines that the search holds, and that objective ``cost`` is about; None takes the
            hardware's.
        certify_loads: Times that both sides of the final comparison are loaded anew.
        margin: Smallest gain worth recommending.
        stage_deadline_s: Of every stage; None takes the hardware's, else half an hour.
        storage: Database URL; None takes the settings'.
        hardware: Name of shipped hardware, or a YAML file: what machines there are, and what stages hold of them.
        parallel: Configurations in flight; None takes as many as the machines take at once, at most 4 with sampler
            ``replay``.
        artifacts: Folder or URL that every machine reaches, for compiled artifacts; None takes the hardware's.
        wait_for_nodes_s: Wait so long for machines that are not there yet; None takes the hardware's, else no time.
        retry_failed: Configurations that failed earlier are tried again.
        dispatch: ``"ray"``, ``"local"`` for processes of this machine, or ``"inline"`` to run stages in this process.
    """

    workload: str
    target: str | None = None
    space: str = "cpu-default"
    drafts: tuple[str, ...] = ()
    prompts: str | None = None
    quick: bool = False
    objectives: tuple[str, ...] = ()
    sampler: str = "replay"
    seed: int = 0
    name: str | None = None
    epsilon: float = EPSILON
    max_trials: int | None = None
    max_compiles: int | None = None
    max_minutes: float | None = None
    max_cost: float | None = None
    price_per_hour: float | None = None
    certify_loads: int = 1
    margin: float = DEFAULT_MARGIN
    num_threads: int | None = None
    weight_format: str = "auto"
    stage_deadline_s: float | None = None
    storage: str | None = None
    hardware: str = DEFAULT_HARDWARE
    parallel: int | None = None
    artifacts: str | None = None
    wait_for_nodes_s: float | None = None
    retry_failed: bool = False
    ray_address: str | None = None
    dispatch: str = "ray"


def _max_trials(options: SearchOptions) -> int | None:
    if options.max_trials is not None:
        return options.max_trials
    if any(limit is not None for limit in (options.max_compiles, options.max_minutes, options.max_cost)):
        return None
    return QUICK_MAX_TRIALS if options.quick else DEFAULT_MAX_TRIALS


def most_configurations(options: SearchOptions) -> int:
    """Measured at most, the baseline among them."""
    limits = (_max_trials(options), options.max_compiles)
    return min((limit for limit in limits if limit is not None), default=sys.maxsize)


def budget_of(options: SearchOptions) -> Budget:
    """What the search may use."""
    return Budget(
        max_trials=_max_trials(options),
        max_compiles=options.max_compiles,
        max_minutes=options.max_minutes,
        max_cost=options.max_cost,
        price_per_hour=price_per_hour(options),
    )


def price_per_hour(options: SearchOptions) -> float | None:
    """Of what a measured configuration holds: the option, else that share of the hardware's price of a machine."""
    return options.price_per_hour or read_hardware(options.hardware).measured_price_per_hour or None


def check_options(options: SearchOptions, dispatchers: Sequence[str]) -> None:
    """Refuse what cannot be meant, whatever the workload and the space say.

    Raises:
        ConfigurationError: An option's value, or a combination.
    """
    _check_texts(options)
    if options.dispatch not in dispatchers:
        raise ConfigurationError(
            f"no dispatcher named {options.dispatch!r}", did_you_mean(options.dispatch, dispatchers)
        )
    _check_budget(options)
    if not 0 <= options.epsilon < 1:
        raise ConfigurationError(f"--epsilon is {options.epsilon}", "give a share from 0 up to 1, e.g. 0.01 for 1 %")
    if not 0 <= options.margin < 1:
        raise ConfigurationError(f"--margin is {options.margin}", "give a share from 0 up to 1, e.g. 0.02 for 2 %")
    if not 0 <= options.seed < SEEDS:
        raise ConfigurationError(f"--seed is {options.seed}", f"give 0 to {SEEDS - 1}")
    deadline_s, wait_s = options.stage_deadline_s, options.wait_for_nodes_s
    if deadline_s is not None and not (math.isfinite(deadline_s) and deadline_s > 0):
        raise ConfigurationError(f"--stage-deadline is {deadline_s}", "give seconds above 0")
    if wait_s is not None and not (math.isfinite(wait_s) and wait_s >= 0):
        raise ConfigurationError(f"--wait-for-nodes is {wait_s}", "give seconds, 0 not to wait")
    if options.parallel is not None and options.parallel < 1:
        raise ConfigurationError(f"--parallel is {options.parallel}", "give 1 or more configurations in flight")
    _check_threads(options)


def _check_budget(options: SearchOptions) -> None:
    if options.certify_loads < 1:
        raise ConfigurationError(f"--certify-loads is {options.certify_loads}", "give 1 or more")
    for name, count in (("--trials", options.max_trials), ("--max-compiles", options.max_compiles)):
        if count is not None and count < 1:
            raise ConfigurationError(f"{name} is {count}", "give 1 or more; the baseline is the first")
    amounts = (
        ("--max-minutes", options.max_minutes),
        ("--max-cost", options.max_cost),
        ("--price-per-hour", options.price_per_hour),
    )
    for name, amount in amounts:
        if amount is not None and not (math.isfinite(amount) and amount > 0):
            raise ConfigurationError(f"{name} is {amount}", "give a number above 0")
    if options.max_cost is not None and price_per_hour(options) is None:
        raise ConfigurationError("--max-cost needs a price", "give --price-per-hour, what the machines cost")


def _check_texts(options: SearchOptions) -> None:
    """Refuse empty texts: they come from variables that are not set, and no default is meant by them."""
    for name in ("workload", "target", "space", "prompts", "storage", "hardware", "artifacts", "ray_address"):
        value = getattr(options, name)
        if value is not None and not value.strip():
            raise ConfigurationError(f"--{name.replace('_', '-')} is empty", "give a value, or leave the option out")
    if options.name is not None:
        check_study_name(options.name)


def _check_threads(options: SearchOptions) -> None:
    """At most the machine's own CPUs; a Ray elsewhere may have more than this machine."""
    most = os.cpu_count() or 1
    asked = options.num_threads
    if asked is not None and (asked < 1 or (options.ray_address is None and asked > most)):
        raise ConfigurationError(f"--threads is {asked}", f"give 1 to {most}, the CPUs of this machine")
