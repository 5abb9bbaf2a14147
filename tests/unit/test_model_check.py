"""A look at a model folder finds what would fail later."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from tests.support.tiny_gguf import TinyGguf, tokens
from tuner.errors import ModelError
from tuner.models.check import check_model, check_pair
from tuner.models.fingerprint import model_fingerprint
from tuner.models.gguf import write_model_folder
from tuner.models.weights import read_tensor_infos

CASES = Path(__file__).parents[1] / "data" / "cases"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    write_model_folder(TinyGguf(is_tied=False).write(tmp_path / "tiny.gguf"), path)
    return path


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def problems(folder: Path) -> str:
    return "\n".join(problem.message for problem in check_model(folder).problems)


def test_a_whole_model_has_no_problems(folder: Path) -> None:
    report = check_model(folder)

    stored = load_file(folder / "model.safetensors")
    assert report.problems == ()
    assert report.num_parameters == sum(value.size for value in stored.values())
    assert report.weight_bytes == sum(value.nbytes for value in stored.values())
    assert report.dtypes == ("F16", "F32")
    assert report.num_tokens == len(tokens())


def test_a_missing_tensor_is_named(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors")

    assert "1 tensors are missing: model.layers.1.mlp.up_proj.weight" in problems(folder)


def test_an_untied_model_without_output_matrix_is_found_without_an_index(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors")

    assert "1 tensors are missing: lm_head.weight" in problems(folder)


def test_shapes_that_contradict_the_config_are_shown(folder: Path) -> None:
    change_config(folder, intermediate_size=100)

    assert "6 tensors do not fit config.json" in problems(folder)
    assert "mlp.gate_proj.weight is (96, 64), not (100, 64)" in problems(folder)


def test_a_tokenizer_larger_than_the_embedding_is_a_problem(folder: Path) -> None:
    change_config(folder, vocab_size=100)

    assert f"the tokenizer has the id {len(tokens()) - 1}, the embedding only 100 rows" in problems(folder)


def test_weights_cut_short_are_found_from_the_header(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-10])

    assert "model.safetensors is cut short" in problems(folder)


@pytest.mark.parametrize("content", [b"", b"12", b"\xff" * 64, (2).to_bytes(8, "little") + b"[]"])
def test_a_file_of_another_kind_is_no_safetensors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)

    with pytest.raises(ModelError, match=r"x\.safetensors is no safetensors file"):
        read_tensor_infos(tmp_path / "x.safetensors")


def test_a_model_without_weights_is_usable_only_by_its_config() -> None:
    target = CASES / "B1" / "pair_ok" / "target"

    assert "has no safetensors weights" in problems(target)
    assert check_model(target, with_weights=False).problems == ()


def test_every_problem_is_said_at_once() -> None:
    report = check_model(CASES / "B3" / "sparse")

    assert [problem.message.split()[1] for problem in report.problems] == ["lacks", "has"]


def test_a_pair_that_fits_gets_no_remark() -> None:
    assert check_pair(CASES / "B1" / "pair_ok" / "target", CASES / "B1" / "pair_ok" / "draft") == ()


def test_different_padding_is_a_remark_with_both_numbers() -> None:
    pair = CASES / "B1" / "pair_rows_differ"

    (remark,) = check_pair(pair / "target", pair / "draft")

    assert "40 rows" in remark
    assert "32" in remark
    assert "padding" in remark


def test_an_eagle_head_fits_its_target() -> None:
    assert check_pair(CASES / "B3" / "nested", CASES / "B3" / "eagle3") == ()


def test_a_shipped_head_fits_only_targets_of_its_size(folder: Path, tmp_path: Path) -> None:
    head = tmp_path / "head"
    head.mkdir()
    config = json.loads((folder / "config.json").read_text())
    (head / "config.json").write_text(json.dumps(config | {"model_type": "tuner_eagle", "draft_vocab_size": 16}))

    assert check_pair(folder, head) == ()
    change_config(head, hidden_size=128)
    with pytest.raises(ModelError, match="made for hidden size 128 and 266 tokens"):
        check_pair(folder, head)


def test_the_fingerprint_follows_the_content_and_not_the_place(folder: Path, tmp_path: Path) -> None:
    before = model_fingerprint(folder)
    moved = folder.rename(tmp_path / "elsewhere")

    assert model_fingerprint(moved) == before
    change_config(moved, rope_theta=1.0)
    assert model_fingerprint(moved) != before
