"""How busy a search keeps its accelerators, and how long it takes, by where it compiles.

The product's driver over simulated machines: 16 of them with 2 blocks of devices each, compiles of 20 minutes,
measurements of 3. CPU machines that compile for them, against compiles that hold a block. The last line of standard
output is one JSON object with ``--json``; the table goes to standard error. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the simulated engine is among the tests

from harness.command import run_command
from harness.simulated_search import Setting, Simulated, simulate
from rich.console import Console
from rich.table import Table

TABLE_WIDTH = 120
ENOUGH_MACHINES = 36
"""32 blocks measure 32 configurations in 3 minutes, so that 213 compiles of 20 minutes keep up; a machine runs 6."""

FARM = Setting(name=f"{ENOUGH_MACHINES} machines that compile", compile_on="cpu", farm_machines=ENOUGH_MACHINES)
ON_ACCELERATOR = Setting(name="on the accelerator", compile_on="device_host", compile_blocks=1)
ON_DEVICE_HOST = Setting(name="beside the accelerator", compile_on="device_host")
SMALLER_FARMS = tuple(
    Setting(name=f"{count} machines that compile", compile_on="cpu", farm_machines=count) for count in (6, 12, 24)
)


@dataclass(frozen=True, slots=True)
class Size:
    """Configurations, and where else they are compiled."""

    drafts: int
    most_tokens: int
    further: tuple[Setting, ...]


FULL = Size(drafts=20, most_tokens=32, further=(ON_DEVICE_HOST, *SMALLER_FARMS))
QUICK = Size(drafts=12, most_tokens=16, further=())


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer configurations, and only the two extremes")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    return run_command(compare, parser.parse_args(argv), TABLE_WIDTH)


def compare(arguments: argparse.Namespace, console: Console) -> dict[str, object]:
    """Search once for each setting."""
    size = QUICK if arguments.quick else FULL
    found: dict[str, Simulated] = {}
    for setting in (FARM, ON_ACCELERATOR, *size.further):
        with tempfile.TemporaryDirectory() as folder:
            found[setting.name] = simulate(setting, size.drafts, size.most_tokens, Path(folder))
    console.print(table(found))
    farm, accelerator = found[FARM.name], found[ON_ACCELERATOR.name]
    return {
        "busy_share": round(farm.busy_share, 4),
        "busy_share_compile_on_accelerator": round(accelerator.busy_share, 4),
        "wall_time_ratio": round(accelerator.wall_s / farm.wall_s, 3),
        "trials_wall_time_ratio": round(accelerator.trials_wall_s / farm.trials_wall_s, 3),
        "configurations": farm.measurements,
        "settings": {name: described(one) for name, one in found.items()},
        "quick": arguments.quick,
    }


def described(one: Simulated) -> dict[str, float]:
    """The figures of one setting; all but the last are simulated, and the same in every run."""
    return {
        "busy_share": round(one.busy_share, 4),
        "busy_share_compiled": round(one.busy_share_compiled, 4),
        "wall_minutes": round(one.wall_s / 60, 1),
        "trials_wall_minutes": round(one.trials_wall_s / 60, 1),
        "compiles_at_once": one.compiles_at_once,
        "driver_seconds": round(one.driver_s, 1),
    }


def table(found: dict[str, Simulated]) -> Table:
    """One line for each setting."""
    shown = Table(title=f"{next(iter(found.values())).measurements} configurations")
    for heading in ("compiles", "busy", "once compiled", "minutes", "of trials", "compiles at once", "driver s"):
        shown.add_column(heading, justify="left" if heading == "compiles" else "right")
    for name, one in found.items():
        shares = (f"{one.busy_share:.1%}", f"{one.busy_share_compiled:.1%}")
        minutes = (f"{one.wall_s / 60:.0f}", f"{one.trials_wall_s / 60:.0f}")
        shown.add_row(name, *shares, *minutes, str(one.compiles_at_once), f"{one.driver_s:.1f}")
    return shown


if __name__ == "__main__":
    sys.exit(main())
