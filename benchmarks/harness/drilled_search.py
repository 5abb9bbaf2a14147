"""One search in a process that will be killed; writes down when it was imported, connected, and going on.

    python drilled_search.py OPTIONS MARKS

OPTIONS is a JSON object of ``tuner.SearchOptions``; to the file MARKS a line ``name seconds`` is added for each mark.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

STARTED_S = time.time()


def main(options: str, marks: str) -> int:
    """Run the search to its end; the exit code."""
    from tuner.api import run_search
    from tuner.errors import TunerError
    from tuner.observer import SilentObserver
    from tuner.ray_dispatch import RayDispatcher
    from tuner.search_options import SearchOptions

    def mark(name: str) -> None:
        with open(marks, "a") as file:  # noqa: PTH123 - appends one line, whatever is killed
            file.write(f"{name} {time.time()} {os.getpid()}\n")

    with open(marks, "a") as file:  # noqa: PTH123
        file.write(f"started {STARTED_S} {os.getpid()}\n")
    mark("imported")

    class Marking(SilentObserver):
        """Hears when the first stage is on its way, found or new."""

        is_going = False

        def stage_began(self, task: Any) -> None:  # noqa: ARG002
            if not self.is_going:
                mark("resumed")
            self.is_going = True

    start = RayDispatcher.start

    def connecting(self: RayDispatcher) -> RayDispatcher:
        started = start(self)
        mark("connected")
        return started

    RayDispatcher.start = connecting  # type: ignore[method-assign]
    try:
        run_search(SearchOptions(**json.loads(options)), Marking())
    except TunerError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    mark("ended")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
