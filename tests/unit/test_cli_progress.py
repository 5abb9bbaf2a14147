"""What a search says on stderr while it runs."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from tests.support.study_results import BASELINE, BROKEN, EAGLE, GOOD, NGRAM
from tuner.cli.progress import BarObserver, observing, standing_words, trial_words
from tuner.dispatch import StageStatus
from tuner.records import GREEDY, Prompt, StageKind, TargetOutput
from tuner.speculation import NO_SPECULATION, EngineConfig, Speculation
from tuner.stopping import Standing
from tuner.store import TrialState
from tuner.trial import StageTask

PROMPTS = tuple(Prompt(prompt_id=name, prompt_class="any", text="x") for name in ("a", "b"))


def a_task(kind: StageKind, speculation: Speculation = NO_SPECULATION) -> StageTask:
    is_trace = kind is StageKind.TRACE
    return StageTask(
        study_name="s",
        kind=kind,
        key="k",
        engine="cpu",
        config=EngineConfig(target_model="m", speculation=speculation),
        prompts=() if is_trace else PROMPTS,
        max_output_tokens=8,
        sampling=GREEDY,
        concurrency=1,
        outputs=tuple(TargetOutput(prompt=one, token_ids=(1,), max_output_tokens=8) for one in PROMPTS[:1])
        if is_trace
        else (),
    )


def test_without_a_terminal_there_is_a_line_per_stage_trial_and_notice(capsys: pytest.CaptureFixture[str]) -> None:
    with observing() as observer:
        for task in (
            a_task(StageKind.BASELINE),
            a_task(StageKind.TRACE, EAGLE),
            replace(a_task(StageKind.TRACE, EAGLE), outputs=()),
            a_task(StageKind.MEASURE, EAGLE),
            a_task(StageKind.CERTIFY, EAGLE),
        ):
            observer.stage_began(task)
            observer.stage_seen(task, StageStatus(has_started=True, done=1, total=2))
            observer.stage_ended(task, None)
        observer.trial_ended(GOOD)
        observer.standing(Standing(best=EAGLE, best_speedup=1.15, num_open=0))
        observer.notice("every configuration of the space was tried")
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.splitlines() == [
        "measuring no speculation: 2 prompts",
        "replaying eagle along the outputs: 1 prompt",
        "timing eagle",
        "measuring eagle k=3: 2 prompts",
        "certifying eagle k=3: 2 prompts",
        "trial 1, eagle k=3: 20.1 ms per output token, 1.15 times the speed of no speculation (1.18 predicted)",
        "  best so far: eagle k=3, 1.15×; no other is worth a trial",
        "note: every configuration of the space was tried",
    ]


def test_the_line_of_a_trial_says_what_became_of_it() -> None:
    assert trial_words(BASELINE) == "trial 0, no speculation: 23.4 ms per output token"
    assert trial_words(BROKEN) == "trial 2, shallow k=12: cannot run: 2.0 GiB needed, 1.0 GiB free on cpu"
    assert trial_words(replace(BROKEN, state=TrialState.LOST)) == "trial 2, shallow k=12: lost"


def a_standing(**changes: Any) -> Standing:
    promising = {"most_promising": NGRAM, "most_promising_speedup": 1.304, "most_promising_bound": 1.461}
    return Standing(**({"best": EAGLE, "best_speedup": 1.152, "num_open": 3} | promising | changes))


@pytest.mark.parametrize(
    ("standing", "words"),
    [
        (
            a_standing(),
            "best so far: eagle k=3, 1.15×; 3 others could beat it, first ngram k=4: 1.30× expected, 1.46× at most",
        ),
        (
            a_standing(num_open=1),
            "best so far: eagle k=3, 1.15×; 1 other could beat it, first ngram k=4: 1.30× expected, 1.46× at most",
        ),
        (
            a_standing(best=None, best_speedup=1.0, num_unpredicted=6),
            "best so far: no speculation; 3 others could beat it, first ngram k=4: 1.30× expected, 1.46× at most; "
            "6 cannot be predicted",
        ),
        (
            Standing(best=EAGLE, best_speedup=1.152, num_open=0, num_unpredicted=6),
            "best so far: eagle k=3, 1.15×; 6 cannot be predicted",
        ),
        (
            Standing(best=None, best_speedup=1.0, num_open=0),
            "best so far: no speculation; no other is worth a trial",
        ),
    ],
)
def test_the_standing_says_what_is_best_and_what_could_beat_it(standing: Standing, words: str) -> None:
    assert standing_words(standing) == f"  {words}"


def test_in_a_terminal_trials_standings_and_notices_stay_above_the_bars() -> None:
    written = StringIO()
    console = Console(file=written, force_terminal=True, width=160, color_system=None, highlight=False, markup=False)
    with Progress(console=console, transient=True, auto_refresh=False) as bars:
        observer = BarObserver(bars)
        task = a_task(StageKind.MEASURE, EAGLE)
        observer.stage_began(task)
        observer.stage_seen(task, StageStatus(has_started=True, done=1, total=2))
        assert [(bar.description, bar.completed, bar.total) for bar in bars.tasks] == [("measuring eagle k=3", 1, 2)]
        observer.stage_ended(task, None)
        assert bars.tasks == []
        observer.trial_ended(GOOD)
        observer.standing(a_standing())
        observer.notice("[bold] is no markup")
    shown = written.getvalue()
    assert "trial 1, eagle k=3: 20.1 ms per output token" in shown
    assert "3 others could beat it" in shown
    assert "note: [bold] is no markup" in shown
