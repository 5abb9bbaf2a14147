"""A Tune run of a predicted study of the simulated engine, whose trials sleep; it goes on where it was interrupted.

Arguments: the folder of the results and of the log, and the seconds that a trial takes.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray import tune

import tuner.trial
from tests.support.bench import Bench, a_plan, a_world
from tests.support.simulated import SimulatedEngine
from tuner.driver import Search
from tuner.objective import parse_objectives
from tuner.ray_tune import PreparedSearch
from tuner.search_space import DraftTokens
from tuner.stored import read_study


def prepared() -> PreparedSearch:
    space = a_plan().space.model_copy(update={"num_speculative_tokens": DraftTokens(min=1, max=2)})
    plan = a_plan(space=space, objectives=parse_objectives(["e2e_ms", "memory"]))
    bench = Bench(a_world())
    tuner.trial.load_engine = lambda _name: SimulatedEngine(bench.world)  # type: ignore[assignment,return-value]
    Search(plan, bench.store, bench.ledger(plan), bench.dispatcher).predict()
    return PreparedSearch.of(plan, read_study(bench.store, plan.name))


def main(folder: Path, trial_s: float) -> None:
    def sleep(config: dict[str, Any]) -> None:
        name = f"{config['draft']} {config['num_speculative_tokens']}"
        with (folder / "log").open("a") as log:
            print("began", name, file=log, flush=True)
            time.sleep(trial_s)
            print("ended", name, file=log, flush=True)
        tune.report({"e2e_ms": 100.0 + config["num_speculative_tokens"], "memory": 1.0})

    searcher, path = prepared().searcher(), str(folder / "run")
    ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level="ERROR")
    if tune.Tuner.can_restore(path):
        run = tune.Tuner.restore(path, trainable=sleep)
    else:
        run = tune.Tuner(
            sleep,
            tune_config=tune.TuneConfig(search_alg=searcher, num_samples=-1, max_concurrent_trials=1),
            run_config=tune.RunConfig(name="run", storage_path=str(folder), callbacks=[searcher.callback()]),
        )
    run.fit()
    searcher.restore_from_dir(path)
    states = [[row.speculation.label, row.state] for row in searcher.trials]
    print(json.dumps(states))  # noqa: T201 - for the test


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
