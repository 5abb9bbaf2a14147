"""What a search says on stderr while it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.study_results import BASELINE, BROKEN, EAGLE, GOOD
from tuner.cli.progress import observing, trial_words
from tuner.records import GREEDY, Prompt, StageKind, TargetOutput
from tuner.speculation import NO_SPECULATION, EngineConfig, Speculation
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
        cache_dir="",
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
            observer.stage_began(task)(1, 2)
            observer.stage_ended(task)
        observer.trial_ended(GOOD)
        observer.notice("every configuration of the space was tried")
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.splitlines() == [
        "measuring no speculation: 2 prompts",
        "replaying eagle along the outputs: 1 prompts",
        "timing eagle",
        "measuring eagle k=3: 2 prompts",
        "certifying eagle k=3: 2 prompts",
        "trial 1, eagle k=3: 20.1 ms per output token, 1.15 times the speed of no speculation",
        "note: every configuration of the space was tried",
    ]


def test_the_line_of_a_trial_says_what_became_of_it() -> None:
    assert trial_words(BASELINE) == "trial 0, no speculation: 23.4 ms per output token"
    assert trial_words(BROKEN) == "trial 2, shallow k=12: cannot run: 2.0 GiB needed, 1.0 GiB free on cpu"
    assert trial_words(replace(BROKEN, state=TrialState.LOST)) == "trial 2, shallow k=12: lost"
