"""``tuner traces``: from the command line to the file and the other database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import RunCli, run_main
from tuner.records import GREEDY, PromptTrace, Trace, TraceKind
from tuner.speculation import Method
from tuner.trace_keys import Numerics, TraceKey
from tuner.traces import TraceRecord, pack_trace
from tuner_storage import open_store

KEY = TraceKey(
    target="4f1e",
    method=Method.DRAFT_MODEL,
    draft="77aa",
    outputs="0d0d",
    sampling=GREEDY,
    max_model_len=512,
    numerics=Numerics(engine="cpu", weight_format="fp32", lossless=True),
)
PROMPT = PromptTrace(
    prompt_id="p0", prompt_class="python", max_output_tokens=4, proposed=(0, 4, 4, 2), matched=(0, 3, 1, 1)
)
PROVENANCE = {"target": "SmolLM2", "workload": "code-gen", "study": "code-gen-1a2b3c"}


def packed(drafted_tokens: int = 4, **changes: Any) -> bytes:
    trace = Trace(
        draft_name="shallow", max_drafted_tokens=drafted_tokens, prompts=(PROMPT,), kind=TraceKind.TEACHER_FORCED
    )
    return pack_trace(trace, KEY, PROVENANCE | changes)


def url(tmp_path: Path, name: str) -> str:
    return f"sqlite:///{tmp_path / name}.sqlite"


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> RunCli:
    monkeypatch.delenv("TUNER_DEBUG", raising=False)
    monkeypatch.setenv("TUNER_STORAGE", url(tmp_path, "here"))
    return lambda *arguments: run_main(monkeypatch, capsys, *arguments)


@pytest.fixture
def kept(tmp_path: Path) -> TraceRecord:
    """A trace in the database of here."""
    trace = TraceRecord.of(packed())
    store = open_store(url(tmp_path, "here"))
    store.save_trace(trace)
    store.close()
    return trace


def kept_in(tmp_path: Path, name: str) -> list[tuple[str, int]]:
    store = open_store(url(tmp_path, name))
    found = [(one.key, one.depth) for one in store.traces()]
    store.close()
    return found


def test_the_list_shows_what_each_trace_is_of(tuner: RunCli, kept: TraceRecord) -> None:
    header, row = tuner("traces", "list").stdout.splitlines()
    assert header.split("  ")[0] == "Key"
    for shown in (kept.key, "shallow", "4", "code-gen", "SmolLM2", "cpu fp32"):
        assert shown in row


def test_the_list_as_json_has_the_whole_key(tuner: RunCli, kept: TraceRecord) -> None:
    (one,) = json.loads(tuner("traces", "list", "--json").stdout)["traces"]
    assert (one["trace"], one["path_key"], one["num_speculative_tokens"]) == (KEY.key, KEY.path_key, 4)
    assert one["key"]["outputs"] == "0d0d"
    assert (one["kind"], one["prompts"], one["output_tokens"]) == ("teacher_forced", 1, 4)
    assert one["provenance"] == PROVENANCE


def test_a_database_without_traces_says_so(tuner: RunCli) -> None:
    assert tuner("traces", "list").stdout == "No trace yet; a search makes one of each draft.\n"
    assert json.loads(tuner("traces", "list", "--json").stdout) == {"traces": []}


def test_a_trace_is_carried_to_another_database(tuner: RunCli, kept: TraceRecord, tmp_path: Path) -> None:
    file, there = tmp_path / "shallow.npz", url(tmp_path, "there")
    written = tuner("traces", "export", kept.key, str(file))
    assert (written.exit_code, written.stdout) == (0, f"{file}: trace {kept.key} of shallow, up to 4 drafted tokens\n")
    read = tuner("traces", "import", str(file), "--storage", there)
    assert (read.exit_code, read.stdout) == (0, f"trace {kept.key} of shallow: kept\n")
    store = open_store(there)
    found = store.trace(kept.key)
    store.close()
    assert found is not None
    assert (found.data, found.header, found.depth) == (kept.data, kept.header, 4)


def test_both_ways_are_said_as_json(tuner: RunCli, kept: TraceRecord, tmp_path: Path) -> None:
    file = tmp_path / "shallow.npz"
    written = json.loads(tuner("traces", "export", kept.key, str(file), "--json").stdout)
    assert (written["trace"], written["path"]) == (kept.key, str(file))
    read = json.loads(tuner("traces", "import", str(file), "--json").stdout)
    assert (read["trace"], read["is_new"]) == (kept.key, False)


def test_an_imported_trace_replaces_a_shallower_one_only(tuner: RunCli, kept: TraceRecord, tmp_path: Path) -> None:
    file = tmp_path / "other.npz"
    file.write_bytes(packed(study="another, as deep"))
    assert "has it already" in tuner("traces", "import", str(file)).stdout
    file.write_bytes(packed(drafted_tokens=9))
    assert tuner("traces", "import", str(file)).stdout.endswith(": kept\n")
    assert kept_in(tmp_path, "here") == [(kept.key, 9)]


@pytest.mark.parametrize("damaged", [b"", b"not a trace", packed()[:-30]])
def test_a_file_that_is_no_good_is_named_and_nothing_is_written(tuner: RunCli, tmp_path: Path, damaged: bytes) -> None:
    file = tmp_path / "damaged.npz"
    file.write_bytes(damaged)
    said = tuner("traces", "import", str(file), "--json")
    assert (said.exit_code, said.stdout) == (2, "")
    error = json.loads(said.stderr.splitlines()[-1])["error"]
    assert error["type"] == "TraceError"
    assert error["message"].startswith(f"{file}: not a trace file")
    assert not (tmp_path / "here.sqlite").exists()


@pytest.mark.parametrize("name", ["nowhere.npz", "."])
def test_a_file_that_cannot_be_read_is_named(tuner: RunCli, tmp_path: Path, name: str) -> None:
    said = tuner("traces", "import", str(tmp_path / name))
    assert (said.exit_code, said.stdout) == (2, "")
    assert str(tmp_path) in said.stderr


def test_an_unknown_key_is_answered_with_the_nearest(tuner: RunCli, kept: TraceRecord, tmp_path: Path) -> None:
    wrong = kept.key[:-1] + "z"
    said = tuner("traces", "export", wrong, str(tmp_path / "x.npz"))
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr == f"error: no trace {wrong!r}\nhint: did you mean {kept.key!r}?\n"


def test_a_file_that_is_there_is_replaced_only_by_force(tuner: RunCli, kept: TraceRecord, tmp_path: Path) -> None:
    file = tmp_path / "notes.npz"
    file.write_text("mine")
    said = tuner("traces", "export", kept.key, str(file))
    assert (said.exit_code, file.read_text()) == (2, "mine")
    assert "--force" in said.stderr
    assert tuner("traces", "export", kept.key, str(file), "--force").exit_code == 0
    assert file.read_bytes() == kept.data


def test_a_trace_that_was_damaged_in_the_database_does_not_leave_it(tuner: RunCli, tmp_path: Path) -> None:
    store = open_store(url(tmp_path, "here"))
    damaged = TraceRecord(key="ab", path_key="cd", header=TraceRecord.of(packed()).header, depth=4, data=packed()[:-9])
    store.save_trace(damaged)
    store.close()
    said = tuner("traces", "export", "ab", str(tmp_path / "x.npz"))
    assert said.exit_code == 2
    assert "trace ab in the database: not a trace file, or a damaged one" in said.stderr
    assert not (tmp_path / "x.npz").exists()
