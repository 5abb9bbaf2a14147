from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tuner.errors import NotFoundError, SearchSpaceError
from tuner.search_space import SearchSpace, read_search_space, space_names
from tuner.speculation import NO_SPECULATION, Method, Speculation

HEADER = "name: mine\ndescription: my space\nengine: cpu\n"
NGRAM = "drafts:\n  - name: ngram\n    method: ngram\n"
SUFFIX = "drafts:\n  - name: suffix\n    method: suffix\n"


def a_space(folder: Path, text: str) -> SearchSpace:
    path = folder / "my.yaml"
    path.write_text(HEADER + text, "utf-8")
    return read_search_space(path)


def complaint(folder: Path, text: str) -> tuple[str, str]:
    with pytest.raises(SearchSpaceError) as caught:
        a_space(folder, text)
    return caught.value.message.replace(f"{folder}/", ""), caught.value.hint


def test_the_default_space_tries_three_drafts_with_1_to_12_tokens() -> None:
    space = read_search_space("cpu-default")

    assert space.choices == ("none", "ngram", "eagle", "shallow")
    assert space.draft_names == ("ngram", "eagle", "shallow")
    assert list(space.drafted_tokens) == list(range(1, 13))
    configurations = space.configurations()
    assert configurations[0] == NO_SPECULATION
    assert len({configuration.key for configuration in configurations}) == len(configurations) == 37


def test_every_shipped_space_is_readable_and_named_after_its_file() -> None:
    assert space_names() == ("cpu-default", "cpu-ngram")
    assert [read_search_space(name).name for name in space_names()] == list(space_names())


def test_a_speculation_carries_what_the_draft_says() -> None:
    space = read_search_space("cpu-default")

    assert space.speculation("eagle", 3) == Speculation(
        method=Method.EAGLE, draft_name="eagle", draft_model="smollm2-135m-eagle", drafted_tokens=3
    )
    assert space.speculation("ngram", 5) == Speculation(
        method=Method.NGRAM, draft_name="ngram", drafted_tokens=5, prompt_lookup_max=4, prompt_lookup_min=2
    )


@pytest.mark.parametrize(("draft_name", "drafted_tokens"), [("none", 0), ("none", 7), ("eagle", 0)])
def test_none_and_zero_are_the_baseline(draft_name: str, drafted_tokens: int) -> None:
    assert read_search_space("cpu-default").speculation(draft_name, drafted_tokens) is NO_SPECULATION


def test_an_unknown_draft_names_the_nearest() -> None:
    with pytest.raises(NotFoundError) as caught:
        read_search_space("cpu-default").speculation("eagel", 3)

    assert caught.value.message == "search space 'cpu-default' has no draft named 'eagel'"
    assert caught.value.hint == "did you mean 'eagle'?"


@pytest.mark.parametrize("drafted_tokens", [-1, 13])
def test_a_number_outside_the_space_is_refused(drafted_tokens: int) -> None:
    with pytest.raises(SearchSpaceError, match=f"num_speculative_tokens {drafted_tokens} is outside 1 to 12"):
        read_search_space("cpu-default").speculation("eagle", drafted_tokens)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("", (4, 2)),
        ("    prompt_lookup_max: 1\n", (1, 1)),
        ("    prompt_lookup_max: 8\n", (8, 2)),
        ("    prompt_lookup_min: 6\n", (6, 6)),
        ("    prompt_lookup_min: 3\n", (4, 3)),
        ("    prompt_lookup_max: 5\n    prompt_lookup_min: 5\n", (5, 5)),
    ],
)
def test_both_ngram_lengths_are_explicit_after_reading(tmp_path: Path, written: str, expected: tuple[int, int]) -> None:
    draft = a_space(tmp_path, NGRAM + written).drafts[0]

    assert (draft.prompt_lookup_max, draft.prompt_lookup_min) == expected


def test_every_setting_of_suffix_decoding_is_explicit_after_reading(tmp_path: Path) -> None:
    default = a_space(tmp_path, SUFFIX).speculation("suffix", 5)
    assert default == Speculation(
        method=Method.SUFFIX,
        draft_name="suffix",
        drafted_tokens=5,
        suffix_decoding_max_tree_depth=24,
        suffix_decoding_max_spec_factor=1.0,
        suffix_decoding_min_token_prob=0.1,
    )
    given = a_space(tmp_path, SUFFIX + "    suffix_decoding_min_token_prob: 3e-1\n").speculation("suffix", 5)
    assert given == replace(default, suffix_decoding_min_token_prob=0.3)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            NGRAM + "    ngram_prompt_lookup_max: 4\n",
            "my.yaml:7: drafts[0].ngram_prompt_lookup_max is not a known key",
            "did you mean 'prompt_lookup_max'?",
        ),
        (
            NGRAM + "num_speculative_token: {min: 1, max: 3}\n",
            "my.yaml:7: num_speculative_token is not a known key",
            "did you mean 'num_speculative_tokens'?",
        ),
        (
            NGRAM.replace("method: ngram", "method: ngrm"),
            "my.yaml:6: drafts[0].method: should be 'ngram', 'suffix', 'draft_model' or 'eagle', found 'ngrm'",
            "did you mean 'ngram'?",
        ),
        (NGRAM + "num_speculative_tokens: {min: 0}\n", "my.yaml:7: num_speculative_tokens.min: should be greater", ""),
        (NGRAM + "num_speculative_tokens: {min: 5, max: 3}\n", "my.yaml:7: num_speculative_tokens: min 5 is above", ""),
        (
            NGRAM + "    prompt_lookup_max: 2\n    prompt_lookup_min: 3\n",
            "my.yaml:5: drafts[0]: prompt_lookup_min 3",
            "",
        ),
        (NGRAM + "    prompt_lookup_max: 0\n", "my.yaml:7: drafts[0].prompt_lookup_max: should be greater", ""),
        (
            NGRAM + "    prompt_lookup_max: four\n",
            "my.yaml:7: drafts[0].prompt_lookup_max: should be a whole number",
            "",
        ),
        (NGRAM + "    model: x\n", "my.yaml:5: drafts[0]: method ngram has no model, but model is 'x'", ""),
        (SUFFIX + "    model: x\n", "my.yaml:5: drafts[0]: method suffix has no model, but model is 'x'", ""),
        (
            SUFFIX + "    prompt_lookup_max: 3\n",
            "my.yaml:5: drafts[0]: prompt_lookup_max and prompt_lookup_min belong to method ngram, not to suffix",
            "",
        ),
        (
            NGRAM + "    suffix_decoding_min_token_prob: 0.5\n",
            "my.yaml:5: drafts[0]: suffix_decoding_max_tree_depth, suffix_decoding_max_spec_factor and "
            "suffix_decoding_min_token_prob belong to method suffix, not to ngram",
            "",
        ),
        (
            SUFFIX + "    suffix_decoding_max_tree_depth: 1\n",
            "my.yaml:7: drafts[0].suffix_decoding_max_tree_depth: should be greater",
            "",
        ),
        (NGRAM.replace("method: ngram", "method: eagle"), "my.yaml:5: drafts[0]: method eagle needs a model", ""),
        (
            NGRAM.replace("method: ngram", "method: eagle\n    model: x\n    prompt_lookup_max: 3"),
            "my.yaml:5: drafts[0]: prompt_lookup_max and prompt_lookup_min belong to method ngram, not to eagle",
            "",
        ),
        (NGRAM.replace("name: ngram", "name: none"), "my.yaml:5: drafts[0]: the name 'none' is reserved", ""),
        (NGRAM.replace("name: ngram", "name: My Draft"), "my.yaml:5: drafts[0].name: should match pattern", ""),
        (
            NGRAM + "  - name: ngram\n    method: ngram\n",
            "my.yaml:1: the file: draft names must differ; given more than once: ngram",
            "",
        ),
        ("drafts: []\n", "my.yaml:4: drafts: should have at least 1 item, not 0", ""),
        ("", "my.yaml:1: drafts is missing", "add 'drafts'"),
    ],
)
def test_a_wrong_space_says_where_and_what(tmp_path: Path, text: str, message: str, hint: str) -> None:
    found = complaint(tmp_path, text)

    assert found[0].startswith(message)
    assert found[1].startswith(hint)


def test_drafts_of_the_command_line_replace_those_of_the_space() -> None:
    space = read_search_space("cpu-default").with_drafts(["ngram", "shallow"])

    assert space.draft_names == ("ngram", "shallow")
    assert len(space.configurations()) == 25


@pytest.mark.parametrize(
    ("reference", "name", "method", "model"),
    [
        ("models/My_Draft.v2", "my-draft-v2", Method.DRAFT_MODEL, "models/My_Draft.v2"),
        ("/heads/EAGLE3-Qwen", "eagle3-qwen", Method.EAGLE, "/heads/EAGLE3-Qwen"),
        ("eagle:/heads/head-7", "head-7", Method.EAGLE, "/heads/head-7"),
        ("draft_model:/drafts/eagle-eye", "eagle-eye", Method.DRAFT_MODEL, "/drafts/eagle-eye"),
        ("/other/eagle", "eagle-2", Method.EAGLE, "/other/eagle"),
        ("/other/none", "none-2", Method.DRAFT_MODEL, "/other/none"),
        ("/other/語", "draft", Method.DRAFT_MODEL, "/other/語"),
    ],
)
def test_a_path_on_the_command_line_becomes_a_draft(reference: str, name: str, method: Method, model: str) -> None:
    (draft,) = read_search_space("cpu-default").with_drafts([reference]).drafts

    assert (draft.name, draft.method, draft.model) == (name, method, model)


def test_ngram_on_the_command_line_has_both_lengths() -> None:
    space = read_search_space("cpu-default").with_drafts(["shallow"]).with_drafts(["ngram"])

    assert space.speculation("ngram", 1).prompt_lookup_max == 4
    assert space.speculation("ngram", 1).prompt_lookup_min == 2


def test_suffix_on_the_command_line_has_all_its_settings() -> None:
    (draft,) = read_search_space("cpu-default").with_drafts(["suffix"]).drafts

    assert (draft.name, draft.method, draft.suffix_decoding_max_tree_depth) == ("suffix", Method.SUFFIX, 24)


@pytest.mark.parametrize("reference", ["none", " "])
def test_no_speculation_is_not_a_draft_to_ask_for(reference: str) -> None:
    with pytest.raises(SearchSpaceError, match="no speculation is always tried"):
        read_search_space("cpu-default").with_drafts([reference])


def test_the_key_depends_on_what_is_tried_and_not_on_how_it_is_described(tmp_path: Path) -> None:
    one = a_space(tmp_path, NGRAM)
    same = SearchSpace(name="other", description="else", engine="cpu", drafts=one.drafts)

    assert one.key == same.key
    assert one.key != a_space(tmp_path, NGRAM + "    prompt_lookup_max: 3\n").key


def test_an_unknown_space_names_the_nearest() -> None:
    with pytest.raises(NotFoundError) as caught:
        read_search_space("cpu-defualt")

    assert str(caught.value) == "no search space named 'cpu-defualt'\ndid you mean 'cpu-default'?"


def test_a_path_that_does_not_exist_is_called_a_file() -> None:
    with pytest.raises(NotFoundError, match=r"no such search space file: absent\.yaml"):
        read_search_space("./absent.yaml")
