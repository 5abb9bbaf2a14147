"""The options of ``tuner search``, of which ``tuner predict`` has some."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tuner.search_options import SearchOptions

Workload = Annotated[
    str, typer.Option("--workload", "-w", metavar="NAME|FILE", help="Shipped workload, or a .yaml or .jsonl file.")
]
Target = Annotated[
    str | None,
    typer.Option("--target", metavar="MODEL", help="Catalogue name, folder, GGUF file or hub id of the model."),
]
Drafts = Annotated[
    list[str] | None,
    typer.Option(
        "--draft", metavar="DRAFT", help="Only this draft: of the space, ngram, suffix, or a model; repeatable."
    ),
]
Prompts = Annotated[
    str | None,
    typer.Option("--prompts", metavar="FILE", help="A .jsonl file that replaces the workload's prompts."),
]
Space = Annotated[str, typer.Option("--space", metavar="NAME|FILE", help="Shipped search space, or a .yaml file.")]
Quick = Annotated[bool, typer.Option("--quick", help="A small sample and fewer configurations; may stay undecided.")]
Objectives = Annotated[
    list[str] | None,
    typer.Option(
        "--objective",
        metavar="NAME",
        help="What to optimise, repeatable: ttft_ms, tpot_ms or e2e_ms, each also with _p50, _p90 or _p99; waste; "
        "memory; output_tokens_per_s; cost, of a million tokens. All but waste and memory also with @N, at N requests "
        "in flight: e2e_ms@1. Default: e2e_ms and waste.",
    ),
]
Sampler = Annotated[
    str,
    typer.Option(
        "--sampler", metavar="NAME", help="How configurations are chosen: replay, tpe, gp, nsga2, random or grid."
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Of the sampler.")]
Name = Annotated[str | None, typer.Option("--name", metavar="STUDY", help="Of the study; else made from the settings.")]
Trials = Annotated[
    int | None,
    typer.Option(
        "--trials",
        metavar="N",
        help="Most configurations measured, the first is no speculation; else 6, or 4 with --quick.",
    ),
]
Epsilon = Annotated[
    float,
    typer.Option("--epsilon", metavar="SHARE", help="Gain over the best that is not worth another trial; 0.01 is 1 %."),
]
MaxCompiles = Annotated[
    int | None, typer.Option("--max-compiles", metavar="N", help="Most configurations compiled, the first among them.")
]
MaxMinutes = Annotated[
    float | None,
    typer.Option("--max-minutes", metavar="MIN", help="Most minutes of measuring before the final comparison."),
]
MaxCost = Annotated[
    float | None, typer.Option("--max-cost", metavar="AMOUNT", help="Most that these may cost, at the machines' price.")
]
PricePerHour = Annotated[
    float | None,
    typer.Option(
        "--price-per-hour", metavar="AMOUNT", help="Of a machine, for --max-cost and cost; else the hardware's."
    ),
]
CertifyLoads = Annotated[
    int, typer.Option("--certify-loads", metavar="N", help="Load both sides of the final comparison anew N times.")
]
Margin = Annotated[float, typer.Option("--margin", metavar="SHARE", help="Smallest gain worth having; 0.02 is 2 %.")]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", help="CPU threads; else a short self-test chooses.")
]
WeightFormat = Annotated[
    str, typer.Option("--weight-format", metavar="FORMAT", help="Of the engine's weights; auto is lossless.")
]
StageDeadline = Annotated[
    float | None,
    typer.Option(
        "--stage-deadline", metavar="SECONDS", help="Ends a stage that runs longer; else as the hardware says, 1800."
    ),
]
Hardware = Annotated[
    str, typer.Option("--hardware", metavar="NAME|FILE", help="Machines: shipped hardware, or a .yaml file.")
]
Parallel = Annotated[
    int | None,
    typer.Option(
        "--parallel",
        metavar="N",
        help="Configurations in flight; else what the machines take at once, at most 4 with sampler replay.",
    ),
]
Artifacts = Annotated[
    str | None,
    typer.Option(
        "--artifacts", metavar="URL", help="Folder or s3://… that every machine reaches, for compiled artifacts."
    ),
]
WaitForNodes = Annotated[
    float | None,
    typer.Option("--wait-for-nodes", metavar="SECONDS", help="Wait so long for machines that are not there yet."),
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Try configurations that failed earlier again.")]
RayAddress = Annotated[
    str | None, typer.Option("--ray-address", metavar="ADDRESS", help="Of a running Ray; else one of your own.")
]
Dispatch = Annotated[
    str,
    typer.Option(
        "--dispatch", metavar="ray|local|inline", help="Where stages run; local needs no Ray, inline is for debugging."
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Where the plot goes; else into the tuner's own folder."),
]
Plan = Annotated[bool, typer.Option("--plan", help="Say what would run, how long and on how much disk; start nothing.")]

FIELDS = {
    "draft": "drafts",
    "objective": "objectives",
    "trials": "max_trials",
    "threads": "num_threads",
    "stage_deadline": "stage_deadline_s",
    "wait_for_nodes": "wait_for_nodes_s",
}
"""What ``SearchOptions`` calls those options that have another name there."""


def asked(given: Mapping[str, Any]) -> SearchOptions:
    """What a command was asked for, from its options by name; those that do not concern a search are passed over."""
    from tuner.search_options import SearchOptions

    known = {FIELDS.get(name, name): value for name, value in given.items()}
    wanted = {name: value for name, value in known.items() if name in SearchOptions.__dataclass_fields__}
    for name in ("drafts", "objectives"):
        wanted[name] = tuple(wanted[name] or ())
    return SearchOptions(**wanted)


def search_command(options: SearchOptions) -> str:
    """The command line of a search with these options, passwords hidden."""
    from tuner.redact import hide_passwords

    names = {field: name for name, field in FIELDS.items()}
    words = ["tuner", "search"]
    for field, about in options.__dataclass_fields__.items():
        value = getattr(options, field)
        if value == about.default:
            continue
        flag = "--" + names.get(field, field).replace("_", "-")
        for one in value if isinstance(value, tuple) else (value,):
            words += [flag] if one is True else [flag, str(one)]
    return hide_passwords(shlex.join(words))
