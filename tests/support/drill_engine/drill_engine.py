"""An engine for processes that are not the test's: its times are scripted, and so is what goes wrong.

Its folder on PYTHONPATH makes it the engine ``drill``. Everything is told by the environment:

    DRILL_FAULTS      what happens where, e.g. "compile:3=fail,run:*=segfault"; see ``FAULTS``. Places are compile, load
                      and run, with the number of drafted tokens or *
    DRILL_COMPILE_S, DRILL_LOAD_S, DRILL_REQUEST_S
                      real seconds of a compile, of a load and of each request; 0 by default
    DRILL_NEEDS_COMPILE
                      1 by default; with 0 it loads without artifacts
    DRILL_SDK         part of the compile key, as a compiler's version would be
    DRILL_JOURNAL     a file that gets a line of JSON at the beginning and the end of each compile and load
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from tuner.engines.base import Artifact, Capabilities
from tuner.errors import CompileError, EngineError
from tuner.records import Arrival, Event, Finished
from tuner.speculation import EngineConfig, Method, content_key
from tuner.testing.fakes import FakeClock, FakeEngine, LoadedFakeEngine

ACCEPTED_TOKENS = (3, 1, 2, 3, 0, 2)
ROUND_S = 0.125
DRAFT_S = 0.03125


class DrillEngine:
    """Compiles a small file, and loads a fake whose rounds cost the same however much they draft."""

    name: ClassVar[str] = "drill"
    capabilities: ClassVar[Capabilities] = Capabilities(
        methods=frozenset(Method),
        max_num_seqs=8,
        max_drafted_tokens=16,
        needs_compile=os.environ.get("DRILL_NEEDS_COMPILE", "1") == "1",
        gives_token_ids=True,
        loads_at_once=1,
    )

    def check(self, config: EngineConfig) -> None:
        pass

    def replay_is_exact(self, config: EngineConfig) -> bool:
        return False

    def compile_key(self, config: EngineConfig) -> str:
        return content_key({"engine": self.name, "config": config.key, "sdk": os.environ.get("DRILL_SDK", "1")})

    def compile(self, config: EngineConfig, folder: Path) -> None:
        key = self.compile_key(config)
        note("compile", key, config)
        time.sleep(seconds("COMPILE"))
        go_wrong("compile", config)
        (folder / "model.neff").write_text(key)
        note("compiled", key, config)

    def load(self, config: EngineConfig, artifact: Artifact) -> LoadedDrillEngine:
        key = self.compile_key(config)
        if artifact.path is not None and (artifact.path / "model.neff").read_text() != key:
            raise EngineError(f"artifact {artifact.path} is not that of {config.speculation.label}")
        note("load", key, config)
        time.sleep(seconds("LOAD"))
        go_wrong("load", config)
        return LoadedDrillEngine(config, key)


class LoadedDrillEngine(LoadedFakeEngine):
    """The fake, with real seconds for each request."""

    def __init__(self, config: EngineConfig, key: str) -> None:
        fake = FakeEngine(accepts=ACCEPTED_TOKENS, round_s=ROUND_S, draft_s=DRAFT_S, clock=FakeClock())
        if config.speculation.is_baseline:
            fake = replace(fake, round_s=ROUND_S - DRAFT_S, draft_s=0.0)
        super().__init__(fake, config)
        self._config, self._key, self._is_closed = config, key, False

    def run(self, arrivals: Iterable[Arrival], concurrency: int | None = None) -> Iterator[Event]:
        for event in super().run(arrivals, concurrency):
            if isinstance(event, Finished):
                time.sleep(seconds("REQUEST"))
                go_wrong("run", self._config)
            yield event

    def environment(self) -> dict[str, str]:
        return {"engine": "drill"}

    def close(self) -> None:
        if not self._is_closed:
            note("closed", self._key, self._config)
        self._is_closed = True


def seconds(what: str) -> float:
    return float(os.environ.get(f"DRILL_{what}_S", "0"))


def note(kind: str, key: str, config: EngineConfig) -> None:
    """One whole line at once, so that processes may write side by side."""
    path = os.environ.get("DRILL_JOURNAL")
    if not path:
        return
    line = {
        "kind": kind,
        "key": key,
        "drafted_tokens": config.speculation.drafted_tokens,
        "stage": os.environ.get("TUNER_STAGE", ""),
        "pid": os.getpid(),
        "at_s": time.monotonic(),
    }
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
    finally:
        os.close(descriptor)


def go_wrong(place: str, config: EngineConfig) -> None:
    """What DRILL_FAULTS says of this place."""
    for said in filter(None, os.environ.get("DRILL_FAULTS", "").split(",")):
        where, _, fault = said.partition("=")
        at, _, drafted_tokens = where.partition(":")
        if at == place and drafted_tokens in {"*", str(config.speculation.drafted_tokens)}:
            FAULTS[fault](config)


def talk(config: EngineConfig) -> None:
    print("the drill says something", flush=True)  # noqa: T201


def fail(config: EngineConfig) -> None:
    raise CompileError(f"{config.speculation.label} does not compile: the drill says so", "try another")


def bug(config: EngineConfig) -> None:
    raise ZeroDivisionError("a bug of the drill")


def hang(config: EngineConfig) -> None:
    time.sleep(3600)


def hang_below(config: EngineConfig) -> None:
    """Hangs in a grandchild, beside one in a session of its own, one that was orphaned, and one deaf to SIGTERM."""
    sleep = "import time; time.sleep(3600)"
    subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True)
    orphan = f"import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleep!r}], start_new_session=True)"
    subprocess.run([sys.executable, "-c", orphan], check=True)
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {sleep}"
    subprocess.Popen([sys.executable, "-c", deaf])
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleep!r}])"
    subprocess.run([sys.executable, "-c", parent], check=False)


def leave_behind(config: EngineConfig) -> None:
    """Goes on, and leaves a process behind."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)


def segfault(config: EngineConfig) -> None:
    print("about to read address 0", flush=True)  # noqa: T201
    ctypes.string_at(0)


def leave(config: EngineConfig) -> None:
    print("the runtime has had enough", flush=True)  # noqa: T201
    os._exit(7)


FAULTS = {
    "talk": talk,
    "fail": fail,
    "bug": bug,
    "hang": hang,
    "hang_below": hang_below,
    "leave_behind": leave_behind,
    "segfault": segfault,
    "exit": leave,
}
