"""Searches that are killed at random moments, and what is counted afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from rich.console import Console

from tests.support.drill_projects import DrillProject, stage_of
from tests.support.drills import leftovers, read_journal
from tests.support.standing_ray import standing_ray
from tuner.stages import MAX_ATTEMPTS
from tuner.store import StageRecord, StageState, TrialRecord, TrialState
from tuner_storage import open_store

DRIVER, WORKER, STAGE = "driver", "worker", "stage"
VICTIMS = (DRIVER,) * 6 + (WORKER,) * 2 + (STAGE,) * 2
COMPILE_S, REQUEST_S = 2.0, 0.4
"""A hundredth or so of real ones, in their proportion: a measurement sends four prompts."""

LATEST_KILL_S = 8.0
"""After the search was seen going on."""

EARLY_SHARE, LATEST_EARLY_KILL_S = 0.2, 6.0
"""So many kills hit a driver while it imports, joins Ray, or reads what there is: so long after its start."""

STAGE_WAIT_S = 10.0
"""For a stage to run that is to be killed."""

SETTLE_S = 30.0
"""For processes to be gone after everything has ended."""

Finished = dict[tuple[str, ...], StageRecord | TrialRecord]


@dataclass(slots=True)
class Tally:
    """What happened so far.

    Attributes:
        hit: Kills of each stage's own processes.
        pending: Kills after which no search was seen going on yet.
    """

    kills: Counter[str] = field(default_factory=Counter)
    hit: Counter[str] = field(default_factory=Counter)
    pending: int = 0
    resumed: int = 0
    failed: list[str] = field(default_factory=list)
    resume_s: list[float] = field(default_factory=list)


class KillDrill:
    """Studies one after the other, until there were so many kills."""

    def __init__(self, *, kills: int, seed: int, is_local: bool, is_short: bool, console: Console) -> None:
        self._kills = kills
        self._random = random.Random(seed)  # noqa: S311 - moments and victims
        self._is_local = is_local
        self._trials = 4 if is_short else 17
        self._console = console
        self._tally = Tally()
        self._finished: Finished = {}
        self._num_studies = 1

    def run(self) -> dict[str, object]:
        """Run the drill and count what it left."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")
            self._project = DrillProject(folder, deepest=self._trials - 1, trials=self._trials)
            self._project.write_hardware(compile_s=COMPILE_S, request_s=REQUEST_S)
            self._marks = folder / "marks"
            address = None if self._is_local else stack.enter_context(standing_ray(os.cpu_count() or 2)).address
            while sum(self._tally.kills.values()) < self._kills:
                self._run_until_killed(address)
            self._run_to_the_end(address)
            return self._counted()

    # ── running and killing ───────────────────────────────────────────────────────────────────────────────────────

    def _start(self, address: str | None) -> subprocess.Popen[bytes]:
        options = {
            "workload": "workload.yaml",
            "space": "space.yaml",
            "target": "target",
            "hardware": "hardware.yaml",
            "sampler": "grid",
            "max_trials": self._trials,
            "name": self._study,
            "storage": self._project.url,
            "ray_address": address,
        }
        program = str(Path(__file__).with_name("drilled_search.py"))
        return subprocess.Popen(
            [sys.executable, program, json.dumps(options), str(self._marks)],
            cwd=self._project.folder,
            env=self._project.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    @property
    def _study(self) -> str:
        return f"study-{self._num_studies}"

    def _run_until_killed(self, address: str | None) -> None:
        """Start the search, or go on with it, until its driver is killed or it has ended."""
        with self._start(address) as driver:
            is_early = self._random.random() < EARLY_SHARE
            while sum(self._tally.kills.values()) < self._kills:
                if not is_early:
                    self._wait(driver, STAGE_WAIT_S * 6, lambda: "resumed" in self._marks_of(driver.pid))
                self._wait(driver, self._random.uniform(0.0, LATEST_EARLY_KILL_S if is_early else LATEST_KILL_S))
                if driver.poll() is not None:
                    self._note_end(driver)
                    return
                victim = DRIVER if is_early or self._is_local else self._random.choice(VICTIMS)
                if self._kill(victim, driver):
                    break
            driver.kill()
            driver.wait()
        self._note_resumption(driver.pid)
        self._keep_finished()
        if self._is_local:
            self._wait_until_nothing_is_left()

    @staticmethod
    def _wait(driver: subprocess.Popen[bytes], seconds: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Wait so long, but no longer than the driver lives, or until it is over."""
        deadline_s = time.monotonic() + seconds
        while driver.poll() is None and time.monotonic() < deadline_s and not is_over():
            time.sleep(0.05)

    def _run_to_the_end(self, address: str | None) -> None:
        with self._start(address) as driver:
            driver.wait()
            self._note_end(driver)

    def _kill(self, victim: str, driver: subprocess.Popen[bytes]) -> bool:
        """Kill one; whether it was the driver."""
        if victim is DRIVER:
            driver.kill()
            self._note_kill(DRIVER)
            return True
        self._wait(driver, STAGE_WAIT_S, lambda: bool(self._stage_processes()))
        stages = self._stage_processes()
        if not stages:
            return False
        process, stage = self._random.choice(stages)
        with contextlib.suppress(psutil.NoSuchProcess):
            target = _worker_above(process) if victim is WORKER else process
            if target is not None:
                target.kill()
                self._tally.hit[stage] += 1
                self._note_kill(victim)
        return False

    def _note_kill(self, victim: str) -> None:
        self._tally.kills[victim] += 1
        self._tally.pending += 1
        total = sum(self._tally.kills.values())
        if total % 10 == 0:
            self._console.print(f"{total} kills, {self._study}")

    def _stage_processes(self) -> list[tuple[psutil.Process, str]]:
        """Processes that are at a stage, with the stage; none that would be given up when it is killed once more."""
        running = []
        for line in read_journal(self._project.journal, "compile", "load"):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(line.pid)
                is_its_own = process.environ().get("TUNER_STAGE") == line.stage
                if is_its_own and self._tally.hit[stage_of(line)] < MAX_ATTEMPTS - 1:
                    running.append((process, stage_of(line)))
        return running

    def _note_resumption(self, pid: int) -> None:
        """Take what was killed before this driver as resumed, if this driver was seen going on."""
        marks = self._marks_of(pid)
        if {"connected", "resumed"} <= marks.keys():
            self._tally.resume_s.append(marks["resumed"] - marks["connected"])
        if {"resumed", "ended"} & marks.keys():
            its_own = 0 if "ended" in marks else 1
            self._tally.resumed += self._tally.pending - its_own
            self._tally.pending = its_own

    def _note_end(self, driver: subprocess.Popen[bytes]) -> None:
        if driver.returncode != 0:
            errors = driver.stderr.read().decode()[-2000:] if driver.stderr is not None else ""
            self._tally.failed.append(f"exit code {driver.returncode}: {errors}")
            self._console.print(self._tally.failed[-1])
        self._note_resumption(driver.pid)
        self._keep_finished()
        self._num_studies += 1

    def _marks_of(self, pid: int) -> dict[str, float]:
        lines = self._marks.read_text().splitlines() if self._marks.exists() else []
        return {name: float(at) for name, at, marked in map(str.split, lines) if int(marked) == pid}

    # ── counting ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _rows(self) -> Finished:
        store = open_store(self._project.url)
        try:
            rows: Finished = {}
            for study in store.studies():
                for stage in store.stages(study.name):
                    if stage.state is StageState.DONE:
                        rows[study.name, stage.kind, stage.key] = stage
                for trial in store.trials(study.name):
                    if trial.state is not TrialState.RUNNING:
                        rows[study.name, str(trial.number)] = trial
            return rows
        finally:
            store.close()

    def _keep_finished(self) -> None:
        for key, row in self._rows().items():
            self._finished.setdefault(key, row)

    def _wait_until_nothing_is_left(self) -> None:
        deadline_s = time.monotonic() + SETTLE_S
        while leftovers(DRILL_JOURNAL=str(self._project.journal)) and time.monotonic() < deadline_s:
            time.sleep(0.2)

    def _counted(self) -> dict[str, object]:
        self._wait_until_nothing_is_left()
        now = self._rows()
        lost = [key for key, row in self._finished.items() if now.get(key) != row]
        twice = {
            stage: len(pids) - 1 - self._tally.hit[stage]
            for stage, pids in self._project.starts().items()
            if len(pids) - 1 > self._tally.hit[stage]
        }
        orphans = leftovers(DRILL_JOURNAL=str(self._project.journal))
        unfinished = [row for row in self._all_trials() if row.state is not TrialState.COMPLETE]
        return {
            "kills": sum(self._tally.kills.values()),
            "kills_by_victim": dict(self._tally.kills),
            "resumed": self._tally.resumed,
            "failed_drivers": len(self._tally.failed),
            "stages_run_twice": 0 if self._is_local else sum(twice.values()),
            "rows_lost": len(lost),
            "orphans": len(orphans),
            "trials_not_complete": len(unfinished),
            "studies": self._num_studies - 1,
            "trials": len(self._all_trials()),
            "stages": len(self._project.starts()),
            "resume_s_median": round(statistics.median(self._tally.resume_s), 2),
            "resume_s_max": round(max(self._tally.resume_s), 2),
        }

    def _all_trials(self) -> list[TrialRecord]:
        store = open_store(self._project.url)
        try:
            return [trial for study in store.studies() for trial in store.trials(study.name)]
        finally:
            store.close()


def _worker_above(process: psutil.Process) -> psutil.Process | None:
    """The Ray worker that owns a stage's process."""
    return next((one for one in process.parents() if "StageActor" in " ".join(one.cmdline())), None)
