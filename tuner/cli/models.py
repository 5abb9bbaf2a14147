"""``tuner models``: the models that can be given by name, and a look at any model before a search depends on it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from tuner.catalog import CatalogModel
    from tuner.errors import ModelError
    from tuner.models.check import ModelReport
    from tuner.settings import Settings

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List, fetch, show and check models.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Reference = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Name of the catalogue, folder, GGUF file, or owner/name on the hub.", show_default=False
    ),
]


@app.command("list", short_help="List the models that can be given by name.")
def list_models(*, as_json: AsJson = False) -> None:
    """List the models that can be given by name, and which of them are on this machine."""
    from tuner.catalog import read_catalog
    from tuner.cli.output import print_json
    from tuner.models.pull import find_pulled
    from tuner.settings import read_settings

    settings = read_settings()
    found = [(model, find_pulled(model, settings)) for model in read_catalog().models]
    if as_json:
        print_json({"models": [_entry(model, folder) for model, folder in found]})
        return
    rows = (
        (model.name, model.role, _size(model), model.licence, "yes" if folder else "no", _purpose(model))
        for model, folder in found
    )
    _print_table(("model", "role", "download", "licence", "here", "purpose"), rows)


@app.command(short_help="Fetch models, convert them and check their hashes.")
def pull(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Names of the catalogue.", show_default=False)],
    *,
    as_json: AsJson = False,
) -> None:
    """Fetch models, convert them and check their hashes; what is here already is left alone."""
    from tuner.catalog import catalog_model
    from tuner.cli.output import print_json
    from tuner.models.progress import progress_bars
    from tuner.models.pull import pull as pull_model
    from tuner.settings import read_settings

    settings, models = read_settings(), [catalog_model(name) for name in names]
    with progress_bars() as report:
        folders = {model.name: str(pull_model(model.name, settings=settings, report=report)) for model in models}
    if as_json:
        print_json({"models": [{"name": name, "folder": folder} for name, folder in folders.items()]})
        return
    for folder in folders.values():
        typer.echo(folder)


@app.command(short_help="Show what is known of a model.")
def show(reference: Reference, *, as_json: AsJson = False) -> None:
    """Show what is known of a model: licence, sources, dimensions, and where the weights on this machine came from.

    A model of the catalogue is not fetched for this.
    """
    from tuner.catalog import read_catalog
    from tuner.cli.output import print_json
    from tuner.settings import read_settings

    settings = read_settings()
    model = read_catalog().find(reference)
    folder = _folder_to_show(reference, model, settings)
    facts = ({} if model is None else _entry(model, folder)) | ({} if folder is None else _facts(folder))
    if as_json:
        print_json(facts)
        return
    _print_table(("", reference), ((name, _shown(value)) for name, value in facts.items() if value is not None))


@app.command(short_help="Check a model, and that a draft fits it.")
def check(
    target: Reference,
    *,
    draft: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Also check that this draft fits the target.")
    ] = None,
    config_only: Annotated[bool, typer.Option("--config-only", help="Do not ask for weights.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check config, tokenizer and weights of a model, and that a draft's token ids are the target's."""
    from tuner.cli.output import print_json
    from tuner.models.check import check_model, check_pair
    from tuner.models.resolve import resolve_models
    from tuner.settings import read_settings

    references = [target] if draft is None else [target, draft]
    folders = resolve_models(references, settings=read_settings())
    reports = {name: check_model(folder, with_weights=not config_only) for name, folder in folders.items()}
    _raise_together([problem for report in reports.values() for problem in report.problems])
    remarks = () if draft is None else check_pair(folders[target], folders[draft])
    if as_json:
        print_json({"models": [_report(name, report) for name, report in reports.items()], "remarks": list(remarks)})
        return
    _print_reports(reports)
    for remark in remarks:
        typer.echo(f"note: {remark}")


def _raise_together(problems: list[ModelError]) -> None:
    from tuner.errors import ModelError

    if len(problems) == 1:
        raise problems[0]
    if problems:
        lines = [f"{problem.message} ({problem.hint})" for problem in problems]
        raise ModelError("\n".join(lines), f"{len(problems)} things to mend, or fetch the model again")


def _folder_to_show(reference: str, model: CatalogModel | None, settings: Settings) -> Path | None:
    if model is None:
        from tuner.models.resolve import resolve_model

        return resolve_model(reference, settings=settings)
    from tuner.models.pull import find_pulled, pull_model

    is_here = find_pulled(model, settings) is not None
    return pull_model(model, settings=settings) if is_here else None


def _entry(model: CatalogModel, folder: Path | None) -> dict[str, Any]:
    """One model of the catalogue as JSON; sources as their labels."""
    fields = model.model_dump(mode="json", exclude={"sources", "disk_bytes"})
    return {
        **fields,
        "sources": [source.label for source in model.sources],
        "folder": None if folder is None else str(folder),
    }


def _facts(folder: Path) -> dict[str, Any]:
    """What the folder itself says."""
    from dataclasses import asdict

    from tuner.models.config import read_model_config
    from tuner.models.provenance import read_provenance

    config, provenance = asdict(read_model_config(folder)), read_provenance(folder)
    config["eos_token_ids"] = sorted(config["eos_token_ids"])
    came_from = {} if provenance is None else {"source": provenance.source, "weights": provenance.weights_sha256}
    return {"folder": str(folder), **came_from, **config}


def _report(name: str, report: ModelReport) -> dict[str, Any]:
    return {
        "model": name,
        "folder": str(report.folder),
        "architecture": None if report.config is None else report.config.architecture,
        "parameters": report.num_parameters or None,
        "weight_bytes": report.weight_bytes or None,
        "dtypes": list(report.dtypes),
        "tokens": report.num_tokens,
        "embedding_rows": None if report.config is None else report.config.vocab_size,
        "has_chat_template": report.has_chat_template,
    }


def _print_reports(reports: dict[str, ModelReport]) -> None:
    facts = [_report(name, report) for name, report in reports.items()]
    names = [name for name in facts[0] if name != "model"]
    rows = ((name.replace("_", " "), *(_shown(fact[name]) for fact in facts)) for name in names)
    _print_table(("usable", *(fact["model"] for fact in facts)), rows)


def _purpose(model: CatalogModel) -> str:
    return model.purpose if model.for_target is None else f"{model.purpose}, for {model.for_target}"


def _size(model: CatalogModel) -> str:
    if not model.download_bytes:
        return "shipped"
    giga = model.download_bytes / 1e9
    return f"{giga:.1f} GB" if giga >= 1 else f"{model.download_bytes / 1e6:.0f} MB"


def _shown(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(item)}" for name, item in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _print_table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    from rich.console import Console

    table = _table(headings)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _table(headings: Iterable[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for index, heading in enumerate(headings):
        table.add_column(heading, overflow="fold", no_wrap=index == 0)
    return table
