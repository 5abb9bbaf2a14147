"""The engine ``cpu`` keeps the contract of engines, with every kind of draft it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.tiny_models import write_eagle, write_model, write_perturbed, write_shallow
from tuner.engines.cpu import eagle, model
from tuner.engines.cpu.engine import CpuEngine
from tuner.records import Prompt, Sampling
from tuner.speculation import NO_SPECULATION, EngineConfig, Method, Speculation
from tuner.testing.answers import answers, arrivals, assert_same_outputs
from tuner.testing.engines import EngineContract, load

# Two of the contract's prompts come to this token under the seed below, two do not.
EOS_TOKEN_ID = 31
LONGEST_OUTPUT = 40


def a_draft(name: str, folder: Path, method: Method = Method.DRAFT_MODEL) -> Speculation:
    return Speculation(method=method, draft_name=name, draft_model=str(folder), drafted_tokens=1)


class TestCpuEngine(EngineContract):
    max_output_tokens = LONGEST_OUTPUT
    temperature = 8.0
    a_seed_fixes_the_output = True
    architecture = "llama"
    weight_format = "auto"

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("models")

    @pytest.fixture(scope="class")
    @classmethod
    def target(cls, folder: Path) -> Path:
        return write_model(folder / "target", architecture=cls.architecture, eos_token_id=EOS_TOKEN_ID)

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> CpuEngine:
        return CpuEngine()

    @pytest.fixture(scope="class")
    @classmethod
    def config(cls, target: Path) -> EngineConfig:
        return EngineConfig(target_model=str(target), max_model_len=128, num_threads=1, weight_format=cls.weight_format)

    @pytest.fixture(scope="class")
    @classmethod
    def drafts(cls, folder: Path, target: Path) -> Mapping[str, Speculation]:
        return {
            "ngram": Speculation(method=Method.NGRAM, draft_name="ngram", drafted_tokens=1),
            "suffix": Speculation(method=Method.SUFFIX, draft_name="suffix", drafted_tokens=1),
            "model": a_draft("model", write_perturbed(folder / "model", target, noise=0.1)),
            "shallow": a_draft("shallow", write_shallow(folder / "shallow", target)),
            "eagle": a_draft("eagle", write_eagle(folder / "eagle", target), Method.EAGLE),
        }

    @pytest.fixture(scope="class")
    @classmethod
    def perfect_draft(cls, target: Path) -> Speculation:
        return a_draft("perfect", target)

    @pytest.fixture(scope="class")
    @classmethod
    def hopeless_draft(cls, folder: Path) -> Speculation:
        return a_draft("hopeless", write_model(folder / "hopeless", seed=99))

    def test_a_seed_gives_the_tokens_of_the_target_alone_with_any_draft(
        self,
        engine: CpuEngine,
        config: EngineConfig,
        drafts: Mapping[str, Speculation],
        prompts: tuple[Prompt, ...],
        artifact_dir: str,
    ) -> None:
        sampling = Sampling(temperature=4.0, top_p=0.9, seed=2)
        requests = arrivals(prompts, max_output_tokens=24, sampling=sampling, ignore_eos=True)
        with load(engine, config, NO_SPECULATION, artifact_dir) as loaded:
            alone = answers(loaded.run(requests))
        for name, draft in drafts.items():
            with load(engine, config, replace(draft, drafted_tokens=3), artifact_dir) as loaded:
                found = answers(loaded.run(requests))
                assert_same_outputs(found, alone, name)

    def test_a_long_prompt_is_read_in_several_passes(
        self, engine: CpuEngine, config: EngineConfig, drafts: Mapping[str, Speculation], artifact_dir: str
    ) -> None:
        long = Prompt(prompt_id="long", prompt_class="contract", text="abcdefghij" * 10)
        requests = arrivals([long], max_output_tokens=12, ignore_eos=True)
        with load(engine, config, NO_SPECULATION, artifact_dir) as loaded:
            expected = answers(loaded.run(requests))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(model, "PREFILL_ROWS", 32)
            patch.setattr(eagle, "PREFILL_ROWS", 32)
            for name, draft in {"none": NO_SPECULATION, **drafts}.items():
                k = 0 if draft.is_baseline else 3
                with load(engine, config, replace(draft, drafted_tokens=k), artifact_dir) as loaded:
                    assert_same_outputs(answers(loaded.run(requests)), expected, name)


class TestCpuEngineInFp32(TestCpuEngine):
    """The numerics of machines without FBGEMM."""

    weight_format = "fp32"
