"""One search through Ray whose driver counts its own processor time and memory; prints one JSON object.

    python counted_search.py OPTIONS

OPTIONS is a JSON object of ``tuner.SearchOptions``. Counted is the main thread, between the end of the first trial and
the end of the last: what Optuna and Ray take is kept apart.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psutil

OPTUNA_ASKING = ("ask", "tell")
OPTUNA_REST = ("get_trials", "enqueue_trial", "add_trial", "set_user_attr", "set_metric_names")
RAY_CALLS = ("get", "wait", "get_actor", "kill", "nodes", "put", "cancel")


class Ledger:
    """Seconds of this thread by whose they are; a call within another's belongs to the outer one."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._is_within = False

    def count(self, owner: str, holder: Any, name: str) -> None:
        """Time a function of a class or module from now on."""
        call: Callable[..., Any] = getattr(holder, name)

        @functools.wraps(call)
        def counted(*arguments: Any, **named: Any) -> Any:
            if self._is_within:
                return call(*arguments, **named)
            self._is_within, began_s = True, time.thread_time()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds[owner] += time.thread_time() - began_s
                self._is_within = False

        setattr(holder, name, counted)


def counting() -> Ledger:
    """Have everything of Optuna's and Ray's timed that a driver calls, and apart what of our own is arithmetic."""
    import optuna
    import ray
    import ray.actor
    import ray.util.state

    import tuner.driver
    from tuner_storage.store import SqlTrialStore

    ledger = Ledger()
    for name in OPTUNA_ASKING:
        ledger.count("optuna", optuna.Study, name)
    for name in ("suggest_categorical", "suggest_int"):
        ledger.count("optuna", optuna.Trial, name)
    for name in OPTUNA_REST:
        ledger.count("optuna_rest", optuna.Study, name)
    for name in ("set_trial_user_attr", "set_trial_system_attr"):
        ledger.count("optuna_rest", optuna.storages._CachedStorage, name)
        ledger.count("optuna_rest", optuna.storages.RDBStorage, name)
    for name in RAY_CALLS:
        ledger.count("ray", ray, name)
    for holder in (ray.actor.ActorClass, ray.actor.ActorMethod):
        ledger.count("ray", holder, "_remote")
    ledger.count("sql", SqlTrialStore, "_read")
    ledger.count("sql", SqlTrialStore, "_write")
    ledger.count("arithmetic", tuner.driver.TrialOutcome, "of_candidate")
    ledger.count("arithmetic", tuner.driver, "sharpened")
    return ledger


def main(options: str) -> int:
    """Run the search to its end; the exit code."""
    from tuner.api import run_search
    from tuner.errors import TunerError
    from tuner.observer import SilentObserver
    from tuner.search_options import SearchOptions

    ledger, process = counting(), psutil.Process()
    looks: list[dict[str, float]] = []

    class Counting(SilentObserver):
        """Looks at the clock and the memory when a trial has ended."""

        def trial_ended(self, trial: Any) -> None:  # noqa: ARG002
            looks.append({"thread": time.thread_time(), "rss_bytes": process.memory_info().rss, **dict(ledger.seconds)})

    try:
        run_search(SearchOptions(**json.loads(options)), Counting())
    except TunerError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    print(json.dumps(looks))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
