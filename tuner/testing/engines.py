"""What every engine must do, as tests: an engine's test module subclasses the contract and supplies fixtures.

class TestMyEngine(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls): return MyEngine()

    @pytest.fixture(scope="class")
    @classmethod
    def config(cls): return EngineConfig(target_model="/models/tiny", max_num_seqs=3)

    @pytest.fixture(scope="class")
    @classmethod
    def drafts(cls): return {"ngram": Speculation(method=Method.NGRAM, draft_name="ngram", drafted_tokens=4)}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tuner.engines.base import Artifact, Engine, LoadedEngine, Replayable
from tuner.errors import UnsupportedConfigurationError
from tuner.records import GREEDY, Arrival, Failed, Finished, Prompt, Sampling, Sent
from tuner.replay import replay
from tuner.speculation import NO_SPECULATION, EngineConfig, Speculation
from tuner.testing.answers import (
    SAMPLED_REQUESTS,
    Answer,
    answers,
    arrivals,
    assert_counters_agree,
    assert_rounds_are,
    assert_same_outputs,
    assert_timed,
    assert_trace_is_whole,
    p_value_of_same_distribution,
    target_output,
    third_tokens,
)

TESTED_DRAFTED_TOKENS = (1, 2, 3, 5, 8, 12)
REPLAYED_DRAFTED_TOKENS = (1, 2, 4, 6)
# A correct engine fails a statistical test once in ten thousand seeds, and the seeds are fixed.
SIGNIFICANCE = 1e-4


class EngineContract:
    """Tests of an engine. Override ``engine``, ``config`` and ``drafts``; the rest where the engine needs it.

    The engine must give token ids; the target must be small, and must end some of ``prompts`` by itself before
    ``max_output_tokens`` and some not.
    """

    max_output_tokens = 40
    # At which the target hesitates between its three most likely tokens.
    temperature = 1.0
    # Whether a seed gives the same output with every draft, which are then replayed along it token by token.
    a_seed_fixes_the_output = False

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Engine:
        """The engine under test."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def config(cls) -> EngineConfig:
        """The target alone, loaded for one request at a time."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def drafts(cls) -> Mapping[str, Speculation]:
        """Every kind of draft, by name, with any number of drafted tokens."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def perfect_draft(cls) -> Speculation | None:
        """A draft that is the target itself; None where there can be none."""
        return None

    @pytest.fixture(scope="class")
    @classmethod
    def hopeless_draft(cls) -> Speculation | None:
        """A draft that is never right; None where there can be none."""
        return None

    @pytest.fixture(scope="class")
    @classmethod
    def prompts(cls) -> tuple[Prompt, ...]:
        """Prompts of different lengths, the first of one token."""
        texts = ("a", "def f(x):", "hello there", "0101010")
        return tuple(Prompt(prompt_id=text, prompt_class="contract", text=text) for text in texts)

    @pytest.fixture(scope="class")
    @classmethod
    def artifact_dir(cls, tmp_path_factory: pytest.TempPathFactory) -> str:
        """Where artifacts are kept."""
        return str(tmp_path_factory.mktemp("artifacts"))

    @pytest.fixture(scope="class")
    @classmethod
    def alone(
        cls, engine: Engine, config: EngineConfig, prompts: tuple[Prompt, ...], artifact_dir: str
    ) -> dict[str, Answer]:
        """What the target alone answers to each prompt, one at a time."""
        with load(engine, config, NO_SPECULATION, artifact_dir) as loaded:
            return answers(loaded.run(arrivals(prompts, max_output_tokens=cls.max_output_tokens)))

    def test_the_fixtures_cover_both_ways_of_ending(self, alone: dict[str, Answer]) -> None:
        assert {answer.finished.reason for answer in alone.values()} == {"stop", "length"}
        assert any(answer.finished.prompt_tokens == 1 for answer in alone.values())

    def test_its_name_is_one_word_and_its_limits_are_positive(self, engine: Engine) -> None:
        assert engine.name.isidentifier()
        assert engine.capabilities.max_num_seqs >= 1
        assert engine.capabilities.max_drafted_tokens >= 1
        assert engine.capabilities.loads_at_once >= 1

    def test_a_request_is_sent_then_answered_then_finished(self, alone: dict[str, Answer]) -> None:
        for answer in alone.values():
            assert answer.sent is not None
            times = [answer.sent.at_s, *(chunk.at_s for chunk in answer.chunks), answer.finished.at_s]
            assert all(earlier <= later for earlier, later in pairwise(times))

    def test_the_first_chunk_is_the_one_token_of_the_prefill(self, alone: dict[str, Answer]) -> None:
        assert all(answer.chunks[0].num_tokens == 1 for answer in alone.values())

    @pytest.mark.parametrize("drafted_tokens", TESTED_DRAFTED_TOKENS)
    def test_greedy_output_is_that_of_the_target_alone(
        self,
        engine: Engine,
        config: EngineConfig,
        drafts: Mapping[str, Speculation],
        prompts: tuple[Prompt, ...],
        alone: dict[str, Answer],
        artifact_dir: str,
        drafted_tokens: int,
    ) -> None:
        for name, draft in drafts.items():
            with load(engine, config, replace(draft, drafted_tokens=drafted_tokens), artifact_dir) as loaded:
                found = answers(loaded.run(arrivals(prompts, max_output_tokens=self.max_output_tokens)))
                assert_same_outputs(found, alone, name)
                assert_counters_agree(loaded.counters(), found, drafted_tokens)

    def test_several_requests_together_are_answered_as_one_by_one(
        self,
        engine: Engine,
        config: EngineConfig,
        drafts: Mapping[str, Speculation],
        prompts: tuple[Prompt, ...],
        alone: dict[str, Answer],
        artifact_dir: str,
    ) -> None:
        together = replace(config, max_num_seqs=min(3, engine.capabilities.max_num_seqs))
        for name, draft in {"none": NO_SPECULATION, **drafts}.items():
            drafted_tokens = 0 if draft.is_baseline else 3
            with load(engine, together, replace(draft, drafted_tokens=drafted_tokens), artifact_dir) as loaded:
                found = answers(loaded.run(arrivals(prompts, max_output_tokens=self.max_output_tokens)))
                assert_same_outputs(found, alone, name)
                assert_counters_agree(loaded.counters(), found, drafted_tokens)

    def test_no_more_requests_are_in_flight_than_were_asked_for(
        self, engine: Engine, config: EngineConfig, prompts: tuple[Prompt, ...], artifact_dir: str
    ) -> None:
        roomy = replace(config, max_num_seqs=min(3, engine.capabilities.max_num_seqs))
        in_flight: set[str] = set()
        with load(engine, roomy, NO_SPECULATION, artifact_dir) as loaded:
            for event in loaded.run(arrivals(prompts, max_output_tokens=4), concurrency=1):
                in_flight = in_flight | {event.request_id} if isinstance(event, Sent) else in_flight
                assert len(in_flight) == 1
                in_flight = in_flight - {event.request_id} if isinstance(event, Failed | Finished) else in_flight

    def test_an_output_never_exceeds_its_cap(
        self,
        engine: Engine,
        config: EngineConfig,
        drafts: Mapping[str, Speculation],
        prompts: tuple[Prompt, ...],
        alone: dict[str, Answer],
        artifact_dir: str,
    ) -> None:
        for name, draft in drafts.items():
            with load(engine, config, replace(draft, drafted_tokens=5), artifact_dir) as loaded:
                for cap in (1, 2, 3, 7):
                    found = answers(loaded.run(arrivals(prompts[1:2], max_output_tokens=cap)))
                    for request_id, answer in found.items():
                        assert answer.token_ids == alone[request_id].token_ids[:cap], (name, cap)
                        assert answer.finished.reason == "length", (name, cap)

    def test_nothing_follows_the_end_of_an_output(self, alone: dict[str, Answer]) -> None:
        ends = {answer.token_ids[-1] for answer in alone.values() if answer.finished.reason == "stop"}
        assert all(ends.isdisjoint(answer.token_ids[:-1]) for answer in alone.values())

    def test_an_ignored_end_does_not_end_the_output(
        self,
        engine: Engine,
        config: EngineConfig,
        prompts: tuple[Prompt, ...],
        alone: dict[str, Answer],
        artifact_dir: str,
    ) -> None:
        requests = arrivals(prompts, max_output_tokens=self.max_output_tokens, ignore_eos=True)
        with load(engine, config, NO_SPECULATION, artifact_dir) as loaded:
            found = answers(loaded.run(requests))
        for request_id, answer in found.items():
            assert answer.finished.output_tokens == self.max_output_tokens
            expected = alone[request_id].token_ids
            assert answer.token_ids[: len(expected)] == expected

    def test_the_target_as_its_own_draft_is_always_right(
        self,
        engine: Engine,
        config: EngineConfig,
        perfect_draft: Speculation | None,
        prompts: tuple[Prompt, ...],
        artifact_dir: str,
    ) -> None:
        if perfect_draft is None:
            pytest.skip("this engine has no draft that is always right")
        requests = arrivals(prompts, max_output_tokens=13, ignore_eos=True)
        with load(engine, config, replace(perfect_draft, drafted_tokens=3), artifact_dir) as loaded:
            found = answers(loaded.run(requests))
        for answer in found.values():
            assert [chunk.num_tokens for chunk in answer.chunks] == [1, 4, 4, 4]
            assert answer.finished.accepted_tokens == answer.finished.drafted_tokens == 9

    def test_a_draft_that_is_never_right_costs_a_round_for_each_token(
        self,
        engine: Engine,
        config: EngineConfig,
        hopeless_draft: Speculation | None,
        prompts: tuple[Prompt, ...],
        artifact_dir: str,
    ) -> None:
        if hopeless_draft is None:
            pytest.skip("this engine has no draft that is never right")
        requests = arrivals(prompts, max_output_tokens=10, ignore_eos=True)
        with load(engine, config, replace(hopeless_draft, drafted_tokens=3), artifact_dir) as loaded:
            found = answers(loaded.run(requests))
        for answer in found.values():
            assert [chunk.num_tokens for chunk in answer.chunks] == [1] * 10
            assert answer.finished.accepted_tokens == 0
            assert answer.finished.drafted_tokens == 6 * 3 + 2 + 1 + 0

    def test_a_prompt_that_does_not_fit_fails_alone(
        self, engine: Engine, config: EngineConfig, prompts: tuple[Prompt, ...], artifact_dir: str
    ) -> None:
        long = Prompt(prompt_id="long", prompt_class="contract", text="word " * config.max_model_len)
        requests = arrivals((prompts[0], long, prompts[1]), max_output_tokens=4, ignore_eos=True)
        with load(engine, config, NO_SPECULATION, artifact_dir) as loaded:
            found = answers(loaded.run(requests))
        failed = found["long"].end
        assert isinstance(failed, Failed)
        assert "max_model_len" in failed.error
        assert found["long"].sent is not None
        assert [found[prompt.prompt_id].finished.output_tokens for prompt in prompts[:2]] == [4, 4]

    def test_arrivals_are_asked_for_when_a_slot_is_free(
        self, engine: Engine, config: EngineConfig, prompts: tuple[Prompt, ...], artifact_dir: str
    ) -> None:
        num_finished = 0
        asked_after: list[int] = []

        def one_by_one() -> Iterator[Arrival]:
            for arrival in arrivals(prompts, max_output_tokens=3):
                asked_after.append(num_finished)
                yield arrival

        with load(engine, config, NO_SPECULATION, artifact_dir) as loaded:
            for event in loaded.run(one_by_one()):
                num_finished += isinstance(event, Finished)
        assert asked_after == list(range(len(prompts)))

    def test_no_request_is_sent_before_its_time(
        self, engine: Engine, config: EngineConfig, prompts: tuple[Prompt, ...], artifact_dir: str
    ) -> None:
        at_s = (0.0, 0.05, 0.15)
        requests = [
            replace(arrival, at_s=due)
            for arrival, due in zip(arrivals(prompts[:3], max_output_tokens=2), at_s, strict=True)
        ]
        with load(engine, config, NO_SPECULATION, artifact_dir) as loaded:
            sent = [event.at_s for event in loaded.run(requests) if isinstance(event, Sent)]
        # The run began before the first request was sent, at most by the time that sending takes.
        assert all(moment - sent[0] >= due - self.sending_takes_s for moment, due in zip(sent, at_s, strict=True))

    sending_takes_s = 0.02

    def test_sampling_with_drafts_has_the_distribution_of_the_target_alone(
        self,
        engine: Engine,
        config: EngineConfig,
        drafts: Mapping[str, Speculation],
        prompts: tuple[Prompt, ...],
        artifact_dir: str,
    ) -> None:
        with load(engine, config, NO_SPECULATION, artifact_dir) as loaded:
            expected = third_tokens(loaded, prompts[1], self.temperature, first_seed=0)
        assert max(expected.values()) < 0.9 * SAMPLED_REQUESTS, "the temperature leaves nothing to chance"
        for name, draft in drafts.items():
            with load(engine, config, replace(draft, drafted_tokens=2), artifact_dir) as loaded:
                found = third_tokens(loaded, prompts[1], self.temperature, first_seed=SAMPLED_REQUESTS)
            assert p_value_of_same_distribution(expected, found) > SIGNIFICANCE, name

    def test_a_seed_gives_the_same_output_again(
        self,
        engine: Engine,
        config: EngineConfig,
        drafts: Mapping[str, Speculation],
        prompts: tuple[Prompt, ...],
        artifact_dir: str,
    ) -> None:
        requests = arrivals(prompts, max_output_tokens=8, sampling=Sampling(temperature=1.0, seed=5))
        for name, draft in drafts.items():
            with load(engine, config, replace(draft, drafted_tokens=2), artifact_dir) as loaded:
                first, second = answers(loaded.run(requests)), answers(loaded.run(requests))
            assert_same_outputs(second, first, name)

    @pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
    def test_replay_gives_the_rounds_that_the_engine_runs(
        self,
        engine: Engine,
        config: EngineConfig,
        drafts: Mapping[str, Speculation],
        prompts: tuple[Prompt, ...],
        artifact_dir: str,
        sampled: bool,
    ) -> None:
        if sampled and not self.a_seed_fixes_the_output:
            pytest.skip("this engine's sampled outputs depend on the draft, so they are replayed on average only")
        sampling = Sampling(temperature=self.temperature / 2, top_p=0.9, seed=2) if sampled else GREEDY
        requests = arrivals(prompts, max_output_tokens=self.max_output_tokens, sampling=sampling)
        with load(engine, config, NO_SPECULATION, artifact_dir) as loaded:
            alone = answers(loaded.run(requests))
        outputs = [target_output(prompt, alone, self.max_output_tokens) for prompt in prompts]
        for name, draft in drafts.items():
            widest = replace(draft, drafted_tokens=max(REPLAYED_DRAFTED_TOKENS))
            if not engine.replay_is_exact(replace(config, speculation=widest)):
                continue
            with load(engine, config, widest, artifact_dir) as loaded:
                assert isinstance(loaded, Replayable)
                trace = loaded.trace(outputs, sampling)
            assert_trace_is_whole(trace, outputs, sampling)
            for drafted_tokens in REPLAYED_DRAFTED_TOKENS:
                with load(engine, config, replace(draft, drafted_tokens=drafted_tokens), artifact_dir) as loaded:
                    found = answers(loaded.run(requests))
                assert_same_outputs(found, alone, name)
                assert_rounds_are(replay(trace, drafted_tokens), found, f"{name} k={drafted_tokens}")

    def test_a_choice_is_as_clear_with_a_draft_as_without(
        self,
        engine: Engine,
        config: EngineConfig,
        drafts: Mapping[str, Speculation],
        prompts: tuple[Prompt, ...],
        alone: dict[str, Answer],
        artifact_dir: str,
    ) -> None:
        outputs = [target_output(prompt, alone, self.max_output_tokens) for prompt in prompts]
        with load(engine, config, NO_SPECULATION, artifact_dir) as loaded:
            if not isinstance(loaded, Replayable):
                pytest.skip("this engine cannot replay")
            gaps = loaded.top2_gaps(outputs)
        assert [len(one) for one in gaps] == [len(output.token_ids) for output in outputs]
        assert all(gap >= 0 for one in gaps for gap in one)
        for draft in drafts.values():
            with load(engine, config, replace(draft, drafted_tokens=1), artifact_dir) as loaded:
                assert isinstance(loaded, Replayable)
                assert [prompt.top2_gaps for prompt in loaded.trace(outputs).prompts] == [
                    pytest.approx(one) for one in gaps
                ]

    def test_steps_are_timed_at_every_size_and_batch(
        self, engine: Engine, config: EngineConfig, drafts: Mapping[str, Speculation], artifact_dir: str
    ) -> None:
        together = replace(config, max_num_seqs=min(2, engine.capabilities.max_num_seqs))
        for draft in drafts.values():
            with load(engine, together, replace(draft, drafted_tokens=3), artifact_dir) as loaded:
                if not isinstance(loaded, Replayable):
                    continue
                for batch in {1, together.max_num_seqs}:
                    assert_timed(loaded.time_verify([1, 2, 4], 2, batch), "verify", (1, 2, 4), batch)
                    assert_timed(loaded.time_draft([1, 3], 2, batch), "draft", (1, 3), batch)
                reading = loaded.time_draft_prefill([5, 20], 2)
                if reading is not None:
                    assert_timed(reading, "draft_prefill", (5, 20), 1)
                with pytest.raises(UnsupportedConfigurationError, match="max_num_seqs"):
                    loaded.time_verify([1], 1, together.max_num_seqs + 1)

    def test_the_compile_key_is_that_of_the_configuration_alone(self, engine: Engine, config: EngineConfig) -> None:
        key = engine.compile_key(config)
        assert key
        assert key == engine.compile_key(replace(config))

    def test_it_refuses_what_exceeds_its_limits(
        self, engine: Engine, config: EngineConfig, drafts: Mapping[str, Speculation]
    ) -> None:
        engine.check(config)
        with pytest.raises(UnsupportedConfigurationError, match="max_num_seqs"):
            engine.check(replace(config, max_num_seqs=engine.capabilities.max_num_seqs + 1))
        for draft in drafts.values():
            engine.check(replace(config, speculation=replace(draft, drafted_tokens=1)))
            wide = replace(draft, drafted_tokens=engine.capabilities.max_drafted_tokens + 1)
            with pytest.raises(UnsupportedConfigurationError) as caught:
                engine.check(replace(config, speculation=wide))
            assert caught.value.hint

    def test_it_can_be_closed_twice(self, engine: Engine, config: EngineConfig, artifact_dir: str) -> None:
        loaded = load(engine, config, NO_SPECULATION, artifact_dir)
        loaded.close()
        loaded.close()

    def test_it_says_what_it_runs_on(self, engine: Engine, config: EngineConfig, artifact_dir: str) -> None:
        with load(engine, config, NO_SPECULATION, artifact_dir) as loaded:
            environment = loaded.environment()
        assert environment
        assert all(isinstance(value, str) and value for value in environment.values())


def load(engine: Engine, config: EngineConfig, speculation: Speculation, artifact_dir: str) -> LoadedEngine:
    """The engine with this way of speculating."""
    config = replace(config, speculation=speculation)
    engine.check(config)
    return engine.load(config, _compiled(engine, config, Path(artifact_dir)))


def _compiled(engine: Engine, config: EngineConfig, artifact_dir: Path) -> Artifact:
    key = engine.compile_key(config)
    if not engine.capabilities.needs_compile:
        return Artifact(key=key)
    folder = artifact_dir / key
    if not folder.exists():
        folder.mkdir(parents=True)
        engine.compile(config, folder)
    return Artifact(key=key, path=folder)
