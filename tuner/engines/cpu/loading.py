"""Putting a loaded engine together: target, draft, tokenizer and threads."""

from __future__ import annotations

from pathlib import Path

import psutil
from torch import Tensor

from tuner.engines.cpu.decode import Decoder
from tuner.engines.cpu.drafters import Drafter, ModelDrafter, NoDrafter
from tuner.engines.cpu.eagle import EagleDrafter
from tuner.engines.cpu.kernels import Kernel, kernel_of
from tuner.engines.cpu.limits import EAGLE, SHALLOW
from tuner.engines.cpu.loaded import LoadedCpuEngine
from tuner.engines.cpu.lookup import LookupDrafter
from tuner.engines.cpu.model import LanguageModel, open_model, output_matrix
from tuner.engines.cpu.threads import choose_threads
from tuner.engines.cpu.transformer import Stack
from tuner.engines.cpu.weights import DRAFT_VOCABULARY, FUSE, Weights
from tuner.errors import ModelError, OutOfDeviceMemoryError
from tuner.models.config import read_model_config
from tuner.models.tokenizer import ChatTokenizer
from tuner.proposers import LOOKUP_METHODS, proposer_maker
from tuner.speculation import EngineConfig, Method

FLOAT_BYTES = 4


def load_cpu_engine(config: EngineConfig) -> LoadedCpuEngine:
    """Read the weights and choose the number of threads.

    Raises:
        OutOfDeviceMemoryError: Weights and cache exceed the free memory.
    """
    kernel = kernel_of(config.weight_format)
    folder = Path(config.target_model)
    check_memory(config, kernel)
    target = open_model(folder, kernel, slots=config.max_num_seqs, length=config.max_model_len)
    decoder = Decoder(
        target=target,
        drafter=open_drafter(config, target, kernel),
        tokenizer=ChatTokenizer.open(folder),
        drafted_tokens=config.speculation.drafted_tokens,
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len,
    )
    threads = choose_threads(target, config.num_threads)
    return LoadedCpuEngine(decoder, config=config, kernel=kernel, threads=threads)


def check_memory(config: EngineConfig, kernel: Kernel) -> None:
    """Refuse what will not fit, before the system begins to swap.

    Raises:
        OutOfDeviceMemoryError: With both numbers.
    """
    dimensions = read_model_config(Path(config.target_model))
    per_token = 2 * dimensions.num_hidden_layers * dimensions.num_key_value_heads * dimensions.head_dim * FLOAT_BYTES
    cache = per_token * config.max_num_seqs * config.max_model_len
    stored = sum(file.stat().st_size for file in Path(config.target_model).glob("*.safetensors"))
    # A model is stored with 2 or 4 bytes a weight; the larger of both is what reading it may take.
    need, free = cache + max(stored, stored * kernel.bytes_per_weight // 2), psutil.virtual_memory().available
    if need > free:
        raise OutOfDeviceMemoryError(
            f"{need / 2**30:.1f} GiB needed for weights and cache, {free / 2**30:.1f} GiB of memory free",
            "lower max_num_seqs or max_model_len, or choose a smaller model",
        )


def open_drafter(config: EngineConfig, target: LanguageModel, kernel: Kernel) -> Drafter:
    """The drafter that the configuration names."""
    speculation = config.speculation
    if speculation.method is Method.NONE:
        return NoDrafter()
    if speculation.method in LOOKUP_METHODS:
        return LookupDrafter(proposer_maker(speculation))
    if speculation.draft_model is None:
        raise ModelError(f"{speculation.label} names no draft_model", "give the folder of the draft's weights")
    folder = Path(speculation.draft_model)
    architecture = read_model_config(folder).architecture
    if architecture == EAGLE:
        return _open_eagle(folder, config, target, kernel)
    if architecture == SHALLOW:
        return ModelDrafter(open_shallow(folder, config, target, kernel))
    slots, length = config.max_num_seqs, config.max_model_len
    choices = len(target.embedding)
    return ModelDrafter(open_model(folder, kernel, slots=slots, length=length, choices=choices))


def open_shallow(folder: Path, config: EngineConfig, target: LanguageModel, kernel: Kernel) -> LanguageModel:
    """Layers of a draft between the target's embedding and rows of its output matrix."""
    own, weights = read_model_config(folder), Weights(folder)
    target_folder = Path(config.target_model)
    token_ids = weights.get(DRAFT_VOCABULARY).long()
    output = output_matrix(Weights(target_folder), read_model_config(target_folder))[token_ids]
    stack = Stack(weights, own, kernel, slots=config.max_num_seqs, length=config.max_model_len)
    return LanguageModel(embedding=target.embedding, stack=stack, output=output, kernel=kernel, token_ids=token_ids)


def _open_eagle(folder: Path, config: EngineConfig, target: LanguageModel, kernel: Kernel) -> EagleDrafter:
    fuse: Tensor = Weights(folder).get(FUSE).float()
    model = open_shallow(folder, config, target, kernel)
    return EagleDrafter(model, kernel.prepare(fuse, None), fuse.numel() * kernel.bytes_per_weight)
