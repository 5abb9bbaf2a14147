"""What is predicted of every configuration: from a simulated study to sentence, table, JSON and page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import optuna
import pytest
from rich.console import Console

from tests.support.simulated import SimulatedEngine, World
from tests.support.simulated_studies import a_plan
from tests.support.study_results import a_prediction
from tuner.dispatch import InlineDispatcher
from tuner.driver import PredictedStudy, Search
from tuner.prediction_report import (
    predicted_rows,
    prediction_document,
    prediction_notes,
    prediction_sentence,
    prediction_table,
)
from tuner.predictions import Predictions
from tuner.records import StageKind
from tuner.search_space import DraftTokens
from tuner.stopping import Budget
from tuner.stored import read_study
from tuner.study import TrialLedger
from tuner.study_charts import write_prediction
from tuner.testing.memory_store import MemoryStore


class Studies:
    """A store and Optuna's, over which searches and predictions go."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = MemoryStore()
        self._storage = optuna.storages.InMemoryStorage()

    def search(self, **changes: Any) -> Search:
        plan = a_plan("numbers", **changes)
        ledger = TrialLedger.open(self._storage, plan.name, plan.space, plan.objectives)
        return Search(plan, self.store, ledger, InlineDispatcher())

    def stages(self) -> list[tuple[StageKind, str]]:
        return [(one.kind, one.key) for one in self.store.stages("numbers")]


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch) -> Studies:
    """Where a light draft gains and a heavy one loses."""
    world = World(hit_rates={"light": 0.7, "heavy": 0.6}, draft_ms={"light": 1.0, "heavy": 15.0})
    monkeypatch.setattr("tuner.trial.load_engine", lambda _name: SimulatedEngine(world))
    return Studies(world)


@pytest.fixture
def predicted(studies: Studies) -> PredictedStudy:
    return studies.search().predict()


def text_of(renderable: object, width: int = 120) -> str:
    written = StringIO()
    Console(file=written, width=width, color_system=None).print(renderable)
    return written.getvalue()


def rows_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.lstrip().startswith(("light", "heavy"))]


def test_no_configuration_with_speculation_is_run(studies: Studies, predicted: PredictedStudy) -> None:
    assert [kind for kind, _ in studies.stages()] == [StageKind.BASELINE, StageKind.TRACE, StageKind.TRACE]
    assert [trial.number for trial in predicted.trials] == [0]
    assert len(predicted.configurations) == 12


def test_a_search_goes_on_from_a_prediction_and_runs_nothing_twice(studies: Studies) -> None:
    studies.search().predict()
    before, loads = studies.stages(), list(studies.world.loads)
    found = studies.search(budget=Budget(max_trials=2)).run()
    assert studies.stages()[: len(before)] == before
    assert {kind for kind, _ in studies.stages()[len(before) :]} == {StageKind.MEASURE, StageKind.CERTIFY}
    assert studies.world.loads[: len(loads)] == loads
    assert found.baseline.number == 0


def test_a_search_measures_the_predicted_fastest_first(studies: Studies, predicted: PredictedStudy) -> None:
    best = predicted_rows(predicted)[0].speculation
    found = studies.search(budget=Budget(max_trials=2)).run()
    assert found.trials[1].speculation == best


def test_rows_are_fastest_first_and_their_chances_leave_some_for_no_speculation(predicted: PredictedStudy) -> None:
    rows = predicted_rows(predicted)
    speedups = [one.prediction.speedup for one in rows]
    assert speedups == sorted(speedups, reverse=True)
    chances = [one.chance or 0.0 for one in rows]
    assert 0.5 < sum(chances) <= 1 + 1e-9
    assert max(chances) == max(one.chance or 0.0 for one in rows if one.speculation.draft_name == "light")


def test_only_configurations_of_the_space_share_the_chances(studies: Studies) -> None:
    space = a_plan("numbers").space.model_copy(update={"num_speculative_tokens": DraftTokens(min=5, max=6)})
    few = studies.search(space=space).predict()
    assert {tokens for _, tokens in few.predictions.by_configuration} == set(range(1, 7))
    rows = predicted_rows(few)
    assert {one.speculation.drafted_tokens for one in rows} == {5, 6}
    assert sum(one.chance or 0.0 for one in rows) == pytest.approx(1, abs=0.01)


def test_the_sentence_says_the_best_its_interval_and_that_it_is_no_recommendation(predicted: PredictedStudy) -> None:
    rows = predicted_rows(predicted)
    assert re.fullmatch(
        r"Predicted fastest: light k=\d, \d\.\d\d times the speed of no speculation end to end "
        r"\(95 % interval \d\.\d\d to \d\.\d\d\)\. "
        r"This is a prediction and no recommendation: only no speculation was measured\.",
        prediction_sentence(predicted, rows),
    )


def test_a_search_that_decides_at_another_load_is_predicted_there(predicted: PredictedStudy) -> None:
    busy = Predictions(by_configuration={("heavy", 2): a_prediction("heavy", 2, 1.4)})
    result = replace(predicted, concurrency=8, predictions=replace(predicted.predictions, at_load={8: busy}))
    (row,) = predicted_rows(result)
    assert (row.speculation.label, row.figures["speedup"]) == ("heavy k=2", 1.4)
    assert "end to end with 8 requests in flight (95 % interval 1.33 to" in prediction_sentence(result, [row])


def test_where_nothing_gains_the_sentence_says_so(studies: Studies) -> None:
    draft = a_plan("numbers").space.drafts[1]
    space = a_plan("numbers").space.model_copy(update={"drafts": (draft,)})
    slow = studies.search(space=space).predict()
    said = prediction_sentence(slow, predicted_rows(slow))
    assert said.startswith("No speculation is predicted to be the fastest: the best of 6 others, heavy k=1, has 0.")


def test_the_table_has_the_foremost_and_with_all_every_configuration(predicted: PredictedStudy) -> None:
    rows = predicted_rows(predicted)
    shown = text_of(prediction_table(predicted, rows))
    assert len(rows_of(shown)) == 10
    assert "10 of 12 configurations; --all shows every one" in shown
    every = rows_of(text_of(prediction_table(predicted, rows, all_rows=True)))
    assert [(words[0], words[1]) for words in every] == [
        (name, str(tokens)) for name in ("light", "heavy") for tokens in range(1, 7)
    ]
    names = [line.split()[0] for line in shown.splitlines() if line.split()[:1] in (["no"], ["light"], ["heavy"])]
    assert names[:2] == ["no", "light"]


def test_the_best_of_each_draft_is_shown_however_slow_it_is(predicted: PredictedStudy) -> None:
    rows = [one for one in predicted_rows(predicted) if one.speculation.draft_name == "light"]
    last = replace(rows[0], speculation=predicted.configurations[-1])
    words = rows_of(text_of(prediction_table(predicted, [*rows, *rows, last])))
    assert words[-1][0] == "heavy"


def test_a_narrow_table_fits_and_no_title_of_it_is_cut(predicted: PredictedStudy) -> None:
    text = text_of(prediction_table(predicted, predicted_rows(predicted), 80), 80)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "…" not in text


def test_a_mean_acceptance_length_lies_between_its_limits(predicted: PredictedStudy) -> None:
    for one in predicted_rows(predicted):
        low, value, high = (one.figures[f"mean_acceptance_length{suffix}"] or 0.0 for suffix in ("_low", "", "_high"))
        assert 1 <= low < value < high


def test_a_draft_that_cannot_be_replayed_is_named_with_its_numbers_of_tokens(predicted: PredictedStudy) -> None:
    gap = dict.fromkeys(predicted.configurations[6:9], "the draft could not be replayed")
    gap[predicted.configurations[10]] = "the draft could not be replayed"
    notes = prediction_notes(replace(predicted, gaps=gap))
    assert notes[0] == "no prediction for heavy k=1–3, 5: the draft could not be replayed"


def test_what_has_no_prediction_has_a_reason(studies: Studies, predicted: PredictedStudy) -> None:
    nothing = Predictions(by_configuration={})
    assert set(nothing.gaps(predicted.configurations, ()).values()) == {"the draft could not be replayed"}
    assert predicted.predictions.gaps(predicted.configurations, ()) == {}
    bare = replace(predicted, predictions=nothing, gaps=nothing.gaps(predicted.configurations, ()))
    assert prediction_sentence(bare, ()) == "Nothing can be predicted: the draft could not be replayed."


def test_the_document_has_every_configuration_with_its_figures(predicted: PredictedStudy) -> None:
    document = json.loads(json.dumps(prediction_document(predicted, predicted_rows(predicted)), allow_nan=False))
    assert len(document["predictions"]) == 12
    first = document["predictions"][0]
    assert first["draft"] == "light"
    assert {"speedup_low", "tpot_ms_mean", "ttft_ms_mean", "mean_acceptance_length_low"} <= set(first["predicted"])
    chances = [one["probability_of_best"] for one in document["predictions"]]
    assert sum(chances) + document["probability_of_no_speculation"] == pytest.approx(1)
    assert document["baseline"]["method"] == "none"
    assert document["gaps"] == []


def test_the_page_of_a_prediction_has_its_curves_and_no_second_plot(predicted: PredictedStudy, tmp_path: Path) -> None:
    path = tmp_path / "plot.html"
    write_prediction(predicted, "A prediction.", path)
    page = path.read_text(encoding="utf-8")
    assert "light, predicted" in page
    assert "Predicted against measured" not in page


def test_a_stored_study_has_the_predictions_and_the_reason_with_which_its_search_ended(studies: Studies) -> None:
    found = studies.search(budget=Budget(max_trials=3)).run()
    stored = read_study(studies.store, "numbers")
    assert stored.stopped == found.stopped
    assert stored.pareto == found.pareto
    for key, one in found.predictions.by_configuration.items():
        assert stored.predictions.by_configuration[key].speedup == pytest.approx(one.speedup)


def test_a_study_that_did_not_keep_why_it_stopped_is_read_all_the_same(studies: Studies) -> None:
    found = studies.search(budget=Budget(max_trials=2)).run()
    conclusion = {name: value for name, value in (found.study.conclusion or {}).items() if name != "stopped"}
    studies.store.conclude("numbers", conclusion, found.pareto)
    assert read_study(studies.store, "numbers").stopped is None
    assert read_study(studies.store, "numbers").decision is not None
