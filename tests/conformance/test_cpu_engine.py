"""The engine ``cpu`` keeps the contract of engines, with every kind of draft it has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.tiny_models import write_eagle, write_model, write_perturbed, write_shallow
from tuner.engines.cpu.engine import CpuEngine
from tuner.speculation import EngineConfig, Method, Speculation
from tuner.testing.engines import EngineContract

# Two of the contract's prompts come to this token under the seed below, two do not.
EOS_TOKEN_ID = 31
LONGEST_OUTPUT = 40


def a_draft(name: str, folder: Path, method: Method = Method.DRAFT_MODEL) -> Speculation:
    return Speculation(method=method, draft_name=name, draft_model=str(folder), drafted_tokens=1)


class TestCpuEngine(EngineContract):
    max_output_tokens = LONGEST_OUTPUT
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


class TestCpuEngineInFp32(TestCpuEngine):
    """The numerics of machines without FBGEMM."""

    weight_format = "fp32"
