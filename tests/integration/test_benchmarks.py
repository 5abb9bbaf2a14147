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
