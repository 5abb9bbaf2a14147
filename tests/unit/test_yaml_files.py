from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from tuner.errors import SearchSpaceError, WorkloadError
from tuner.yaml_files import Number, WholeNumber, plain_value, read_yaml, validate

I1 = Path(__file__).parents[1] / "data" / "cases" / "I1" / "search.yaml"


class Limits(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: WholeNumber = Field(ge=1, description="most tokens, 1 or more")
    rate: Number = Field(0.5, gt=0, allow_inf_nan=False, description="rate above 0")


class Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="its name")
    limits: tuple[Limits, ...] = Field((), description="its limits")


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "my.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def complaint(folder: Path, text: str | bytes) -> tuple[str, str]:
    """Message and hint, with the folder's name taken out of the message."""
    with pytest.raises(WorkloadError) as caught:
        validate(read_yaml(write(folder, text), WorkloadError), Document, WorkloadError)
    return caught.value.message.replace(f"{folder}/", ""), caught.value.hint


def test_exponents_are_numbers_wherever_a_number_is_expected() -> None:
    data = read_yaml(I1, SearchSpaceError).data

    assert data["parameters"]["posterior_threshold"] == {"type": "float", "low": 0.001, "high": 0.1, "log": True}
    assert data["timeout_s"] == 1000.0
    assert data["max_error_rate"] == 0.01
    assert data["n_trials"] == 2


def test_an_exponent_may_be_a_whole_number(tmp_path: Path) -> None:
    document = read_yaml(write(tmp_path, "name: x\nlimits: [{max_tokens: 1e4, rate: 1E-2}]"), WorkloadError)

    limits = validate(document, Document, WorkloadError).limits[0]

    assert (limits.max_tokens, type(limits.max_tokens), limits.rate) == (10_000, int, 0.01)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E4", 10_000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("1_000", 1_000),
        ("-12", -12),
        ("+1.5e+2", 150.0),
        ("0x10", 16),
        ("010", 10),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("yes", "yes"),
        ("off", "off"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("1.2.3", "1.2.3"),
        ("e5", "e5"),
        ("smollm2-135m", "smollm2-135m"),
    ],
)
def test_a_plain_word_means_what_people_expect(text: str, value: object) -> None:
    found = plain_value(text)

    assert found == value
    assert type(found) is type(value)


def test_a_quoted_number_is_text(tmp_path: Path) -> None:
    assert read_yaml(write(tmp_path, "name: '1e3'"), WorkloadError).data == {"name": "1e3"}


def test_every_key_and_item_keeps_its_line(tmp_path: Path) -> None:
    document = read_yaml(write(tmp_path, "# first\nname: x\nlimits:\n  - max_tokens: 1\n    rate: 2\n"), WorkloadError)

    assert document.lines == {
        (): 1,
        ("name",): 2,
        ("limits",): 3,
        ("limits", 0): 4,
        ("limits", 0, "max_tokens"): 4,
        ("limits", 0, "rate"): 5,
    }
    assert document.line_of(("limits", 0, "absent")) == 4


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "my.yaml is empty", "write `key: value` lines"),
        ("- a\n- b\n", "my.yaml does not hold a mapping", "write `key: value` lines"),
        ("name: x\nname: y\n", "my.yaml:2: the key 'name' a second time, first on line 1 is not allowed", "remove one"),
        ("name: 'x\n", "my.yaml:2: not valid YAML: found unexpected end of stream", "check indentation and quotes"),
        ("name: x\n limits: 3\n", "my.yaml:2: not valid YAML", "check indentation and quotes"),
        ("name: x\n---\nname: y\n", "my.yaml:2: not valid YAML: but found another document", "check indentation"),
        ("name: !!python/name:os.system x\n", "my.yaml:1: the tag tag:yaml.org,2002:python/name:os.system", "remove"),
        ("name: &a [1]\nlimits: *a\n", "my.yaml:1: an alias of a list or mapping is not allowed", "write it out"),
        ("name: *a\n", "my.yaml:1: not valid YAML: found undefined alias 'a'", "check"),
        ("? [a, b]\n: x\n", "my.yaml:1: a key that is a list or mapping is not allowed", "write a plain key"),
        (b"name: caf\xe9\n", "my.yaml is not UTF-8 text", "save it as UTF-8"),
        ("name: a\x00b\n", "my.yaml: not valid YAML", "remove the character"),
    ],
)
def test_a_file_that_is_not_a_plain_mapping_says_where(
    tmp_path: Path, text: str | bytes, message: str, hint: str
) -> None:
    found = complaint(tmp_path, text)

    assert found[0].startswith(message)
    assert found[1].startswith(hint)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("nmae: x\nname: y\n", "my.yaml:1: nmae is not a known key", "did you mean 'name'?"),
        ("name: x\nzzz: y\n", "my.yaml:2: zzz is not a known key", "known: name, limits"),
        ("limits: []\n", "my.yaml:1: name is missing", "add 'name': its name"),
        ("name: 3\n", "my.yaml:1: name: should be text, found 3", "put it in quotes"),
        ("name: x\nlimits: 4\n", "my.yaml:2: limits: should be a list, [value, …], found 4", "its limits"),
        (
            "name: x\nlimits:\n  - max_tokens: 0\n",
            "my.yaml:3: limits[0].max_tokens: should be greater than or equal to 1, found 0",
            "most tokens, 1 or more",
        ),
        (
            "name: x\nlimits:\n  - max_tokens: true\n",
            "my.yaml:3: limits[0].max_tokens: should be a number, not true, found True",
            "most tokens, 1 or more",
        ),
        (
            "name: x\nlimits:\n  - max_tokens: many\n",
            "my.yaml:3: limits[0].max_tokens: should be a whole number, found 'many'",
            "most tokens, 1 or more",
        ),
        (
            "name: x\nlimits:\n  - max_tokens: 1\n    rate: .nan\n",
            "my.yaml:4: limits[0].rate: should be a finite number, found nan",
            "rate above 0",
        ),
        (
            "name: x\nlimits:\n  - max_tokens: 1\n    max_token: 2\n",
            "my.yaml:4: limits[0].max_token is not a known key",
            "did you mean 'max_tokens'?",
        ),
    ],
)
def test_a_wrong_value_names_file_line_field_and_remedy(tmp_path: Path, text: str, message: str, hint: str) -> None:
    assert complaint(tmp_path, text) == (message, hint)


def test_several_faults_are_told_at_once_in_file_order(tmp_path: Path) -> None:
    message, hint = complaint(tmp_path, "nmae: x\nlimits:\n  - max_tokens: 0\n")

    assert message.splitlines() == [
        "my.yaml:1: name is missing (add 'name': its name)",
        "my.yaml:1: nmae is not a known key (did you mean 'name'?)",
        "my.yaml:3: limits[0].max_tokens: should be greater than or equal to 1, found 0 (most tokens, 1 or more)",
    ]
    assert hint == "correct these lines of my.yaml"


def test_a_missing_file_is_an_error_of_the_kind_asked_for(tmp_path: Path) -> None:
    with pytest.raises(SearchSpaceError, match=r"absent\.yaml cannot be read: No such file"):
        read_yaml(tmp_path / "absent.yaml", SearchSpaceError)


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    data: dict[str, Any] = read_yaml(write(tmp_path, b"\xef\xbb\xbfname: x\r\n"), WorkloadError).data

    assert data == {"name": "x"}
