"""Acceptance traces as files: what they are of, that they come back exactly, and that bad ones are never used."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.observed import a_prompt
from tuner.errors import TraceError
from tuner.records import GREEDY, WORST_RANK, PromptTrace, Sampling, TargetOutput, Trace, TraceKind
from tuner.speculation import Method, Speculation
from tuner.trace_keys import FORMAT_VERSION, Numerics, TraceKey, decisive, outputs_key, rule_of
from tuner.traces import TraceRecord, cut_to, pack_trace, share_of_near_ties, unpack_trace

WARM = Sampling(temperature=0.7, top_p=0.9, seed=3)


def a_key(**changes: Any) -> TraceKey:
    key = TraceKey(
        target="4f1e",
        method=Method.DRAFT_MODEL,
        draft="77aa",
        outputs="0d0d",
        sampling=WARM,
        max_model_len=512,
        numerics=Numerics(engine="cpu", weight_format="fp32", lossless=True),
    )
    return replace(key, **changes)


def a_prompt_trace(prompt_id: str = "größe", **changes: Any) -> PromptTrace:
    trace = PromptTrace(
        prompt_id=prompt_id,
        prompt_class="python",
        max_output_tokens=8,
        proposed=(0, 4, 4, 2),
        matched=(0, 3, 1, 1),
        ranks=(0, 0, WORST_RANK, 3),
        target_probabilities=(1.0, 0.1 + 0.2, 0.5, 1e-300),
        draft_probabilities=(0.0, 0.25, 1.0, 0.125),
        top2_gaps=(0.5, 2.0, 0.001, float("inf")),
    )
    return replace(trace, **changes)


def a_trace(*prompts: PromptTrace, **changes: Any) -> Trace:
    trace = Trace(
        draft_name="shallow",
        max_drafted_tokens=4,
        prompts=prompts or (a_prompt_trace(), a_prompt_trace("short", proposed=(0,), matched=(0,), **BARE)),
        kind=TraceKind.TEACHER_FORCED,
        sampling=WARM,
    )
    return replace(trace, **changes)


BARE: dict[str, Any] = {"ranks": (), "target_probabilities": (), "draft_probabilities": (), "top2_gaps": ()}
LOGGED = a_trace(a_prompt_trace(unknown=(2, 3), **BARE), kind=TraceKind.LOGGED)
NOTHING = a_trace(a_prompt_trace(proposed=(), matched=(), **BARE))


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_equal_keys_are_equal_and_every_field_makes_another() -> None:
    changes: list[dict[str, Any]] = [
        {"target": "other"},
        {"method": Method.EAGLE},
        {"draft": None},
        {"outputs": "other"},
        {"sampling": GREEDY},
        {"max_model_len": 513},
        {"numerics": Numerics(engine="cpu", weight_format="int8", lossless=False)},
        {"rule": {"prompt_lookup_max": 4}},
        {"rule": {"prompt_lookup_max": 5}},
        {"source": "log"},
        {"format_version": FORMAT_VERSION + 1},
    ]
    assert a_key().key == a_key().key
    assert len({a_key(**change).key for change in ({}, *changes)}) == 1 + len(changes)
    assert len({a_key(**change).path_key for change in ({}, *changes)}) == len(changes)


def test_other_numerics_leave_the_path_the_same() -> None:
    other = a_key(numerics=Numerics(engine="vllm", weight_format="bf16", lossless=None))
    assert other.key != a_key().key
    assert other.path_key == a_key().path_key
    assert a_key().differences(other) == {
        "numerics.engine": ("cpu", "vllm"),
        "numerics.weight_format": ("fp32", "bf16"),
        "numerics.lossless": (True, None),
    }


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"weight_format": "fp16-packed", "lossless": "yes"}, ("fp16-packed", True)),
        ({"weight_format": "int8", "lossless": "no"}, ("int8", False)),
        ({"threads": "4"}, ("auto", None)),
    ],
)
def test_numerics_are_those_that_the_engine_resolved(
    environment: Mapping[str, str], expected: tuple[str, bool | None]
) -> None:
    numerics = Numerics.of("cpu", environment, "auto")
    assert (numerics.weight_format, numerics.lossless) == expected


def test_the_rule_is_every_setting_that_decides_what_is_proposed() -> None:
    ngram = Speculation(method=Method.NGRAM, draft_name="a", drafted_tokens=3, prompt_lookup_max=4, prompt_lookup_min=2)
    assert rule_of(ngram) == {"prompt_lookup_max": 4, "prompt_lookup_min": 2}
    assert rule_of(replace(ngram, draft_name="b", drafted_tokens=9)) == rule_of(ngram)
    assert rule_of(Speculation(method=Method.EAGLE, draft_name="a", draft_model="/a", drafted_tokens=3)) == {}


def test_at_temperature_0_the_seed_decides_nothing() -> None:
    assert decisive(Sampling(seed=7, top_p=0.5)) == GREEDY
    assert decisive(WARM) == WARM


def an_output(prompt_id: str = "a", ids: tuple[int, ...] = (1, 2), **changes: Any) -> TargetOutput:
    return TargetOutput(prompt=a_prompt(prompt_id, **changes), token_ids=ids, max_output_tokens=8)


def test_the_order_of_the_prompts_makes_no_other_outputs() -> None:
    assert outputs_key([an_output("a"), an_output("b")]) == outputs_key([an_output("b"), an_output("a")])


@pytest.mark.parametrize(
    "other",
    [
        [an_output(ids=(1, 3))],
        [an_output("b")],
        [an_output(text="another question with the same answer")],
        [replace(an_output(), max_output_tokens=9)],
        [an_output(), an_output("b")],
        [],
    ],
)
def test_other_prompts_caps_or_answers_are_other_outputs(other: list[TargetOutput]) -> None:
    assert outputs_key(other) != outputs_key([an_output()])


# ── round trip ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "trace", [a_trace(), LOGGED, NOTHING, a_trace(prompts=())], ids=["full", "log", "empty", "none"]
)
def test_a_trace_comes_back_exactly(trace: Trace) -> None:
    key = a_key(rule={"prompt_lookup_max": 4, "min_token_prob": 0.1, "factor": 1.0})
    unpacked = unpack_trace(pack_trace(trace, key, {"study": "größe", "packages": {"torch": "2.13"}}), key)
    assert unpacked.trace == trace
    assert unpacked.key == key
    assert unpacked.key.key == key.key
    assert unpacked.provenance == {"study": "größe", "packages": {"torch": "2.13"}}


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    def prompt(number: int) -> PromptTrace:
        length = draw(st.integers(0, 6))
        cap = draw(st.integers(length, 400))
        proposed = [draw(st.integers(0, 300)) for _ in range(length)]
        matched = [draw(st.integers(0, min(one, length - place))) for place, one in enumerate(proposed)]

        def reals(most: float | None) -> tuple[float, ...]:
            one = st.floats(0, most, allow_nan=False)
            return tuple(draw(st.one_of(st.just([]), st.lists(one, min_size=length, max_size=length))))

        return PromptTrace(
            prompt_id=f"{number}{draw(st.text(max_size=3))}",
            prompt_class=draw(st.text(max_size=3)),
            max_output_tokens=cap,
            proposed=tuple(proposed),
            matched=tuple(matched),
            target_probabilities=reals(1.0),
            top2_gaps=reals(None),
        )

    return a_trace(prompts=tuple(prompt(number) for number in range(draw(st.integers(0, 3)))), max_drafted_tokens=300)


@settings(max_examples=40, deadline=None)
@given(traces())
def test_any_trace_comes_back_exactly(trace: Trace) -> None:
    assert unpack_trace(pack_trace(trace, a_key(), {})).trace == trace


def test_packing_twice_gives_the_same_bytes() -> None:
    assert pack_trace(a_trace(), a_key(), {}) == pack_trace(a_trace(), a_key(), {})


def test_a_trace_of_200_prompts_is_small() -> None:
    generator = np.random.default_rng(0)
    prompts = []
    for number in range(200):
        matched = np.minimum(generator.geometric(0.4, 256) - 1, 16)
        matched = np.minimum(matched, 256 - np.arange(256)).tolist()
        one = a_prompt_trace(str(number), max_output_tokens=256, proposed=(16,) * 256, matched=tuple(matched), **BARE)
        prompts.append(one)
    data = pack_trace(a_trace(*prompts, max_drafted_tokens=16), a_key(), {})
    assert len(data) < 40_000  # 51,200 positions


# ── bad input ─────────────────────────────────────────────────────────────────────────────────────────────────────


def refused(data: bytes, match: str, expected: TraceKey | None = None) -> str:
    with pytest.raises(TraceError, match=match) as caught:
        unpack_trace(data, expected)
    assert caught.value.hint
    with pytest.raises(TraceError):  # nothing gets past on its way into a store
        TraceRecord.of(data) if expected is None else unpack_trace(data, expected)
    return caught.value.message


def repacked(**arrays: Any) -> bytes:
    """The packed trace with other arrays in it."""
    with np.load(BytesIO(pack_trace(a_trace(), a_key(), {}))) as file:
        kept = {name: file[name] for name in file.files}
    packed = BytesIO()
    np.savez_compressed(packed, **(kept | {name.replace("_lengths", ".lengths"): one for name, one in arrays.items()}))
    return packed.getvalue()


def with_header(**changes: Any) -> bytes:
    with np.load(BytesIO(pack_trace(a_trace(), a_key(), {}))) as file:
        header = json.loads(file["header"].tobytes())
    for name, value in changes.items():
        (header if name in header else header["key"])[name] = value
    return repacked(header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8))


def test_a_repacked_trace_is_still_good() -> None:
    assert unpack_trace(repacked()).trace == a_trace()
    assert unpack_trace(with_header()).trace == a_trace()


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(share: float) -> None:
    data = pack_trace(a_trace(), a_key(), {})
    refused(data[: int(share * len(data))], "not a trace file, or a damaged one")


def test_no_single_damaged_byte_changes_a_trace_unseen() -> None:
    data = pack_trace(a_trace(), a_key(), {})
    for place in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        try:
            unpacked = unpack_trace(bytes(damaged), a_key())
        except TraceError:
            continue
        assert unpacked.trace == a_trace()  # a byte that zip files do not use


@pytest.mark.parametrize("data", [b"", b"a trace", pickle.dumps({"a": 1}), b"\x93NUMPY" + bytes(200)])
def test_what_is_no_npz_is_refused(data: bytes) -> None:
    refused(data, "not a trace file, or a damaged one")


class Touching:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_inside_is_never_loaded(tmp_path: Path) -> None:
    packed = BytesIO()
    np.savez(packed, header=np.array([Touching(tmp_path / "unpickled")], dtype=object), allow_pickle=True)
    refused(packed.getvalue(), "allow_pickle=False")
    assert not (tmp_path / "unpickled").exists()
    np.load(BytesIO(packed.getvalue()), allow_pickle=True)["header"]
    assert (tmp_path / "unpickled").exists()  # it would have been seen


def test_a_file_that_swells_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.traces._MAX_UNPACKED_BYTES", 1000)
    refused(pack_trace(a_trace(), a_key(), {}), r"unpacks to \d+ bytes")


def test_another_npz_is_refused_and_what_is_missing_is_named() -> None:
    packed = BytesIO()
    np.savez(packed, header=np.zeros(3, dtype=np.uint8), extra=np.zeros(2))
    message = refused(packed.getvalue(), "missing or unknown in it")
    assert "extra" in message
    assert "matched" in message


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (repacked(header=np.zeros(3)), "header is no text"),
        (repacked(header=np.frombuffer(b"{", dtype=np.uint8)), "is no JSON"),
        (repacked(header=np.frombuffer(b"\xff\xfe\xff", dtype=np.uint8)), "is no JSON"),
        (repacked(header=np.frombuffer(b"[]", dtype=np.uint8)), "does not say that it is one"),
        (with_header(format="another"), "does not say that it is one"),
        (with_header(format_version=FORMAT_VERSION + 1), f"version {FORMAT_VERSION + 1}, this program reads"),
        (with_header(format_version=None), "version None, this program reads"),
        (with_header(kind="guessed"), "not valid: kind:"),
        (with_header(sampling={"temperature": 0.0}), "made for Sampling"),
        (with_header(draft_name=None), "not valid: draft_name:"),
        (with_header(max_drafted_tokens=-1), "depth is -1"),
        (with_header(prompts=[]), "proposed for 0 prompts"),
        (repacked(matched=np.zeros(5)), "matched are not numbers of their kind"),
        (repacked(matched=np.zeros((5, 1), dtype=np.uint8)), "matched are not numbers of their kind"),
        (repacked(top2_gaps=np.zeros(4, dtype=np.int8)), "top2_gaps are not numbers of their kind"),
        (repacked(matched=np.zeros(4, dtype=np.uint8)), "4 matched for 2 prompts, and lengths that say otherwise"),
        (repacked(matched_lengths=np.array([6, -1])), "lengths that say otherwise"),
        (repacked(matched=np.array([0, 3, -1, 1, 0])), "'größe': matched at position 2 is -1, outside 0 to"),
        (repacked(matched=np.array([0, 3, 1, 3, 0])), "matched at position 3 is 3, outside 0 to what was proposed"),
        (repacked(proposed=np.array([0, 5, 4, 2, 0])), "proposed at position 1 is 5, outside 0 to the trace's depth"),
        (repacked(proposed=np.array([0, 2**64 - 1, 4, 2, 0], dtype=np.uint64)), "proposed at position 1 is 1.8"),
        (repacked(ranks=np.array([0, 0, WORST_RANK + 1, 3])), "ranks at position 2 is 17"),
        (repacked(target_probabilities=np.array([1, np.nan, 0.5, 0])), "target_probabilities at position 1 is nan"),
        (repacked(draft_probabilities=np.array([0, 0.25, 1.5, 0])), "draft_probabilities at position 2 is 1.5"),
        (repacked(draft_probabilities=np.array([0, -0.25, 1, 0])), "draft_probabilities at position 1 is -0.25"),
        (repacked(top2_gaps=np.array([0.5, 2.0, np.nan, 1])), "top2_gaps at position 2 is nan"),
        (repacked(unknown=np.array([1]), unknown_lengths=np.array([1, 0])), "unknown positions, which a trace of kind"),
    ],
)  # fmt: skip
def test_what_cannot_be_true_is_refused_and_named(data: bytes, match: str) -> None:
    refused(data, match)


@pytest.mark.parametrize(
    ("trace", "match"),
    [
        (a_trace(a_prompt_trace(matched=(0, 3))), "4 proposed and 2 matched"),
        (a_trace(a_prompt_trace(ranks=(0, 0))), "4 proposed and 2 ranks"),
        (a_trace(a_prompt_trace(max_output_tokens=3)), "4 positions, above its cap of 3"),
        (a_trace(a_prompt_trace(matched=(0, 4, 1, 1))), "matched at position 1 is 4, outside"),
        (a_trace(a_prompt_trace("a"), a_prompt_trace("a")), "prompt 'a' is in the trace 2 times"),
        (replace(LOGGED, prompts=(a_prompt_trace(unknown=(4,)),)), "unknown position 4, outside its 4"),
    ],
)
def test_a_trace_that_contradicts_itself_is_not_packed(trace: Trace, match: str) -> None:
    with pytest.raises(TraceError, match=match):
        pack_trace(trace, a_key(), {})


def test_a_greedy_trace_does_not_pass_for_a_sampled_one() -> None:
    with pytest.raises(TraceError, match="made for Sampling"):
        pack_trace(a_trace(sampling=GREEDY), a_key(sampling=WARM), {})


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (a_key(target="other"), r"target \(its config, tokenizer or weights\): expected 'other', found '4f1e'"),
        (a_key(draft="other"), r"draft \(its config or weights\): expected 'other', found '77aa'"),
        (a_key(outputs="other"), r"outputs \(prompts, caps or the target's answers\): expected 'other', found '0d0d'"),
        (a_key(sampling=GREEDY), r"sampling\.temperature: expected 0\.0, found 0\.7"),
        (a_key(method=Method.EAGLE), "method: expected 'eagle', found 'draft_model'"),
        (
            a_key(numerics=Numerics(engine="cpu", weight_format="int8", lossless=True)),
            r"numerics\.weight_format: expected 'int8', found 'fp32'",
        ),
    ],
)
def test_a_trace_of_something_else_is_refused_with_both_values(other: TraceKey, line: str) -> None:
    message = refused(pack_trace(a_trace(), a_key(), {}), line, expected=other)
    assert "the trace is of something else" in message


# ── uses ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_trace_cut_to_fewer_drafted_tokens_is_as_if_made_for_them() -> None:
    cut = cut_to(a_trace(), 2)
    assert cut.max_drafted_tokens == 2
    assert (cut.prompts[0].proposed, cut.prompts[0].matched) == ((0, 2, 2, 2), (0, 2, 1, 1))
    assert cut.prompts[0].ranks == a_trace().prompts[0].ranks
    assert cut_to(a_trace(), 4) == cut_to(a_trace(), 9) == a_trace()


def test_near_ties_are_counted_over_the_positions_that_a_round_can_start_at() -> None:
    trace = a_trace(a_prompt_trace(top2_gaps=(0.0, 2.0, 0.001, 0.01)))
    assert share_of_near_ties(trace, 0.01) == pytest.approx(1 / 3)
    assert share_of_near_ties(trace, 0.0101) == pytest.approx(2 / 3)
    assert share_of_near_ties(trace, 0.0) == 0.0


def test_without_logits_there_is_no_share_of_near_ties() -> None:
    assert share_of_near_ties(LOGGED, 0.01) is None
    assert share_of_near_ties(a_trace(prompts=()), 0.01) is None


def test_the_record_of_a_trace_says_what_it_is_without_its_data() -> None:
    record = TraceRecord.of(pack_trace(a_trace(), a_key(), {"study": "s"}))
    assert (record.key, record.path_key, record.depth) == (a_key().key, a_key().path_key, 4)
    assert {name: record.header[name] for name in ("draft_name", "kind", "prompts", "output_tokens", "provenance")} == {
        "draft_name": "shallow",
        "kind": "teacher_forced",
        "prompts": 2,
        "output_tokens": 5,
        "provenance": {"study": "s"},
    }
    assert record.header["key"]["numerics"] == {"engine": "cpu", "weight_format": "fp32", "lossless": True}
