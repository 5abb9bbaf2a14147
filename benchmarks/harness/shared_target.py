"""One target in memory, and engines around it that differ only in what they draft with.

Loading an engine for every draft and number of drafted tokens would take longer than running them. The decoding loop
is the CPU engine's own; weights and caches are shared, so only one of the engines may serve requests at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tuner.engines.cpu.decode import Decoder
from tuner.engines.cpu.drafters import Drafter
from tuner.engines.cpu.kernels import Kernel, kernel_of
from tuner.engines.cpu.loaded import LoadedCpuEngine
from tuner.engines.cpu.loading import open_drafter, open_shallow
from tuner.engines.cpu.model import LanguageModel, open_model
from tuner.engines.cpu.threads import ThreadChoice
from tuner.models.resolve import resolve_models
from tuner.models.tokenizer import ChatTokenizer
from tuner.settings import read_settings
from tuner.speculation import EngineConfig, Method, Speculation

EAGLE, SHALLOW = "smollm2-135m-eagle", "smollm2-135m-shallow"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTarget:
    """A target that engines share. Made by ``open``.

    Attributes:
        config: Of its engines, but for the speculation; ``max_num_seqs`` is the number of slots in the caches.
    """

    config: EngineConfig
    kernel: Kernel
    model: LanguageModel
    tokenizer: ChatTokenizer
    threads: ThreadChoice
    _drafters: dict[str, Drafter] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, *, threads: int, max_model_len: int, slots: int = 1) -> SharedTarget:
        """Read the weights, with a cache for so many sequences.

        Raises:
            ModelError: The folder holds no usable model.
        """
        kernel = kernel_of("auto")
        return cls(
            config=EngineConfig(
                target_model=str(folder), max_num_seqs=slots, max_model_len=max_model_len, num_threads=threads
            ),
            kernel=kernel,
            model=open_model(folder, kernel, slots=slots, length=max_model_len),
            tokenizer=ChatTokenizer.open(folder),
            threads=ThreadChoice(threads=threads, seconds={}),
        )

    def engine(self, speculation: Speculation) -> LoadedCpuEngine:
        """An engine of one request at a time; a draft's weights are read once for every number of drafted tokens.

        Raises:
            ModelError: The draft cannot be used.
        """
        config = replace(self.config, speculation=speculation)
        if speculation.draft_name not in self._drafters:
            self._drafters[speculation.draft_name] = open_drafter(config, self.model, self.kernel)
        decoder = Decoder(
            target=self.model,
            drafter=self._drafters[speculation.draft_name],
            tokenizer=self.tokenizer,
            drafted_tokens=speculation.drafted_tokens,
            max_num_seqs=1,
            max_model_len=config.max_model_len,
        )
        return LoadedCpuEngine(decoder, config=config, kernel=self.kernel, threads=self.threads)

    def shallow(self, folder: Path) -> LanguageModel:
        """The draft of few layers between this target's embedding and its output matrix.

        Raises:
            ModelError: The folder holds no such draft.
        """
        return open_shallow(folder, self.config, self.model, self.kernel)


def resolve_target_and_drafts(target: str) -> tuple[Path, Mapping[str, Speculation]]:
    """Folder of the target, and every kind of draft that is shipped for it, by its short name; k is 1.

    Raises:
        ModelError: A model is neither in the cache nor to be fetched.
    """
    folders = resolve_models([target, EAGLE, SHALLOW], settings=read_settings())
    known = {
        "ngram": (Method.NGRAM, None),
        "suffix": (Method.SUFFIX, None),
        "eagle": (Method.EAGLE, folders[EAGLE]),
        "shallow": (Method.DRAFT_MODEL, folders[SHALLOW]),
    }
    drafts = {
        name: Speculation(
            method=method,
            draft_name=name,
            draft_model=None if folder is None else str(folder),
            drafted_tokens=1,
        )
        for name, (method, folder) in known.items()
    }
    return folders[target], drafts
