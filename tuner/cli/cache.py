"""``tuner cache``: compiled artifacts on this machine and in the place that machines share."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.arguments import AsJson, new_app
from tuner.errors import ArtifactError, ConfigurationError

if TYPE_CHECKING:
    from tuner.artifacts.folder import FolderPlace
    from tuner.artifacts.manifest import Damage, Manifest
    from tuner.artifacts.places import Place
    from tuner.artifacts.upkeep import Inspection, Removal

app = new_app(no_args_is_help=True, help="List, verify and prune compiled artifacts.")

Artifacts = Annotated[
    str | None,
    typer.Option(
        "--artifacts",
        metavar="URL",
        show_default=False,
        help="The place that machines share: a folder, s3://BUCKET/PATH, or another URL that fsspec knows.",
    ),
]
InShared = Annotated[bool, typer.Option("--shared", help="In the shared place instead of on this machine.")]

SIZE_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
SIZE_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
AGE_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


@app.command("list", short_help="List compiled artifacts.")
def list_artifacts(artifacts: Artifacts = None, as_json: AsJson = False) -> None:
    """List compiled artifacts, those on this machine and those in the shared place."""
    from tuner.artifacts.manifest import Damage
    from tuner.cli.output import print_json

    node, shared = _node(), _shared(artifacts)
    here = node.manifests()
    there = () if shared is None else shared.manifests()
    rows = _rows(node, here, there)
    damaged = [one for one in (*here, *there) if isinstance(one, Damage)]
    if damaged:
        what = ", ".join(map(str, damaged))
        sys.stderr.write(f"note: left out, as the manifest is damaged: {what}; see `tuner cache verify`\n")
    if as_json:
        print_json({"node_dir": node.name, "shared": None if shared is None else shared.name, "artifacts": rows})
        return
    _print_table(node, rows)


@app.command("verify", short_help="Hash every file of every artifact.")
def verify_artifacts(
    artifacts: Artifacts = None,
    in_shared: InShared = False,
    remove_damaged: Annotated[
        bool, typer.Option("--remove-damaged", help="Remove what is damaged, unless it is in use.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Hash every file of every artifact, and fail with exit code 5 where one is not as it was published.

    What is removed is fetched or compiled again when it is needed.
    """
    from tuner.artifacts.upkeep import verify
    from tuner.cli.output import print_json

    place = _place(artifacts, in_shared=in_shared)
    found = verify(place, remove_damaged=remove_damaged)
    if found.damaged:
        raise _damaged(place, found, remove_damaged=remove_damaged)
    if as_json:
        print_json(
            {
                "place": place.name,
                "good": [one.key for one in found.good],
                "removed": [{"key": one.key, "file": one.file, "problem": one.problem} for one in found.removed],
            }
        )
        return
    for one in found.removed:
        typer.echo(f"removed {one}")
    typer.echo(f"{place.name}: {_count(len(found.good))} as published")


@app.command("prune", short_help="Remove artifacts, the least recently used first.")
def prune_artifacts(
    artifacts: Artifacts = None,
    in_shared: InShared = False,
    max_bytes: Annotated[
        str | None,
        typer.Option("--max-bytes", metavar="SIZE", help="Keep no more than this, such as 50GB.", show_default=False),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="AGE", help="Remove what was not used for that long: 30d, 12h.", show_default=False
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove every artifact.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove artifacts, the least recently used first, and what killed processes left; never what is in use.

    An object store does not tell who reads: there the age is that since compiling, and who loses an artifact while
    fetching it compiles again.
    """
    from tuner.artifacts.upkeep import prune
    from tuner.cli.output import print_json

    limit, age = _limits(max_bytes, older_than, everything=everything)
    place = _place(artifacts, in_shared=in_shared)
    if not dry_run:
        place.sweep()
    found = prune(place, max_bytes=limit, unused_for=age, dry_run=dry_run)
    if as_json:
        print_json(
            {
                "place": place.name,
                "dry_run": dry_run,
                "removed": [one.key for one in found.removed],
                "in_use": [one.key for one in found.in_use],
                "freed_bytes": found.freed_bytes,
            }
        )
        return
    _say_what_went(place, found, dry_run=dry_run)


def _node() -> FolderPlace:
    from tuner.artifacts.folder import FolderPlace
    from tuner.settings import read_settings

    return FolderPlace(read_settings().cache_dir / "artifacts")


def _shared(artifacts: str | None) -> Place | None:
    from tuner.artifacts.places import absolute_place, open_shared

    return None if artifacts is None else open_shared(absolute_place(artifacts), create=False)


def _place(artifacts: str | None, *, in_shared: bool) -> Place:
    """The one place that a command is about.

    Raises:
        ConfigurationError: It is unclear which.
    """
    if in_shared and artifacts is None:
        raise ConfigurationError("--shared needs to know the shared place", "give it with --artifacts URL")
    if artifacts is not None and not in_shared:
        raise ConfigurationError(
            "--artifacts names the shared place, and without --shared this is about the machine's own",
            "add --shared, or leave --artifacts out",
        )
    return _shared(artifacts) or _node()


def _limits(max_bytes: str | None, older_than: str | None, *, everything: bool) -> tuple[int | None, timedelta | None]:
    if everything:
        return 0, None
    if max_bytes is None and older_than is None:
        raise ConfigurationError("nothing says what may go", "give --max-bytes 50GB, --older-than 30d, or --all")
    limit = None if max_bytes is None else _bytes(max_bytes)
    return limit, None if older_than is None else _age(older_than)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in SIZE_UNITS:
        raise ConfigurationError(f"--max-bytes: {text!r} is not a size", "write it as 500MB, 50GB, 1.5TB or 40GiB")
    return round(float(match[1]) * SIZE_UNITS[match[2].upper()])


def _age(text: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,5}(?:\.\d+)?)\s*([mhdw])", text.strip())
    if match is None:
        raise ConfigurationError(f"--older-than: {text!r} is not an age", "write it as 30m, 12h, 30d or 8w")
    return float(match[1]) * AGE_UNITS[match[2]]


def _damaged(place: Place, found: Inspection, *, remove_damaged: bool) -> ArtifactError:
    what = "; ".join(str(one) for one in found.damaged)
    total = len(found.good) + len(found.damaged) + len(found.removed)
    if remove_damaged:
        return ArtifactError(f"{place.name}: damaged and in use, so not removed: {what}", "try again once it is free")
    return ArtifactError(
        f"{place.name}: {len(found.damaged)} of {_count(total)} damaged: {what}",
        "--remove-damaged removes them; they are fetched or compiled again when they are needed",
    )


def _rows(
    node: FolderPlace, here: tuple[Manifest | Damage, ...], there: tuple[Manifest | Damage, ...]
) -> list[dict[str, Any]]:
    from tuner.artifacts.manifest import Manifest

    on_node = {one.key: one for one in here if isinstance(one, Manifest)}
    in_shared = {one.key: one for one in there if isinstance(one, Manifest)}
    rows = []
    for key, one in sorted({**in_shared, **on_node}.items(), key=lambda item: item[1].created_at):
        is_here = key in on_node
        rows.append(
            {
                "key": key,
                "about": one.about,
                "content_hash": one.content_hash,
                "size_bytes": one.size_bytes,
                "compile_s": one.compile_s,
                "created_at": one.created_at.isoformat(),
                "last_used_at": node.last_used_at(one).isoformat() if is_here else None,
                "here": is_here,
                "shared": key in in_shared,
                "in_use": is_here and node.in_use(one.content_hash),
            }
        )
    return rows


def _print_table(node: FolderPlace, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from tuner.artifacts.locks import size_text
    from tuner.cli.output import stdout_console

    console = stdout_console()
    if not rows:
        console.print("No compiled artifact; a search compiles where its engine needs it.")
        return
    table = Table("Key", "Configuration", "Engine", "Size", "Age", "Where", "In use", box=None, pad_edge=False)
    for row in rows:
        where = [name for name in ("here", "shared") if row[name]]
        table.add_row(
            row["key"],
            row["about"].get("configuration", "–"),
            row["about"].get("engine", "–"),
            size_text(row["size_bytes"]),
            _age_text(datetime.now(UTC) - datetime.fromisoformat(row["created_at"])),
            ", ".join(where),
            "yes" if row["in_use"] else "no",
        )
    console.print(table)
    sizes = {row["content_hash"]: row["size_bytes"] for row in rows if row["here"]}
    console.print(f"{size_text(sum(sizes.values()))} in {node.name}", soft_wrap=True)


def _say_what_went(place: Place, found: Removal, *, dry_run: bool) -> None:
    from tuner.artifacts.locks import size_text

    for one in found.removed:
        typer.echo(f"{'would remove' if dry_run else 'removed'} {one.key} ({size_text(one.size_bytes)})")
    for one in found.in_use:
        typer.echo(f"in use, stays: {one.key} ({size_text(one.size_bytes)})")
    freed = "would be free" if dry_run else "freed"
    typer.echo(f"{place.name}: {size_text(found.freed_bytes)} {freed}")


def _count(artifacts: int) -> str:
    return "1 artifact" if artifacts == 1 else f"{artifacts} artifacts"


def _age_text(age: timedelta) -> str:
    for unit, length in reversed(AGE_UNITS.items()):
        if unit != "w" and age >= length:
            return f"{age // length} {'min' if unit == 'm' else unit}"
    return "now"
