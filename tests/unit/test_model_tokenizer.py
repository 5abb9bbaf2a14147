"""Tokenizers, chat templates, and whether two models share their tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuner.errors import ModelError, TokenizerMismatchError
from tuner.models.tokenizer import ChatTokenizer, check_same_tokenizer
from tuner.records import Message, Prompt

CASES = Path(__file__).parents[1] / "data" / "cases"
DEFINITION: dict[str, Any] = json.loads((CASES / "B1" / "pair_ok" / "target" / "tokenizer.json").read_text())
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}return{% endif %}"
)


def a_folder(
    path: Path, definition: dict[str, Any] = DEFINITION, template: str | None = None, **config: object
) -> Path:
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_text(json.dumps(definition))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    return path


def with_vocabulary(**changes: int) -> dict[str, Any]:
    model = {**DEFINITION["model"], "vocab": {**DEFINITION["model"]["vocab"], **changes}}
    return {**DEFINITION, "model": model}


def a_conversation(*contents: str) -> Prompt:
    messages = tuple(Message(role="user", content=content) for content in contents)
    return Prompt(prompt_id="p", prompt_class="c", messages=messages)


def a_text(text: str) -> Prompt:
    return Prompt(prompt_id="p", prompt_class="c", text=text)


def rendered(tokenizer: ChatTokenizer, prompt: Prompt) -> str:
    names = {index: token for token, index in tokenizer.vocabulary().items()}
    return " ".join(names[index] for index in tokenizer.encode(prompt))


def test_a_conversation_goes_through_the_models_own_template(tmp_path: Path) -> None:
    tokenizer = ChatTokenizer.open(a_folder(tmp_path, chat_template=TEMPLATE, bos_token="<|im_start|>"))

    assert rendered(tokenizer, a_conversation("x = y")) == "<|im_start|> ! x = y return"  # "user" is unknown: "!"


def test_a_template_file_is_taken_before_the_one_in_the_config(tmp_path: Path) -> None:
    tokenizer = ChatTokenizer.open(a_folder(tmp_path, template="def", chat_template="print"))

    assert rendered(tokenizer, a_conversation("x")) == "def"


def test_the_default_of_several_named_templates_is_taken(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "print"}, {"name": "default", "template": "def"}]

    assert rendered(ChatTokenizer.open(a_folder(tmp_path, chat_template=templates)), a_conversation("x")) == "def"


def test_special_tokens_may_be_written_as_objects(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, chat_template="{{ bos_token }}", bos_token={"content": "<|im_start|>", "special": True})

    assert rendered(ChatTokenizer.open(folder), a_conversation("x")) == "<|im_start|>"


def test_a_template_may_mark_what_is_generated_and_leave_loops(tmp_path: Path) -> None:
    template = (
        "{% for message in messages %}{% generation %}{{ message.content }} {% endgeneration %}{% break %}{% endfor %}"
    )

    assert rendered(ChatTokenizer.open(a_folder(tmp_path, template=template)), a_conversation("x", "y")) == "x"


def test_a_template_may_ask_for_the_date(tmp_path: Path) -> None:
    template = "{% if strftime_now('%Y') | int > 2000 %}def{% endif %}"

    assert rendered(ChatTokenizer.open(a_folder(tmp_path, template=template)), a_conversation("x")) == "def"


def test_a_template_refuses_a_conversation_by_an_error_of_ours(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, template="{{ raise_exception('roles must alternate') }}")

    with pytest.raises(ModelError, match="roles must alternate"):
        ChatTokenizer.open(folder).encode(a_conversation("x", "y"))


def test_a_template_cannot_reach_the_interpreter(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, template="{{ messages.__class__.__mro__ }}")

    with pytest.raises(ModelError, match="unsafe"):
        ChatTokenizer.open(folder).encode(a_conversation("x"))


def test_a_template_that_does_not_compile_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"chat_template\.jinja.*line 1"):
        ChatTokenizer.open(a_folder(tmp_path, template="{% if %}"))


def test_a_conversation_needs_a_template(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no chat template"):
        ChatTokenizer.open(a_folder(tmp_path)).encode(a_conversation("x"))


def test_plain_text_is_encoded_without_the_template(tmp_path: Path) -> None:
    tokenizer = ChatTokenizer.open(a_folder(tmp_path, template="def"))

    assert rendered(tokenizer, a_text("for x in y")) == "for x in y"


def test_decoding_leaves_special_tokens_out(tmp_path: Path) -> None:
    assert ChatTokenizer.open(a_folder(tmp_path)).decode([1, 18, 3]) == "def x"


def test_end_of_sequence_ids_come_from_all_three_files(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, eos_token="<|im_end|>")
    (folder / "config.json").write_text('{"eos_token_id": 16}')
    (folder / "generation_config.json").write_text('{"eos_token_id": [17]}')

    assert ChatTokenizer.open(folder).eos_token_ids == {16, 17, 18}


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')

    with pytest.raises(ModelError, match=r"tokenizer\.json is no tokenizer"):
        ChatTokenizer.open(tmp_path)


@pytest.mark.parametrize("pair", ["pair_ok", "pair_rows_differ"])
def test_padded_embeddings_do_not_make_tokenizers_differ(pair: str) -> None:
    check_same_tokenizer(CASES / "B1" / pair / "target", CASES / "B1" / pair / "draft")


def test_an_eagle_head_of_fewer_tokens_shares_the_tokenizer() -> None:
    check_same_tokenizer(CASES / "B3" / "nested", CASES / "B3" / "eagle3")


def test_vocabularies_of_one_size_can_differ(tmp_path: Path) -> None:
    target = a_folder(tmp_path / "target")
    draft = a_folder(tmp_path / "draft", with_vocabulary(x=4, y=3))

    with pytest.raises(TokenizerMismatchError) as caught:
        check_same_tokenizer(target, draft)

    assert "2 tokens differ" in caught.value.message
    assert "'x' is 3 in the target and 4 in the draft" in caught.value.message


def test_a_token_that_only_the_draft_has_is_shown(tmp_path: Path) -> None:
    target, draft = a_folder(tmp_path / "target"), a_folder(tmp_path / "draft", with_vocabulary(extra=19))

    with pytest.raises(TokenizerMismatchError, match="'extra' is absent in the target and 19 in the draft"):
        check_same_tokenizer(target, draft)


def test_the_fingerprint_depends_on_content_alone(tmp_path: Path) -> None:
    reordered = {name: DEFINITION[name] for name in reversed(DEFINITION)}
    first, same, other = (
        ChatTokenizer.open(a_folder(tmp_path / name, definition)).fingerprint
        for name, definition in [("a", DEFINITION), ("b", reordered), ("c", with_vocabulary(x=4, y=3))]
    )

    assert first == same
    assert first != other
