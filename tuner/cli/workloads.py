"""``tuner workloads``: what comes with the package, what one holds, and whether a file of your own is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tuner.records import Sampling
    from tuner.workload import Workload

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="List, show and check workloads.",
)

Reference = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="Name of a shipped workload, a .yaml file, or a prompt .jsonl file.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
SkipInvalid = Annotated[
    bool, typer.Option("--skip-invalid", help="Leave invalid prompt lines out and report them, instead of stopping.")
]


@app.command("list")
def list_workloads(as_json: AsJson = False) -> None:
    """List the workloads that come with the package."""
    from tuner.cli.output import print_json
    from tuner.workload import read_workload, workload_names

    workloads = [read_workload(name) for name in workload_names()]
    if as_json:
        print_json({"workloads": [_summary(workload) for workload in workloads]})
        return
    _print_list(workloads)


@app.command("show", short_help="Show the values in effect, classes and prompts.")
def show_workload(
    reference: Reference,
    prompts: Annotated[bool, typer.Option("--prompts", help="Show the text of every prompt too.")] = False,
    skip_invalid: SkipInvalid = False,
    as_json: AsJson = False,
) -> None:
    """Show the values in effect, the classes and, if wanted, the prompts of a workload."""
    from tuner.cli.output import print_json
    from tuner.workload import read_workload

    workload = read_workload(reference, skip_invalid=skip_invalid)
    if as_json:
        print_json(_document(workload, with_prompts=prompts))
        return
    _print_workload(workload)
    if prompts:
        _print_prompts(workload)


@app.command("check", short_help="Say what is wrong with a workload or prompt file.")
def check_workload(reference: Reference, skip_invalid: SkipInvalid = False, as_json: AsJson = False) -> None:
    """Read a workload or prompt file, and say what is wrong with it or what would be used."""
    from tuner.cli.output import print_json
    from tuner.workload import read_workload

    workload = read_workload(reference, skip_invalid=skip_invalid)
    if as_json:
        print_json({"ok": True, **_summary(workload), "skipped": _skipped(workload), "notices": _notices(workload)})
        return
    typer.echo(f"ok: prompts by class: {', '.join(f'{name} {count}' for name, count in _counts(workload).items())}")
    for notice in _notices(workload):
        typer.echo(f"note: {notice}", err=True)


def _counts(workload: Workload) -> dict[str, int]:
    counts: dict[str, int] = dict.fromkeys(workload.classes, 0)
    for prompt in workload.prompts:
        counts[prompt.prompt_class] = counts.get(prompt.prompt_class, 0) + 1
    return counts


def _summary(workload: Workload) -> dict[str, Any]:
    return {
        "name": workload.name,
        "description": workload.description,
        "prompts": len(workload.prompts),
        "classes": _counts(workload),
        "max_output_tokens": workload.max_output_tokens,
        "search_prompts": len(workload.search_sample()),
        "certify_prompts": len(workload.certify_sample()),
        "certify_is_held_out": workload.certify_is_held_out,
    }


def _skipped(workload: Workload) -> dict[str, Any]:
    from tuner.prompts import reasons

    return {"lines": [item.line for item in workload.skipped], "reasons": reasons(workload.skipped)}


def _notices(workload: Workload) -> list[str]:
    """What a person should know before the workload is used."""
    notices = []
    if workload.skipped:
        counts = "; ".join(f"{count} × {reason}" for reason, count in _skipped(workload)["reasons"].items())
        lines = ", ".join(str(item.line) for item in workload.skipped[:20])
        notices.append(f"{len(workload.skipped)} lines skipped: {counts} (lines {lines})")
    if workload.reuse_notice is not None:
        notices.append(workload.reuse_notice)
    empty = [name for name, count in _counts(workload).items() if not count]
    if empty:
        notices.append(f"classes without a prompt: {', '.join(empty)}")
    return notices


def _document(workload: Workload, *, with_prompts: bool) -> dict[str, Any]:
    from dataclasses import asdict

    values = workload.model_dump(mode="json", exclude={"prompts", "skipped", "sampling"})
    document = {
        **values,
        "sampling": asdict(workload.sampling),
        "class_counts": _counts(workload),
        "num_prompts": len(workload.prompts),
        "prompts_sha256": workload.prompts_sha256,
        "certify_is_held_out": workload.certify_is_held_out,
        "skipped": _skipped(workload),
    }
    return {**document, "prompts": [asdict(prompt) for prompt in workload.prompts]} if with_prompts else document


def _print_list(workloads: list[Workload]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("Workload", "What it is", box=None, pad_edge=False)
    for title in ("Prompts", "Classes", "Output cap"):
        table.add_column(title, justify="right")
    for workload in workloads:
        numbers = (len(workload.prompts), len(_counts(workload)), workload.max_output_tokens)
        table.add_row(workload.name, workload.description, *map(str, numbers))
    Console(highlight=False, markup=False).print(table)


def _print_workload(workload: Workload) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    values = Table.grid(padding=(0, 2))
    for name, value in _shown_values(workload).items():
        values.add_row(name, value)
    console.print(values)
    classes = Table("Class", "Prompts", "Repetition expected", "What it is", box=None, pad_edge=False)
    for name, count in _counts(workload).items():
        described = workload.classes.get(name)
        repetition = "yes" if workload.repetition_expected(name) else "no"
        classes.add_row(name, str(count), repetition, described.description if described else "")
    console.print(classes)


def _shown_values(workload: Workload) -> dict[str, str]:
    small = workload.quick_sample
    values = {
        "name": workload.name,
        "description": workload.description,
        "prompts": f"{len(workload.prompts)}: {workload.search_prompts} for the search, "
        f"{workload.certify_prompts} for the final comparison",
        "with --quick": f"{small.search_prompts} and {small.certify_prompts}, "
        f"at most {small.max_output_tokens} output tokens",
        "max_output_tokens": str(workload.max_output_tokens),
        "concurrency": str(workload.concurrency),
        "sampling": "greedy" if workload.sampling.temperature == 0 else _shown_sampling(workload.sampling),
        "limits_reason": workload.limits_reason,
    }
    return values if workload.slo is None else {**values, "slo": _shown_slo(workload)}


def _shown_sampling(sampling: Sampling) -> str:
    return (
        f"temperature {sampling.temperature:g}, top_p {sampling.top_p:g}, top_k {sampling.top_k}, seed {sampling.seed}"
    )


def _shown_slo(workload: Workload) -> str:
    limits = workload.slo.model_dump(exclude={"reason"}, exclude_none=True) if workload.slo else {}
    reason = workload.slo.reason if workload.slo else ""
    return f"{', '.join(f'{name} {value:g}' for name, value in limits.items())}: {reason}"


def _print_prompts(workload: Workload) -> None:
    for prompt in workload.prompts:
        typer.echo(f"\n[{prompt.prompt_id}] {prompt.prompt_class}")
        for message in prompt.messages:
            typer.echo(message.content if message.role == "user" else f"{message.role}: {message.content}")
        if prompt.text is not None:
            typer.echo(prompt.text)
