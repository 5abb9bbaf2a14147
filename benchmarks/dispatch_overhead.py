"""What the driver of a long search costs: processor time beside Optuna's own, and memory that grows.

A search of a fake engine through real Ray on this machine, with our tables and Optuna's in one SQLite file. The last
line of standard output is one JSON object with ``--json``; the table goes to standard error. See README.md beside this
file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the drill engine is among the tests

import numpy as np
from harness.command import run_command
from rich.console import Console
from rich.table import Table

from tests.support.drill_projects import DrillProject
from tuner.errors import DispatchError

TABLE_WIDTH = 100
TRIALS, QUICK_TRIALS = 300, 6
DRAFTS, QUICK_DRAFTS, DEEPEST = 20, 1, 16
WARM_UP = 0.2
"""Share of the trials after which memory is looked at: until then caches fill."""

OTHERS = ("optuna", "optuna_rest", "ray")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_TRIALS} trials, too few for the memory")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    parser.add_argument("--trials", type=int, help=f"how many; else {TRIALS}")
    return run_command(overhead, parser.parse_args(argv), TABLE_WIDTH)


def overhead(arguments: argparse.Namespace, console: Console) -> dict[str, object]:
    """Run the search and take its figures apart."""
    trials = arguments.trials or (QUICK_TRIALS if arguments.quick else TRIALS)
    began_s = time.monotonic()
    looks = run_search(trials, QUICK_DRAFTS if arguments.quick else DRAFTS)
    found = figures(looks)
    table = Table("per trial", "ms", title=f"{len(looks)} trials")
    for name, value in found["ms_per_trial"].items():  # type: ignore[attr-defined]
        table.add_row(name, f"{value:.2f}")
    console.print(table)
    return {**found, "quick": arguments.quick, "seconds": round(time.monotonic() - began_s, 1)}


def run_search(trials: int, drafts: int) -> list[dict[str, float]]:
    """What the driver saw at the end of each trial."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project = DrillProject(folder)
        lookups = [f"{{name: n{one}, method: ngram, prompt_lookup_max: {one}}}" for one in range(1, drafts + 1)]
        (folder / "space.yaml").write_text(
            f"name: drill\ndescription: n-grams\nengine: drill\ndrafts: [{', '.join(lookups)}]\n"
            f"num_speculative_tokens: {{min: 1, max: {DEEPEST}}}\n"
        )
        project.write_hardware(needs_compile=0)
        options = {
            **{part: f"{part}.yaml" for part in ("workload", "space", "hardware")},
            "target": "target",
            "sampler": "random",
            "max_trials": trials + 1,
            "storage": project.url,
        }
        done = subprocess.run(
            [sys.executable, str(Path(__file__).parent / "harness" / "counted_search.py"), json.dumps(options)],
            cwd=folder,
            env={"RAY_AUTH_MODE": "disabled", **project.environment(needs_compile=0)},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise DispatchError(f"the search ended with exit code {done.returncode}: {done.stderr[-2000:]}")
    looks: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return looks[1:]  # the first is the baseline's


def figures(looks: Sequence[Mapping[str, float]]) -> dict[str, object]:
    """Differences over the looks, by trial."""
    first, last, count = looks[0], looks[-1], len(looks) - 1
    spent = {name: 1000 * (value - first.get(name, 0.0)) / count for name, value in last.items() if name != "rss_bytes"}
    total = spent.pop("thread")
    own = total - sum(spent.get(name, 0.0) for name in OTHERS)
    warm = looks[int(WARM_UP * len(looks)) :]
    slope, _ = np.polyfit(np.arange(len(warm)), [look["rss_bytes"] / 1024 for look in warm], 1)
    return {
        "own_over_optuna": round(own / spent["optuna"], 3),
        "memory_slope_kib_per_trial": round(float(slope), 2),
        "trials": len(looks),
        "ms_per_trial": {"own": round(own, 3), **{name: round(value, 3) for name, value in sorted(spent.items())}},
        "rss_mib": round(last["rss_bytes"] / 2**20, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
