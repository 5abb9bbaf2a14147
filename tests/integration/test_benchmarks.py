"""The benchmarks run, and their last line is the JSON object that their README describes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARK = ROOT / "benchmarks" / "cpu_engine.py"
WORKLOAD = "structured-repetition"

WITHOUT_TRANSFORMERS = f"""
import runpy, sys
sys.modules["transformers"] = None
sys.argv = ["cpu_engine.py", "--quick", "--json"]
runpy.run_path({str(BENCHMARK)!r}, run_name="__main__")
"""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    pytest.importorskip("transformers")
    command = [sys.executable, str(BENCHMARK), "--quick", "--json", "--workload", WORKLOAD]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


@pytest.mark.slow
@pytest.mark.model
def test_every_contender_has_a_speed_that_follows_from_the_raw_figures(document: dict[str, Any]) -> None:
    (prompt,) = document["prompts"]

    assert {"tuner", "tuner_ngram_k5", "tuner_eagle_k3", "tuner_shallow_k2"} <= document["tokens_per_s"].keys()
    assert {"transformers", "transformers_prompt_lookup", "transformers_assisted"} <= document["tokens_per_s"].keys()
    for name, speed in document["tokens_per_s"].items():
        own = prompt["decoded_tokens"][name] / prompt["decode_ms"][name] * 1000
        assert speed == pytest.approx(own, rel=1e-3), name
        assert document["tokens_per_s_with_prefill"][name] > 0, name


@pytest.mark.slow
@pytest.mark.model
def test_speculation_changes_no_output_of_ours(document: dict[str, Any]) -> None:
    ours = {name: share for name, share in document["identical_outputs"].items() if name.startswith("tuner")}
    assert set(ours.values()) == {1.0}, ours


@pytest.mark.slow
@pytest.mark.model
def test_speed_ups_are_relative_to_the_same_without_speculation(document: dict[str, Any]) -> None:
    speedups, speeds = document["speedup_over_no_speculation"][WORKLOAD], document["tokens_per_s"]

    assert speedups["tuner_ngram_k5"] == pytest.approx(speeds["tuner_ngram_k5"] / speeds["tuner"], rel=1e-2)
    assert speedups["transformers_bf16_assisted"] == pytest.approx(
        speeds["transformers_bf16_assisted"] / speeds["transformers_bf16"], rel=1e-2
    )
    assert not {"tuner", "transformers", "transformers_bf16"} & speedups.keys()
    assert document["geometric_mean_speedup"]["all"].keys() == speedups.keys()


@pytest.mark.slow
@pytest.mark.model
def test_the_share_of_the_limit_follows_from_bandwidth_and_weights(document: dict[str, Any]) -> None:
    limit_per_s = document["bandwidth_gb_per_s"] * 1e9 / document["weight_bytes"]

    assert document["bandwidth_gb_per_s"] == max(document["bandwidth_gb_per_s_by_kernel"].values())
    assert document["share_of_limit"] == pytest.approx(document["tokens_per_s"]["tuner"] / limit_per_s, rel=1e-2)
    assert document["threads"] >= 1
    assert document["versions"].keys() >= {"torch", "transformers"}


@pytest.mark.slow
def test_without_transformers_it_says_what_to_install() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (BENCHMARK.parent, ROOT)))}
    command = [sys.executable, "-c", WITHOUT_TRANSFORMERS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr == (
        "error: this benchmark needs the package 'transformers', which is not installed\n"
        "hint: pip install -e '.[cpu]' --group bench\n"
    )


# ── simulated worlds ──────────────────────────────────────────────────────────────────────────────────────────


def quick_run(name: str) -> dict[str, Any]:
    """The JSON object that a benchmark ends with."""
    command = [sys.executable, str(ROOT / "benchmarks" / name), "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


@pytest.mark.slow
def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    found = quick_run("interval_coverage.py")
    cells = [cell for law in found["laws"] for cell in law["cells"]]

    assert {(cell["prompts"], cell["quantity"]) for cell in cells} == {
        (size, name) for size in (15, 30, 60, 150) for name in ("mean_acceptance_length", "latency_ratio")
    }
    assert all(0.92 <= cell["coverage"]["share"] <= 0.965 for cell in cells)
    assert all(cell["one_sided_99_coverage"]["share"] >= 0.975 for cell in cells)
    assert all(cell["naive_coverage"]["share"] < 0.5 for cell in cells)
    assert found["coverage"] == cells[0]["coverage"]["hits"] / found["data_sets"]
    assert found["naive_coverage"] == cells[0]["naive_coverage"]["share"]


@pytest.mark.slow
def test_worlds_without_a_gain_are_not_recommended_and_those_with_one_are() -> None:
    found = quick_run("null_worlds.py")

    assert found["worlds"] == sum(family["worlds"] for family in found["families"].values()) == 300
    for family in found["families"].values():
        assert family["share_limits_95"][0] <= 0.01
        assert sum(family["verdicts"].values()) == family["worlds"]
        assert family["true_gain"]["highest"] <= 1
    assert found["wrong_recommendations"] == max(family["share"] for family in found["families"].values())
    assert found["families"]["never_hits"]["verdicts"]["do_not_speculate"] > 50
    assert found["families"]["best_of_sixty"]["careless_rules"]["search_estimate"] > 0.5
    assert found["power"]["share_limits_95"][1] >= found["power"]["wanted"]


# ── replay and prediction against the engine ──────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def exactness() -> dict[str, Any]:
    return quick_run("replay_exactness.py")


@pytest.mark.slow
@pytest.mark.model
def test_replay_says_of_every_request_what_the_engine_did(exactness: dict[str, Any]) -> None:
    found, greedy, sampled = exactness, exactness["greedy"], exactness["sampled_engine"]

    assert len(found["drafts"]) >= 3
    assert len(found["workloads"]) >= 3
    assert greedy["requests"] == len(found["drafts"]) * len(found["workloads"]) * len(found["drafted_tokens"])
    assert greedy["accepted_tokens"] > 0
    assert all(one["is_tie"] for one in (*greedy["listed"], *sampled["listed"]))
    counts = ("round", "drafted", "accepted")
    assert {found[f"{kind}_max_{count}_difference"] for kind in ("greedy", "sampled_engine") for count in counts} == {0}


@pytest.mark.slow
@pytest.mark.model
def test_expected_rounds_are_those_of_rejection_sampling_within_their_limits(exactness: dict[str, Any]) -> None:
    cells, paths = exactness["expected_rounds"], ("along_own_outputs", "along_target_outputs")
    errors = [cell[path] for cell in cells for path in paths]

    for error in errors:
        beyond = max(0.0, abs(error["relative_error"]) - 1.96 * error["standard_error"])
        assert error["beyond_its_limits"] == pytest.approx(beyond, abs=1e-4)
    assert exactness["sampled_max_error"] == max(error["beyond_its_limits"] for error in errors) < 0.05
    assert len({cell["temperature"] for cell in cells}) == 2


@pytest.mark.slow
@pytest.mark.model
def test_predicted_times_are_scored_on_configurations_that_were_not_timed() -> None:
    found = quick_run("tpot_prediction.py")
    untimed = [one for one in found["configurations"] if not one["is_timed"]]
    groups = {(one["workload"], one["draft"]) for one in untimed}

    assert len(groups) == len(found["workloads"]) * len(found["drafts"]) >= 6
    assert len(found["configurations"]) == len(untimed) + len(groups)
    for one in untimed:
        ratio = one["tpot_ms_predicted"] / one["tpot_ms_measured"]
        assert one["relative_error"] == pytest.approx(ratio - 1, abs=1e-3)
    errors = sorted(abs(one["relative_error"]) for one in untimed)
    assert errors[0] <= found["median_relative_error"] <= found["p90_relative_error"] <= errors[-1]


@pytest.mark.slow
def test_replay_decides_within_few_compiles_and_recommends_no_loser() -> None:
    found = quick_run("compiles_to_decide.py")
    well, wrong, large = (found["families"][name] for name in ("well_specified", "misspecified", "large"))

    assert found["replay"] == well["replay"]
    assert well["replay"]["compiles_mean"] <= 4.2
    assert well["replay"]["regret_mean"] <= 0.01
    assert wrong["replay"]["regret_mean"] <= 0.03
    assert large["configurations"] == 270
    assert {family["replay"]["recommended_losers"] for family in (well, wrong, large)} == {0}
    # with one compile more than "take the predicted best" replay gives away less, in every family
    for family in (well, wrong, large):
        assert family["replay_at_most_3_compiles"]["compiles_mean"] <= family["predicted_best"]["compiles_mean"] + 1
        assert family["replay_at_most_3_compiles"]["regret_mean"] < family["predicted_best"]["regret_mean"]
    assert found["best_optuna"]["sampler"] in well["samplers"]


# ── the driver ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_machines_that_compile_keep_accelerators_busy() -> None:
    found = quick_run("cluster_sim.py")
    farm, accelerator = found["settings"].values()

    assert found["busy_share"] == farm["busy_share"] > 2 * found["busy_share_compile_on_accelerator"]
    assert farm["busy_share_compiled"] > 0.9
    assert accelerator["busy_share_compiled"] < 0.2  # 3 minutes of 23, and what the traces had compiled
    ratio = accelerator["trials_wall_minutes"] / farm["trials_wall_minutes"]
    assert found["trials_wall_time_ratio"] == pytest.approx(ratio, rel=0.01)
    assert found["trials_wall_time_ratio"] > found["wall_time_ratio"] > 2
    assert accelerator["compiles_at_once"] == 32


@pytest.mark.slow
def test_the_driver_takes_little_more_than_optuna() -> None:
    found = quick_run("dispatch_overhead.py")
    spent = found["ms_per_trial"]

    assert found["trials"] == 6
    assert found["own_over_optuna"] == pytest.approx(spent["own"] / spent["optuna"], rel=0.01)
    assert 0 < spent["sql"] + spent["arithmetic"] < spent["own"]
    assert found["own_over_optuna"] < 2  # of six trials; the long run is held against 1.2
