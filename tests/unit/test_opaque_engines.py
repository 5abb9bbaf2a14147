"""Searches of engines that can neither replay their drafts nor time single steps, as those of third parties."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.support import simulated_studies
from tests.support.simulated import OpaqueEngine, SimulatedEngine, Simulation, World
from tuner.decide import Verdict
from tuner.dispatch import InlineDispatcher
from tuner.driver import PredictedStudy, Search, SearchResult
from tuner.engines.base import Capabilities
from tuner.errors import EngineNotInstalledError
from tuner.observer import SilentObserver
from tuner.plan import Compiling, SearchPlan
from tuner.records import Sampling, TargetOutput, Trace
from tuner.search_space import Draft, DraftTokens, SearchSpace
from tuner.speculation import EngineConfig, Method, Speculation
from tuner.store import TrialState
from tuner.stored import read_study
from tuner.study import TrialLedger
from tuner.testing.memory_store import MemoryStore
from tuner.transfer import INEXACT_SHARE, LEAST_DOUBT

SPACE = SearchSpace(
    name="two-drafts",
    description="A good draft of one layer, and a bad one.",
    engine="opaque",
    drafts=(
        Draft(name="good", method=Method.DRAFT_MODEL, model="good"),
        Draft(name="bad", method=Method.DRAFT_MODEL, model="bad"),
    ),
    num_speculative_tokens=DraftTokens(min=1, max=8),
)

CONFIG = {
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}


class Listener(SilentObserver):
    """Keeps the notices."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)


class Bench:
    """A store, a world, and folders of models that hold no more than their sizes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MemoryStore()
        self.world = World(hit_rates={"good": 0.8, "bad": 0.05}, draft_ms={"good": 1.0, "bad": 1.0})
        self.heard = Listener()
        for name, layers in (("target", 32), ("good", 1), ("bad", 1)):
            (folder / name).mkdir()
            (folder / name / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}))

    def plan(self, **changes: Any) -> SearchPlan:
        names = ("target", "good", "bad")
        settings = {
            "name": "study",
            "target_model": str(self.folder / "target"),
            "draft_folders": {name: str(self.folder / name) for name in names[1:]},
            "fingerprints": dict(zip(names, "012", strict=True)),
            "space": SPACE,
        }
        return simulated_studies.a_plan("numbers", **{**settings, **changes})

    def search(self, plan: SearchPlan) -> Search:
        ledger = TrialLedger.open(optuna.storages.InMemoryStorage(), plan.name, plan.space, plan.objectives)
        return Search(plan, self.store, ledger, InlineDispatcher(), self.heard)

    def run(self, **changes: Any) -> SearchResult:
        return self.search(self.plan(**changes)).run()

    def predict(self, **changes: Any) -> PredictedStudy:
        return self.search(self.plan(**changes)).predict()

    def pass_of_the_model(self, outputs: Sequence[TargetOutput], *, draft_name: str, **_options: Any) -> Trace:
        """What a pass of the draft's model would find: the world's own hits."""
        drafting = Speculation(method=Method.DRAFT_MODEL, draft_name=draft_name, drafted_tokens=64)
        return Simulation(self.world, EngineConfig(target_model="target", speculation=drafting)).trace(outputs)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path)
    monkeypatch.setattr("tuner.trial.load_engine", lambda _name: OpaqueEngine(bench.world))
    monkeypatch.setattr("tuner.transfer.trace_with_model", bench.pass_of_the_model)
    return bench


def widths(study: PredictedStudy) -> dict[tuple[str, int], float]:
    """Upper over lower limit of each predicted gain."""
    return {key: one.speedup_high / one.speedup_low for key, one in study.predictions.by_configuration.items()}


def test_the_search_comes_to_the_right_verdict_in_few_trials(bench: Bench) -> None:
    result = bench.run()
    assert result.decision.verdict is Verdict.RECOMMEND
    assert result.recommended is not None
    assert result.recommended.speculation.draft_name == "good"
    assert result.recommended.speculation.drafted_tokens in range(4, 9)
    assert len(result.trials) <= 4


def test_no_engine_is_loaded_to_trace(bench: Bench) -> None:
    bench.predict()
    assert bench.world.loads == ["no speculation"]


def test_the_predictions_hold_the_truth_and_are_wider_than_those_of_an_engine_that_replays(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    guessed = bench.predict()
    monkeypatch.setattr("tuner.trial.load_engine", lambda _name: SimulatedEngine(bench.world))
    timed = bench.predict(name="timed")
    assert list(guessed.predictions.by_configuration) == list(timed.predictions.by_configuration)
    for key, truth in timed.predictions.by_configuration.items():
        found = guessed.predictions.by_configuration[key]
        assert found.speedup_low < truth.speedup < found.speedup_high, key
        assert found.mean_acceptance_length == pytest.approx(truth.mean_acceptance_length)
        assert math.log(widths(guessed)[key]) > 1.5 * math.log(widths(timed)[key])


def test_a_measured_configuration_narrows_the_predictions_of_all(bench: Bench) -> None:
    before = widths(bench.predict())
    bench.run()
    after = {key: one.speedup_high / one.speedup_low for key, one in _predictions(bench).items()}
    for key in before:
        assert math.log(after[key]) < math.log(before[key])
    assert min(math.log(after[key]) / math.log(before[key]) for key in before) < 0.6


def _predictions(bench: Bench) -> dict[Any, Any]:
    return dict(read_study(bench.store, "study").predictions.by_configuration)


def test_a_stored_study_predicts_without_the_models_folders(bench: Bench) -> None:
    found = bench.predict()
    for file in bench.folder.glob("*/config.json"):
        file.unlink()
    stored = read_study(bench.store, "study")
    assert widths(replace(found, predictions=stored.predictions)) == widths(found)


def test_the_engines_wasted_passes_are_predicted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    before = bench.predict().predictions
    wasteful: Capabilities = replace(OpaqueEngine.capabilities, wasted_draft_passes=1)
    monkeypatch.setattr(OpaqueEngine, "capabilities", wasteful)
    after = bench.predict(name="wasteful").predictions
    assert after.costs is not None
    assert after.costs.wasted_draft_passes == 1
    assert after.by_configuration["good", 1].speedup < before.by_configuration["good", 1].speedup


# ── transferred traces ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_trace_is_kept_under_the_numerics_that_made_it(bench: Bench) -> None:
    bench.predict()
    assert [one.header["key"]["numerics"]["engine"] for one in bench.store.traces()] == ["model pass"] * 2
    assert any(
        "good: engine 'opaque' cannot replay it, so it is traced by a model pass" in one for one in bench.heard.notices
    )
    assert [one.doubtful_share for one in read_study(bench.store, "study").traces] == [LEAST_DOUBT] * 2


def test_near_ties_widen_the_limits(bench: Bench) -> None:
    sure = widths(bench.predict())
    bench.world.top2_gap = 0.01  # every choice of the target is closer than half precision tells
    bench.store = MemoryStore()
    unsure = widths(bench.predict())
    assert all(unsure[key] > sure[key] for key in sure)


def test_a_second_study_makes_no_pass_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.predict()

    def fail(*_arguments: Any, **_options: Any) -> Trace:
        raise AssertionError

    monkeypatch.setattr("tuner.transfer.trace_with_model", fail)
    second = bench.predict(name="second", seed=3)
    assert widths(second) == pytest.approx(widths(first))
    assert any("good: predicted with wider limits from acceptance trace" in one for one in bench.heard.notices)


def test_a_trace_of_another_engine_serves_drafts_that_cannot_be_traced_here(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = Draft(name="good", method=Method.EAGLE, model="good")
    space = SPACE.model_copy(update={"drafts": (head,)})
    with monkeypatch.context() as patch:
        patch.setattr("tuner.trial.load_engine", lambda _name: SimulatedEngine(bench.world))
        elsewhere = bench.predict(name="elsewhere", space=space.model_copy(update={"engine": "simulated"}))
    here = bench.predict(space=space)
    assert any("which 'simulated' made" in one for one in bench.heard.notices)
    assert len(bench.store.traces()) == 1
    assert list(here.predictions.by_configuration) == list(elsewhere.predictions.by_configuration)
    assert all(widths(here)[key] > widths(elsewhere)[key] for key in widths(here))


def test_rounds_that_differ_from_a_transferred_trace_are_no_alarm(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OtherNumerics(World):
        """The pass takes the other of two near tokens at one position of one prompt."""

        def hits(self, draft: str, prompt_id: str, length: int) -> Any:
            found = super().hits(draft, prompt_id, length)
            found[7] ^= prompt_id == "numbers-0"
            return found

    def slightly_wrong(outputs: Sequence[TargetOutput], **options: Any) -> Trace:
        other = OtherNumerics(hit_rates=bench.world.hit_rates, draft_ms=bench.world.draft_ms)
        with monkeypatch.context() as patch:
            patch.setattr(bench, "world", other)
            return bench.pass_of_the_model(outputs, **options)

    monkeypatch.setattr("tuner.transfer.trace_with_model", slightly_wrong)
    assert not [one for one in bench.run().decision.notes if "took other rounds" in one]
    monkeypatch.setattr("tuner.reuse.doubtful_share", lambda *_arguments: 0.0)
    bench.store = MemoryStore()
    assert [one for one in bench.run().decision.notes if "took other rounds" in one]  # as of an engine that replays


@pytest.mark.parametrize(("method", "words"), [(Method.EAGLE, "only its roll-outs"), (Method.NGRAM, "tokenizer.json")])
def test_drafts_that_cannot_be_traced_are_explored_without_predictions(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, method: Method, words: str
) -> None:
    monkeypatch.setattr(OpaqueEngine, "capabilities", replace(OpaqueEngine.capabilities, needs_compile=True))
    model = "bad" if method is Method.EAGLE else None
    drafts = (SPACE.drafts[0], Draft(name="bad", method=method, model=model))
    compiling = Compiling(key_of=lambda config: config.key, loads_at_once=1)
    space = SPACE.model_copy(update={"drafts": drafts})
    result = bench.predict(space=space, compiling=compiling, cache_dir=str(bench.folder))
    assert {name for name, _ in result.predictions.by_configuration} == {"good"}
    (notice,) = [one for one in bench.heard.notices if "without predictions" in one]
    assert words in notice


# ── logged runs ───────────────────────────────────────────────────────────────────────────────────────────────────

HEAD = SPACE.model_copy(update={"drafts": (Draft(name="good", method=Method.EAGLE, model="good"),)})
SHALLOWER = HEAD.model_copy(update={"num_speculative_tokens": DraftTokens(min=1, max=4)})


def test_a_head_is_run_once_at_the_largest_k_and_its_log_bounds_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = bench.predict(space=HEAD)
    assert bench.world.loads == ["no speculation", "good k=8"]
    assert any("so it is traced by a run at k=8" in one for one in bench.heard.notices)
    assert [(one.header["kind"], one.header["key"]["source"]) for one in bench.store.traces()] == [("logged", "log")]
    monkeypatch.setattr("tuner.trial.load_engine", lambda _name: SimulatedEngine(bench.world))
    truth = bench.predict(name="truth", space=HEAD.model_copy(update={"engine": "simulated"}))
    assert list(found.predictions.by_configuration) == list(truth.predictions.by_configuration)
    for key, one in truth.predictions.by_configuration.items():
        bounded = found.predictions.by_configuration[key]
        assert bounded.speedup_low < one.speedup < bounded.speedup_high, key
        assert bounded.mean_acceptance_length == pytest.approx(one.mean_acceptance_length, rel=0.15)


def test_a_search_of_a_head_comes_to_its_verdict_in_few_trials(bench: Bench) -> None:
    result = bench.run(space=HEAD)
    assert result.decision.verdict is Verdict.RECOMMEND
    assert len(result.trials) <= 5


def test_the_log_of_another_k_is_not_taken_for_this_one(bench: Bench) -> None:
    bench.predict(space=HEAD)
    bench.world.loads.clear()
    bench.predict(name="shallower", space=SHALLOWER)
    assert bench.world.loads == ["no speculation", "good k=4"]
    bench.world.loads.clear()
    bench.predict(name="same", seed=5, space=SHALLOWER)
    assert bench.world.loads == ["no speculation"]


def test_the_first_study_keeps_its_own_log(bench: Bench) -> None:
    first = bench.predict(space=HEAD)
    bench.predict(name="shallower", space=SHALLOWER)
    again = read_study(bench.store, "study").predictions.by_configuration
    assert {key: one.speedup for key, one in again.items()} == {
        key: one.speedup for key, one in first.predictions.by_configuration.items()
    }


def test_a_head_of_a_sampled_workload_has_no_log(bench: Bench) -> None:
    plan = bench.plan(space=HEAD)
    sampled = plan.workload.model_copy(update={"sampling": Sampling(temperature=0.7)})
    result = bench.search(replace(plan, workload=sampled)).predict()
    assert not result.predictions.by_configuration
    assert any("tells nothing of sampled outputs" in one for one in bench.heard.notices)


def test_without_the_packages_of_a_pass_the_search_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_arguments: Any, **_options: Any) -> Trace:
        raise EngineNotInstalledError("replaying needs torch", "pip install 'specdec-tuner[replay]'")

    monkeypatch.setattr("tuner.transfer.trace_with_model", absent)
    result = bench.run()
    assert not result.predictions.by_configuration
    assert len([one for one in result.trials if one.state is TrialState.COMPLETE]) > 1
    assert sum("explored without predictions: replaying needs torch" in one for one in bench.heard.notices) == 2


# ── replay that its engine calls inexact ──────────────────────────────────────────────────────────────────────────


def test_inexact_replay_predicts_with_wider_limits_and_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.trial.load_engine", lambda _name: SimulatedEngine(bench.world))
    exact = bench.predict(name="exact")
    inexact = bench.predict(name="inexact", replay_is_exact=False)
    length = exact.predictions.by_configuration["good", 4].mean_acceptance_length
    assert length is not None
    for (key, narrow), wide in zip(widths(exact).items(), widths(inexact).values(), strict=True):
        assert wide > narrow, key
    assert widths(inexact)["good", 4] > 1 + INEXACT_SHARE * length
    assert [one.doubtful_share for one in read_study(bench.store, "inexact").traces] == [INEXACT_SHARE] * 2
    assert any("replay does not give this engine's own rounds" in one for one in bench.heard.notices)
