"""The help of every command, and what errors look like, as text.

After a wanted change: ``TUNER_RENEW_TEXTS=1 python -m pytest tests/unit/test_cli_texts.py``, and read the diff.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import TEXTS, RunCli, Said, check_text, commands, run_main
from tuner.cli import main as cli_main
from tuner.errors import OutOfDeviceMemoryError
from tuner.objective import OBJECTIVES
from tuner.redact import hide_passwords
from tuner.samplers import SAMPLER_NAMES

ROOT = Path(__file__).parents[2]
DISGUISED = ("--objective", "tpot_ms", "--objective", "output_tokens_per_s")
COMMANDS = tuple(commands())


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCli:
    monkeypatch.delenv("TUNER_DEBUG", raising=False)
    return lambda *arguments: run_main(monkeypatch, capsys, *arguments)


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'studies.sqlite'}"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_is_as_kept(tuner: RunCli, words: tuple[str, ...]) -> None:
    said = tuner(*words, "--help")
    assert (said.exit_code, said.stderr) == (0, "")
    check_text("-".join(("help", *words)), said.stdout)


def test_no_kept_help_is_left_over() -> None:
    kept = {path.stem for path in TEXTS.glob("help*.txt")}
    assert kept == {"-".join(("help", *words)) for words in COMMANDS}


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    missing = [words for words in COMMANDS if words and f"`tuner {' '.join(words)}" not in text]
    assert missing == []


def test_the_help_of_a_search_names_every_sampler_and_objective(tuner: RunCli) -> None:
    words = {word.strip(".,;:") for word in tuner("search", "--help").stdout.split()}
    objectives = {name.rpartition("_p")[0] if name.endswith(("p50", "p90", "p99")) else name for name in OBJECTIVES}
    assert {*SAMPLER_NAMES, *objectives} <= words


def test_every_option_of_a_search_is_documented(tuner: RunCli) -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    options = {word.strip(",.") for word in tuner("search", "--help").stdout.split() if word.startswith("--")}
    assert {option for option in options if f"`{option}" not in text} == {"--help"}


@pytest.mark.parametrize(
    ("name", "arguments", "exit_code"),
    [
        ("unknown-command", ("serch",), 2),
        ("missing-workload", ("search",), 2),
        ("unknown-workload", ("search", "--workload", "code-jen"), 2),
        ("unknown-space", ("search", "--workload", "code-gen", "--space", "cpu-defualt"), 2),
        ("unknown-objective", ("search", "--workload", "code-gen", "--objective", "e2e"), 2),
        ("disguised-objectives", ("search", "-w", "code-gen", *DISGUISED), 2),
        ("unknown-sampler", ("search", "--workload", "code-gen", "--sampler", "tep"), 2),
        ("no-trials", ("search", "--workload", "code-gen", "--trials", "0"), 2),
    ],
)  # fmt: skip
def test_errors_say_what_is_wrong_and_what_to_do(
    tuner: RunCli, name: str, arguments: tuple[str, ...], exit_code: int
) -> None:
    said = tuner(*arguments)
    assert (said.exit_code, said.stdout) == (exit_code, "")
    check_text(f"error-{name}", said.stderr)


def test_with_json_an_error_is_one_object_on_stderr_and_stdout_is_empty(tuner: RunCli) -> None:
    said = tuner("workloads", "show", "code-jen", "--json")
    assert (said.exit_code, said.stdout) == (2, "")
    error = json.loads(said.stderr.splitlines()[-1])["error"]
    assert error == {
        "type": "NotFoundError",
        "message": "no workload named 'code-jen'",
        "hint": "did you mean 'code-gen'?",
        "exit_code": 2,
    }


def test_with_json_a_command_line_that_cannot_be_read_is_an_error_object_too(tuner: RunCli) -> None:
    said = tuner("search", "--quik", "--json")
    assert (said.exit_code, said.stdout) == (2, "")
    error = json.loads(said.stderr)["error"]
    assert (error["type"], error["exit_code"]) == ("UsageError", 2)
    assert "--quik" in error["message"]


def failing_with(error: Exception) -> object:
    def get_command(_app: object) -> object:
        def command(**_settings: object) -> None:
            raise error

        return command

    return get_command


@pytest.fixture
def failing(tuner: RunCli, monkeypatch: pytest.MonkeyPatch) -> RunCli:
    def run(error: Exception, *arguments: str) -> Said:
        monkeypatch.setattr(cli_main.typer.main, "get_command", failing_with(error))
        return tuner(*arguments)

    return run


def test_our_own_errors_end_with_their_exit_code(failing: RunCli) -> None:
    said = failing(OutOfDeviceMemoryError("2 GiB needed, 1 GiB free on cpu", "lower max_num_seqs"), "search")
    assert (said.exit_code, said.stdout) == (3, "")
    assert said.stderr == "error: 2 GiB needed, 1 GiB free on cpu\nhint: lower max_num_seqs\n"


def test_an_unforeseen_error_is_one_line_and_exit_code_70(failing: RunCli) -> None:
    said = failing(ValueError("unexpected\nvalue"), "search")
    assert (said.exit_code, said.stdout) == (70, "")
    assert said.stderr == (
        "internal error: ValueError: unexpected value (please report it; TUNER_DEBUG=1 shows where it happened)\n"
    )


def test_debugging_shows_where_an_error_came_from(failing: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        monkeypatch.setenv("TUNER_DEBUG", "1")
        failing(ValueError("unexpected"), "search")

    with pytest.raises(ValueError, match="unexpected"):
        run()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see postgresql://ann:s3cret@db.example/tuner", "see postgresql://ann:***@db.example/tuner"),
        ("postgresql+psycopg://ann:p@ss:w/rd@[::1]:5432/x", "postgresql+psycopg://ann:***@[::1]:5432/x"),
        ("postgresql://:only@host", "postgresql://:***@host"),
        ("http://localhost:8000/v1 and a@b.example", "http://localhost:8000/v1 and a@b.example"),
        ("sqlite:////data/tuner.db", "sqlite:////data/tuner.db"),
    ],
)
def test_passwords_in_addresses_are_hidden(text: str, shown: str) -> None:
    assert hide_passwords(text) == shown


def test_a_password_never_reaches_an_error_message(tuner: RunCli) -> None:
    said = tuner("studies", "--storage", "postgresql://ann:s3cret@localhost:1/nowhere")
    assert said.exit_code == 4
    assert "s3cret" not in said.stderr
    assert "Traceback" not in said.stderr


def test_an_empty_database_lists_no_study(tuner: RunCli, monkeypatch: pytest.MonkeyPatch, database: str) -> None:
    monkeypatch.setenv("TUNER_STORAGE", database)
    assert json.loads(tuner("studies", "--json").stdout) == {"studies": []}
    assert "tuner search" in tuner("studies").stdout


def test_a_named_database_that_is_not_there_is_an_error(tuner: RunCli, database: str) -> None:
    said = tuner("studies", "--storage", database)
    assert (said.exit_code, said.stdout) == (4, "")


def test_a_reader_that_goes_away_gets_no_traceback() -> None:
    program = f"{sys.executable} -m tuner workloads show code-gen --prompts --json | head -c 1"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "storage")))}
    ended = subprocess.run(["sh", "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("{", "")


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_ctrl_c_ends_any_command_with_exit_code_130(
    tuner: RunCli, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    def interrupted(**_settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tuner.settings.read_settings", interrupted)
    said = tuner("studies", *form)
    assert (said.exit_code, said.stdout) == (130, "")
    assert "Traceback" not in said.stderr
