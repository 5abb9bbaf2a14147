from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from tests.support.observed import prompts
from tests.support.simulated import SimulatedEngine, World
from tuner.choice import Choice
from tuner.engines import Artifact
from tuner.evidence import Evidence
from tuner.measure import MeasureLimits, measure, measure_blocks
from tuner.predictions import target_outputs
from tuner.records import BaselineResult, CertifyResult, MeasureResult, TraceResult
from tuner.speculation import NO_SPECULATION, EngineConfig, Method, Speculation
from tuner.verdict import Verdict

LIMITS = MeasureLimits(max_output_tokens=40)
GOOD = Speculation(method=Method.DRAFT_MODEL, draft_name="good", draft_model="good", drafted_tokens=4)


@dataclass(frozen=True)
class ATrial:
    speculation: Speculation
    metrics: dict[str, float | None] = field(default_factory=dict)


class Machine:
    """A simulated machine on which everything is really run: baseline, trace, measurements, certification."""

    def __init__(self, **changes: object) -> None:
        self.world = World(hit_rates={"good": 0.8}, draft_ms={"good": 1.0}, **changes)  # type: ignore[arg-type]
        self.engine = SimulatedEngine(self.world)
        self.prompts = prompts(16)

    def load(self, speculation: Speculation):
        config = EngineConfig(target_model="target", speculation=speculation)
        return self.engine.load(config, Artifact(key=self.engine.compile_key(config)))

    def evidence(self, *tried: Speculation) -> Evidence:
        plain = self.load(NO_SPECULATION)
        baseline = measure(plain, self.prompts, LIMITS)
        drafting = self.load(replace(GOOD, drafted_tokens=8))
        traced = TraceResult(
            trace=drafting.trace(target_outputs(baseline, self.prompts)), draft_steps=drafting.time_draft((1, 4, 8), 5)
        )
        results = {
            one.key: MeasureResult(candidate=measure(self.load(one), self.prompts, LIMITS), anchor=None)
            for one in tried
        }
        return Evidence(
            baseline=BaselineResult(measurement=baseline, verify=plain.time_verify((1, 5), 5)),
            results=results,
            traces={"good": traced},
        )

    def certify(self, speculation: Speculation) -> CertifyResult:
        return measure_blocks(self.load(NO_SPECULATION), self.load(speculation), self.prompts, LIMITS)


def chosen(speculation: Speculation, *tied: Speculation) -> Choice[ATrial]:
    return Choice(candidate=ATrial(speculation), tied_with=tuple(ATrial(one) for one in tied))


def test_a_true_gain_passes_every_check_without_an_alarm():
    machine = Machine()
    decision = machine.evidence(GOOD).decide(chosen(GOOD), [machine.certify(GOOD)])
    assert decision.verdict is Verdict.RECOMMEND
    assert not any("ALARM" in note for note in decision.notes)


def test_the_cost_of_drafting_is_in_the_physics_check():
    machine = Machine()
    physics = machine.evidence(GOOD).decide(chosen(GOOD), [machine.certify(GOOD)]).physics
    evidence = replace(machine.evidence(GOOD), traces={})
    without = evidence.decide(chosen(GOOD), [machine.certify(GOOD)]).physics
    # 4 ms of drafting in a plain round of 20 ms, less what timing may err.
    assert without.limit / physics.limit == pytest.approx(1 + 0.2 * 0.925, rel=0.005)


def test_a_draft_that_ran_otherwise_than_it_was_replayed_raises_both_alarms():
    machine = Machine()
    evidence = machine.evidence()
    machine.world.hit_rates = {"good": 0.3}
    evidence = replace(evidence, results=machine.evidence(GOOD).results)
    notes = evidence.decide(chosen(GOOD), [machine.certify(GOOD)]).notes
    assert notes[0].startswith("ALARM: 16 of 16 outputs of good k=4 took other rounds than replay says")
    assert notes[1].startswith("ALARM: the measured mean acceptance length")


def test_where_replay_is_not_exact_nothing_is_an_alarm():
    machine = Machine()
    evidence = machine.evidence()
    machine.world.hit_rates = {"good": 0.3}
    evidence = replace(evidence, results=machine.evidence(GOOD).results, replay_is_exact=False)
    decision = evidence.decide(chosen(GOOD), [machine.certify(GOOD)])
    assert not any("ALARM" in note for note in decision.notes)


def test_of_a_transferred_trace_only_the_mean_acceptance_length_is_an_alarm():
    machine = Machine()
    evidence = machine.evidence()
    machine.world.hit_rates = {"good": 0.3}
    transferred = {"good": replace(evidence.traces["good"], doubtful_share=0.02)}
    evidence = replace(evidence, results=machine.evidence(GOOD).results, traces=transferred)
    notes = evidence.decide(chosen(GOOD), [machine.certify(GOOD)]).notes
    assert [note[:39] for note in notes if "ALARM" in note] == ["ALARM: the measured mean acceptance len"]


def test_steps_that_were_only_guessed_are_no_evidence_against_a_gain():
    machine = Machine()
    evidence = machine.evidence(GOOD)
    guessed = replace(evidence, traces={"good": replace(evidence.traces["good"], draft_steps=None)})
    untraced = replace(evidence, traces={})
    assert (
        guessed.decide(chosen(GOOD), [machine.certify(GOOD)]).physics.limit
        == untraced.decide(chosen(GOOD), [machine.certify(GOOD)]).physics.limit
    )


def test_many_alarms_are_told_in_part_and_counted():
    machine = Machine()
    tried = [replace(GOOD, drafted_tokens=k) for k in range(2, 7)]
    evidence = machine.evidence()
    machine.world.hit_rates = {"good": 0.3}
    alarms = replace(evidence, results=machine.evidence(*tried).results).alarms(tried)
    assert len(alarms) == 4
    assert alarms[-1] == "ALARM: 2 more configurations likewise"


def test_ties_of_the_search_reach_the_verdict():
    machine = Machine()
    deeper = replace(GOOD, drafted_tokens=5)
    trials = [
        ATrial(NO_SPECULATION, {"speedup": 1.0}),
        ATrial(deeper, {"speedup": 1.805}),
        ATrial(GOOD, {"speedup": 1.8}),
    ]
    evidence = machine.evidence(GOOD)
    twice = replace(evidence, results=evidence.results | {deeper.key: evidence.results[GOOD.key]})
    choice = twice.choose(trials)
    assert choice.candidate.speculation == GOOD
    decision = twice.decide(choice, [machine.certify(GOOD)])
    assert (decision.verdict, decision.tied_with) == (Verdict.TIE, (deeper,))
