"""What is lost when a search is killed at random moments, again and again.

Searches of a fake engine with realistic stages run on a standing Ray cluster of this machine; SIGKILL hits the driver,
a worker that holds a stage, or a stage's own process. With ``--local`` each driver has a Ray of its own, and only
drivers are killed. The last line of standard output is one JSON object with ``--json``. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the drill engine is among the tests

from harness.command import run_command
from harness.killing import KillDrill
from rich.console import Console
from rich.table import Table

TABLE_WIDTH = 100
KILLS, QUICK_KILLS = 200, 2
LOCAL_KILLS, QUICK_LOCAL_KILLS = 20, 1


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="a few kills, within a minute")
    parser.add_argument("--local", action="store_true", help="a local Ray for each driver, instead of a standing one")
    parser.add_argument("--kills", type=int, help=f"how many; else {KILLS}, or {LOCAL_KILLS} with --local")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims")
    return run_command(drill, parser.parse_args(argv), TABLE_WIDTH)


def drill(arguments: argparse.Namespace, console: Console) -> dict[str, object]:
    """Kill, start again, and count."""
    full, quick = (LOCAL_KILLS, QUICK_LOCAL_KILLS) if arguments.local else (KILLS, QUICK_KILLS)
    kills = arguments.kills or (quick if arguments.quick else full)
    found = KillDrill(
        kills=kills, seed=arguments.seed, is_local=arguments.local, is_short=arguments.quick, console=console
    ).run()
    table = Table("", "count", title=f"{kills} kills")
    for name, value in found.items():
        table.add_row(name, str(value))
    console.print(table)
    return found


if __name__ == "__main__":
    sys.exit(main())
