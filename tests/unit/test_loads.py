from __future__ import annotations

import math

import numpy as np
import pytest

from tests.support.observed import a_failed_request, a_measurement, timed
from tuner.loads import LEAST_LOAD_SD, pool_loads
from tuner.records import CertifyResult, Counters

LENGTHS = np.linspace(1.0, 3.0, 40)


def a_load(gain: float, spread: float = 0.05) -> CertifyResult:
    """Forty prompts that gain about as much."""
    gains = gain * (1 + spread * np.sin(np.arange(40) * 2.4))
    slow = [timed(f"p{n}", s) for n, s in enumerate(LENGTHS)]
    fast = [timed(f"p{n}", s / g) for n, (s, g) in enumerate(zip(LENGTHS, gains, strict=True))]
    return CertifyResult(baseline=a_measurement(*slow), candidate=a_measurement(*fast), order="ABBA")


def test_one_load_has_the_interval_over_its_prompts():
    pooled = pool_loads([a_load(1.2)])
    assert pooled.load_error is None
    assert pooled.speedup.estimate == pytest.approx(1.2, rel=0.01)


def test_the_estimate_is_that_of_all_loads_together():
    pooled = pool_loads([a_load(1.1, 0.0), a_load(1.3, 0.0)])
    assert pooled.speedup.estimate == pytest.approx(2 / (1 / 1.1 + 1 / 1.3))
    assert pooled.speedup.n == 40


def test_variation_from_load_to_load_widens_every_limit():
    alone = pool_loads([a_load(1.2)]).speedup
    pooled = pool_loads([a_load(1.15), a_load(1.2), a_load(1.25)])
    assert pooled.load_error == pytest.approx(np.std(np.log([1.15, 1.2, 1.25]), ddof=1) / math.sqrt(3), rel=1e-6)
    assert pooled.speedup.low < alone.low - 0.03
    assert pooled.speedup.high > alone.high + 0.03
    assert pooled.speedup.one_sided_99_low < pooled.speedup.low


def test_two_loads_that_happen_to_agree_are_not_taken_to_be_alike():
    alone, pooled = pool_loads([a_load(1.2)]), pool_loads([a_load(1.2), a_load(1.2)])
    assert pooled.load_error == pytest.approx(LEAST_LOAD_SD / math.sqrt(2))
    assert pooled.speedup.low < alone.speedup.low


def test_where_all_of_the_error_lies_between_loads_the_quantile_is_that_of_the_loads_alone():
    pooled = pool_loads([a_load(gain, 0.0) for gain in (1.15, 1.2, 1.25)])
    assert math.log(pooled.speedup.high / pooled.speedup.estimate) == pytest.approx(
        4.3027 * pooled.load_error, rel=1e-3
    )


def test_a_prompt_that_fails_in_one_load_is_left_out_of_all():
    broken = a_load(1.2)
    failed = a_measurement(a_failed_request("p0"), *broken.candidate.requests[1:])
    pooled = pool_loads([a_load(1.2), CertifyResult(baseline=broken.baseline, candidate=failed, order="ABBA")])
    assert pooled.pairs.failed == ("p0",)
    assert pooled.speedup.n == 39


def test_the_interval_covers_the_true_gain_over_loads_that_differ():
    """200 times three loads: gains differ by 2 % from load to load and by 3 % from prompt to prompt."""
    random, covered = np.random.default_rng(5), 0
    for _ in range(200):
        prompts = random.normal(0, 0.03, 40)
        loads = []
        for gain in np.exp(random.normal(0, 0.02, 3)):
            times = LENGTHS / (gain * np.exp(prompts + random.normal(0, 0.01, 40)))
            fast = [timed(f"p{n}", float(s)) for n, s in enumerate(times)]
            slow = [timed(f"p{n}", float(s)) for n, s in enumerate(LENGTHS)]
            loads.append(CertifyResult(baseline=a_measurement(*slow), candidate=a_measurement(*fast), order="ABBA"))
        speedup = pool_loads(loads).speedup
        covered += speedup.low <= 1 <= speedup.high
    assert 0.92 <= covered / 200 <= 1.0


# ── adding up measurements ────────────────────────────────────────────────────────────────────────────────────────


def test_two_passes_add_up_to_one_measurement():
    first = a_measurement(timed("a", 1.0), counters=Counters(rounds=3, accepted_at=(2,)), peak_memory_bytes=5)
    later = a_measurement(timed("a", 2.0), counters=Counters(rounds=4, accepted_at=(1, 1)), peak_memory_bytes=7)
    both = first + later
    assert [request.chunks[-1][0] for request in both.requests] == [1.0, 2.0]
    assert both.counters == Counters(rounds=7, accepted_at=(3, 1))
    assert (both.wall_s, both.peak_memory_bytes) == (2.0, 7)


def test_what_one_pass_does_not_know_the_sum_does_not_know():
    both = a_measurement(timed("a", 1.0), counters=Counters(rounds=3), peak_memory_bytes=5) + a_measurement()
    assert both.counters is None
    assert both.peak_memory_bytes is None


# ── whole passes, where one engine fits at a time ─────────────────────────────────────────────────────────────


def in_passes(slowness: tuple[float, float, float, float]) -> CertifyResult:
    """The same engine on both sides, in passes A B B A on a machine that takes so many times as long in each."""
    a1, b1, b2, a2 = ([timed(f"p{n}", s * factor) for n, s in enumerate(LENGTHS)] for factor in slowness)
    return CertifyResult(baseline=a_measurement(*a1, *a2), candidate=a_measurement(*b1, *b2), order="ABBA", loads=3)


def test_a_steady_machine_leaves_the_limits_of_passes_where_they_are():
    assert pool_loads([in_passes((1.0, 1.0, 1.0, 1.0))]).speedup.low == pytest.approx(1)


@pytest.mark.parametrize(
    "slowness",
    [(1.0, 1.0, 1.075, 1.225), (1.0, 1.2, 1.2, 1.2), (1.0, 1.0, 1.0, 1.3), (1.3, 1.1, 1.0, 1.0)],
)
def test_no_drift_in_one_direction_makes_a_gain_of_passes(slowness):
    speedup = pool_loads([in_passes(slowness)]).speedup
    assert speedup.estimate != pytest.approx(1, abs=0.02)
    assert speedup.one_sided_99_low <= 1 + 1e-9
    assert speedup.high >= 1 - 1e-9


def test_blocks_of_a_few_prompts_are_not_held_to_drift():
    drifted = in_passes((1.0, 1.0, 1.0, 1.3))
    blocks = CertifyResult(baseline=drifted.baseline, candidate=drifted.candidate, order="ABBA")
    assert pool_loads([blocks]).speedup.low > 1.1
