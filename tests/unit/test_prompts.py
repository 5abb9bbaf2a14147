from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tuner.errors import WorkloadError
from tuner.prompts import prompts_digest, read_prompts, reasons
from tuner.records import Message, Prompt

CASES = Path(__file__).parents[1] / "data" / "cases"

# As editors save it: byte-order mark, CRLF, blank lines, separators that only Unicode counts as line ends, a line of
# 200,000 characters, no newline at the end.
GOOD = "\r\n".join(
    [
        '\ufeff{"prompt": "Write a loop."}',
        "",
        '{"prompt": "naïve café 東京 🚀", "output_tokens": 16}',
        "   ",
        '{"prompt": "line one\u2028line two\u0085end"}',
        json.dumps({"prompt": "long " * 40_000}),
        '{"prompt": "tab\\tand \\\\n inside\\nreal"}',
        '{"prompt": "no newline at the end"}',
    ]
).encode()


def a_file(folder: Path, *rows: object, name: str = "mine.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def only_prompt(folder: Path, row: object) -> Prompt:
    (prompt,) = read_prompts(a_file(folder, row)).prompts
    return prompt


def asked(prompt: Prompt) -> str:
    return prompt.messages[-1].content


def complaint(folder: Path, *rows: object) -> str:
    with pytest.raises(WorkloadError) as caught:
        read_prompts(a_file(folder, *rows))
    return caught.value.message


def test_a_file_as_editors_save_it_is_read_in_full(tmp_path: Path) -> None:
    path = tmp_path / "good.jsonl"
    path.write_bytes(GOOD)

    found = read_prompts(path)

    assert [asked(prompt) for prompt in found.prompts[:3]] == [
        "Write a loop.",
        "naïve café 東京 🚀",
        "line one\u2028line two\u0085end",
    ]
    assert found.prompts[1].max_output_tokens == 16
    assert max(len(asked(prompt)) for prompt in found.prompts) == 200_000
    assert asked(found.prompts[4]) == "tab\tand \\n inside\nreal"
    assert asked(found.prompts[5]) == "no newline at the end"
    assert found.lines == (1, 3, 5, 6, 7, 8)


def test_a_gzip_file_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "good.jsonl"
    path.write_bytes(gzip.compress(GOOD))

    assert len(read_prompts(path).prompts) == 6


def test_the_first_bad_line_stops_with_its_file_and_physical_line() -> None:
    path = CASES / "H1" / "bad.jsonl"
    with pytest.raises(WorkloadError) as caught:
        read_prompts(path)

    assert caught.value.message == f"{path}:4: not an object but a list"
    assert "--skip-invalid" in caught.value.hint


def test_skipping_invalid_lines_reports_each_with_its_reason() -> None:
    found = read_prompts(CASES / "H1" / "bad.jsonl", skip_invalid=True)

    assert [asked(prompt) for prompt in found.prompts] == ["ok 1", "ok 2"]
    assert [item.line for item in found.skipped] == [4, 5, 6, 7, 8]
    assert reasons(found.skipped) == {
        "not an object but a list": 1,
        "not valid JSON": 1,
        "no prompt column": 1,
        "prompt is a number, not text": 1,
        "prompt is empty": 1,
    }
    assert found.skipped[2].detail == "columns found: promt; did you mean 'prompt'?"


@pytest.mark.parametrize("name", ["empty.jsonl", "blank.jsonl"])
@pytest.mark.parametrize("skip_invalid", [False, True])
def test_a_file_without_rows_says_so(name: str, skip_invalid: bool) -> None:
    path = CASES / "H9" / name
    with pytest.raises(WorkloadError) as caught:
        read_prompts(path, skip_invalid=skip_invalid)

    assert caught.value.message == f"{path} holds no usable prompt: the file is empty or all its lines are blank"


@pytest.mark.parametrize("skip_invalid", [False, True])
def test_a_file_without_a_prompt_column_lists_the_columns_found(skip_invalid: bool) -> None:
    with pytest.raises(WorkloadError) as caught:
        read_prompts(CASES / "H9" / "columns.jsonl", skip_invalid=skip_invalid)

    assert caught.value.message.endswith("no prompt column; columns found: article, highlights")


def test_a_csv_file_lists_its_columns() -> None:
    path = CASES / "H9" / "header_only.csv"
    with pytest.raises(WorkloadError) as caught:
        read_prompts(path)

    assert caught.value.message == (
        f"{path}:1: CSV (a BurstGPT trace?), not JSON Lines; columns found: TIMESTAMP, ContextTokens, GeneratedTokens"
    )


def test_nothing_usable_counts_the_reasons(tmp_path: Path) -> None:
    path = a_file(tmp_path, {"prompt": ""}, {"prompt": " "}, {"a": 1}, {"b": 2})
    with pytest.raises(WorkloadError) as caught:
        read_prompts(path, skip_invalid=True)

    assert caught.value.message == (
        f"{path} holds no usable prompt: 2 × prompt is empty; 2 × no prompt column; columns found: prompt, a, b"
    )


@pytest.mark.parametrize("column", ["prompt", "text", "question", "instruction", "input"])
def test_a_text_column_is_one_message_of_the_user(tmp_path: Path, column: str) -> None:
    prompt = only_prompt(tmp_path, {column: "Say hello."})

    assert prompt == Prompt(
        prompt_id="mine-1", prompt_class="default", messages=(Message(role="user", content="Say hello."),)
    )


def test_an_instruction_is_followed_by_its_input(tmp_path: Path) -> None:
    assert asked(only_prompt(tmp_path, {"instruction": "Sum up.", "input": "1 2 3"})) == "Sum up.\n\n1 2 3"
    assert asked(only_prompt(tmp_path, {"instruction": "Sum up.", "input": ""})) == "Sum up."


def test_raw_text_is_continued_without_a_chat_template(tmp_path: Path) -> None:
    prompt = only_prompt(tmp_path, {"text": "def fib(n):\n", "raw": True})

    assert prompt.text == "def fib(n):\n"
    assert prompt.messages == ()


def test_white_space_around_a_prompt_is_kept(tmp_path: Path) -> None:
    assert asked(only_prompt(tmp_path, {"prompt": "\n\n  def neg(x):\n"})) == "\n\n  def neg(x):\n"


def test_a_conversation_ends_with_the_user(tmp_path: Path) -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Name a prime."},
    ]
    answer = {"role": "assistant", "content": "2"}

    with_answer = only_prompt(tmp_path, {"messages": [*turns, answer]})

    assert [(message.role, message.content) for message in with_answer.messages] == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "Name a prime."),
    ]


def test_spec_bench_rows_give_the_first_turn_and_the_category(tmp_path: Path) -> None:
    row = {"question_id": 81, "category": "writing", "turns": ["Write a post.", "Now shorter."]}

    assert only_prompt(tmp_path, row) == Prompt(
        prompt_id="81", prompt_class="writing", messages=(Message(role="user", content="Write a post."),)
    )


@pytest.mark.parametrize("column", ["max_output_tokens", "output_tokens", "max_tokens"])
def test_a_row_may_have_a_cap_of_its_own(tmp_path: Path, column: str) -> None:
    assert only_prompt(tmp_path, {"id": "a", "class": "c", "prompt": "x", column: 12}).max_output_tokens == 12


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"prompt": ', "not valid JSON; Expecting value at column 11"),
        ("7", "not an object but a number"),
        ("null", "not an object but null"),
        ("[" * 5_000 + "]" * 5_000 + " ", "one JSON document, not one object a line (ShareGPT?)"),
        ('{"prompt": "half \\ud83d"}', "prompt holds half a surrogate pair, which is not text"),
        ('{"prompt": null}', "prompt is null, not text"),
        ('{"prompt": true}', "prompt is true or false, not text"),
        ('{"prompt": ["a"]}', "prompt is a list, not text"),
        ('{"prompt": "x", "raw": "yes"}', "raw must be true or false, not text"),
        ('{"prompt": "x", "id": 1.5}', "id is a number, not text"),
        ('{"prompt": "x", "max_tokens": 0}', "max_tokens is 0, not a whole number above 0"),
        ('{"prompt": "x", "max_tokens": true}', "max_tokens is True, not a whole number above 0"),
        ('{"prompt": "x", "max_tokens": "16"}', "max_tokens is '16', not a whole number above 0"),
        ('{"turns": []}', "turns is not a list with at least one turn"),
        ('{"turns": [" "]}', "turns[0] is empty"),
        ('{"messages": "Hi"}', "messages is text, not a list"),
        ('{"messages": []}', "messages has no message of the user"),
        ('{"messages": ["Hi"]}', "messages[0] is text, not an object"),
        ('{"messages": [{"role": "human", "content": "x"}]}', "messages[0].role is 'human', not system, user or"),
        ('{"messages": [{"role": "user", "content": 5}]}', "messages[0].content is a number, not text"),
        ('{"messages": [{"role": "user", "content": "x"}], "raw": true}', "raw goes with a text column"),
    ],
)
def test_each_fault_of_a_row_has_its_reason(tmp_path: Path, row: str, reason: str) -> None:
    assert complaint(tmp_path, row).startswith(f"{tmp_path}/mine.jsonl:1: {reason}")


def test_a_row_nested_too_deeply_is_a_fault_of_that_line(tmp_path: Path) -> None:
    deep = '{"prompt": ' + "[" * 200_000 + "]" * 200_000 + "}"

    assert complaint(tmp_path, {"prompt": "fine"}, deep).startswith(f"{tmp_path}/mine.jsonl:2: not usable JSON")


def test_bytes_that_are_not_utf8_name_the_line_and_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"prompt": "ok"}\n{"prompt": "caf\xe9"}\n')

    with pytest.raises(WorkloadError, match=r"latin\.jsonl:2: not UTF-8; at byte 16 of the line"):
        read_prompts(path)


def test_a_utf16_file_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "wide.jsonl"
    path.write_text('{"prompt": "x"}\n', "utf-16")

    with pytest.raises(WorkloadError, match=r"wide\.jsonl is UTF-16"):
        read_prompts(path)


def test_a_damaged_gzip_file_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress(GOOD)[:-200])

    with pytest.raises(WorkloadError, match=r"cut\.jsonl\.gz is damaged"):
        read_prompts(path)


def test_a_repeated_id_names_both_lines(tmp_path: Path) -> None:
    message = complaint(tmp_path, {"id": "a", "prompt": "x"}, "", {"id": "a", "prompt": "y"})

    assert message == f"{tmp_path}/mine.jsonl:3: id repeated; 'a' is first on line 1"


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"id": "1", "conversations": [{"from": "human", "value": "Hi"}]}, "ShareGPT"),
        ({"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions", "body": {}}, "OpenAI batch"),
        ({"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [1]}, "Mooncake trace"),
    ],
)
@pytest.mark.parametrize("skip_invalid", [False, True])
def test_rows_of_another_format_are_refused_by_name(
    tmp_path: Path, row: dict[str, object], name: str, skip_invalid: bool
) -> None:
    with pytest.raises(WorkloadError) as caught:
        read_prompts(a_file(tmp_path, row), skip_invalid=skip_invalid)

    assert caught.value.message.startswith(f"{tmp_path}/mine.jsonl:1: a row of the {name} format, which is not read")


@pytest.mark.parametrize("text", ['[{"conversations": []}]', "[\n{}\n]", '{\n"prompt": "x"\n}'])
def test_a_json_document_is_not_json_lines(tmp_path: Path, text: str) -> None:
    assert "one JSON document, not one object a line" in complaint(tmp_path, text)


def test_the_digest_depends_on_what_is_asked_and_not_on_the_file(tmp_path: Path) -> None:
    row = {"id": "a", "class": "c", "prompt": "x"}
    one = read_prompts(a_file(tmp_path, row, name="one.jsonl")).prompts
    two = read_prompts(a_file(tmp_path, "", {**row, "source": "me"}, name="two.jsonl")).prompts
    other = read_prompts(a_file(tmp_path, {**row, "prompt": "y"}, name="three.jsonl")).prompts

    assert prompts_digest(one) == prompts_digest(two)
    assert prompts_digest(one) != prompts_digest(other)


def test_a_file_that_is_not_text_is_named_and_not_shown(tmp_path: Path) -> None:
    text = complaint(tmp_path, '\0\0{"F32": [0, 1]}, binary')
    assert "is not text" in text
    assert "F32" not in text


def test_columns_are_listed_briefly_however_many_and_long_they_are(tmp_path: Path) -> None:
    long_line = "a" * 200_000 + ",b" * 40
    assert len(complaint(tmp_path, long_line)) < 1000
    many = {f"column {number} {'x' * 100}": 1 for number in range(50)}
    assert len(complaint(tmp_path, json.dumps(many))) < 2000
