"""``tuner spaces``: the search spaces that come with the package, and whether one of your own is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tuner.search_space import Draft, SearchSpace

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="List, show and check search spaces.",
)

Reference = Annotated[str, typer.Argument(metavar="SPACE", help="Name of a shipped search space, or a .yaml file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command("list")
def list_spaces(as_json: AsJson = False) -> None:
    """List the search spaces that come with the package."""
    from tuner.cli.output import print_json
    from tuner.search_space import read_search_space, space_names

    spaces = [read_search_space(name) for name in space_names()]
    if as_json:
        print_json({"spaces": [_summary(space) for space in spaces]})
        return
    _print_list(spaces)


@app.command("show")
def show_space(reference: Reference, as_json: AsJson = False) -> None:
    """Show the drafts and the values in effect of a search space."""
    from tuner.cli.output import print_json
    from tuner.search_space import read_search_space

    space = read_search_space(reference)
    if as_json:
        print_json({**space.model_dump(mode="json"), "num_configurations": len(space.configurations())})
        return
    _print_space(space)


@app.command("check", short_help="Say what is wrong with a search-space file.")
def check_space(reference: Reference, as_json: AsJson = False) -> None:
    """Read a search-space file, and say what is wrong with it or what would be tried."""
    from tuner.cli.output import print_json
    from tuner.search_space import read_search_space

    space = read_search_space(reference)
    if as_json:
        print_json({"ok": True, **_summary(space)})
        return
    typer.echo(f"ok: {len(space.configurations())} configurations of {', '.join(space.choices)}")


def _summary(space: SearchSpace) -> dict[str, Any]:
    return {
        "name": space.name,
        "description": space.description,
        "engine": space.engine,
        "drafts": list(space.draft_names),
        "num_speculative_tokens": space.num_speculative_tokens.model_dump(),
        "num_configurations": len(space.configurations()),
    }


def _print_list(spaces: list[SearchSpace]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("Search space", "What it is", "Engine", "Drafts", box=None, pad_edge=False)
    table.add_column("Configurations", justify="right")
    for space in spaces:
        drafts = ", ".join(space.draft_names)
        table.add_row(space.name, space.description, space.engine, drafts, str(len(space.configurations())))
    Console(highlight=False, markup=False).print(table)


def _print_space(space: SearchSpace) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    limits = space.num_speculative_tokens
    console.print(f"{space.name}: {space.description}")
    console.print(
        f"engine {space.engine}, num_speculative_tokens {limits.min} to {limits.max}, "
        f"{len(space.configurations())} configurations, no speculation among them"
    )
    table = Table("Draft", "Method", "Model or what is looked up", box=None, pad_edge=False)
    for draft in space.drafts:
        table.add_row(draft.name, draft.method, _source(draft))
    console.print(table)


def _source(draft: Draft) -> str:
    if draft.model is not None:
        return draft.model
    if draft.suffix_decoding_max_tree_depth is not None:
        return f"suffixes of the text so far, up to {draft.suffix_decoding_max_tree_depth} tokens with what follows"
    return f"{draft.prompt_lookup_min} to {draft.prompt_lookup_max} tokens of the text so far"
