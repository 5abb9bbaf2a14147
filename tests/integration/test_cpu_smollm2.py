"""The shipped drafts on their real target: answers do not change, and replay knows every round."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.engines.base import Replayable
from tuner.engines.cpu.engine import CpuEngine
from tuner.models.resolve import resolve_model
from tuner.records import Message, Prompt
from tuner.replay import replay
from tuner.settings import DEFAULT_TARGET, read_settings
from tuner.speculation import NO_SPECULATION, EngineConfig, Method, Speculation
from tuner.testing.answers import Answer, answers, arrivals, assert_same_outputs, target_output
from tuner.testing.engines import load

pytestmark = [pytest.mark.slow, pytest.mark.model]

MAX_OUTPUT_TOKENS = 40
QUESTIONS = (
    "Count from one to ten in words.",
    "Write a Python function that returns the factorial of n.",
    "Repeat this sentence three times: The quick brown fox jumps over the lazy dog.",
)
PROMPTS = tuple(
    Prompt(prompt_id=text, prompt_class="c", messages=(Message(role="user", content=text),)) for text in QUESTIONS
)


@pytest.fixture(scope="module")
def config() -> EngineConfig:
    return EngineConfig(target_model=str(resolve_model(DEFAULT_TARGET, settings=read_settings())))


@pytest.fixture(scope="module")
def artifact_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("artifacts"))


@pytest.fixture(scope="module")
def alone(config: EngineConfig, artifact_dir: str) -> dict[str, Answer]:
    with load(CpuEngine(), config, NO_SPECULATION, artifact_dir) as loaded:
        return answers(loaded.run(arrivals(PROMPTS, max_output_tokens=MAX_OUTPUT_TOKENS)))


def shipped(name: str, method: Method) -> Speculation:
    folder: Path = resolve_model(f"smollm2-135m-{name}", settings=read_settings())
    return Speculation(method=method, draft_name=name, draft_model=str(folder), drafted_tokens=4)


@pytest.mark.parametrize("name", ["ngram", "suffix", "eagle", "shallow"])
def test_a_shipped_draft_changes_no_answer_and_is_replayed_exactly(
    config: EngineConfig, alone: dict[str, Answer], artifact_dir: str, name: str
) -> None:
    draft = {
        "ngram": lambda: Speculation(method=Method.NGRAM, draft_name="ngram", drafted_tokens=4),
        "suffix": lambda: Speculation(method=Method.SUFFIX, draft_name="suffix", drafted_tokens=4),
        "eagle": lambda: shipped("eagle", Method.EAGLE),
        "shallow": lambda: shipped("shallow", Method.DRAFT_MODEL),
    }[name]()
    with load(CpuEngine(), config, draft, artifact_dir) as loaded:
        assert isinstance(loaded, Replayable)
        found = answers(loaded.run(arrivals(PROMPTS, max_output_tokens=MAX_OUTPUT_TOKENS)))
        trace = loaded.trace([target_output(prompt, alone, MAX_OUTPUT_TOKENS) for prompt in PROMPTS])

    assert_same_outputs(found, alone, name)
    replayed = replay(trace, 4)
    assert replayed.rounds.tolist() == [found[prompt.prompt_id].finished.rounds for prompt in PROMPTS]
    assert replayed.accepted.tolist() == [found[prompt.prompt_id].finished.accepted_tokens for prompt in PROMPTS]
    assert replayed.accepted.sum() > 0
