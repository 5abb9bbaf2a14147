"""Convert the target's GGUF file to a Hugging Face folder.

The product's CPU engine holds every matrix in fp16 and computes in fp32, so
the labels of the drafts must come from the same numbers: each matrix is
rounded to fp16 once and saved as fp32, the norm vectors stay as they are.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM


def convert(gguf: Path, out: Path) -> None:
    """Write model, tokenizer and chat template of ``gguf`` to the folder ``out``."""
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    fields = loaded.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "transformers_version", "model_type"):
        fields.pop(key, None)
    # A model read from GGUF refuses to be saved, so its weights move to a plain one.
    model = LlamaForCausalLM(LlamaConfig(**fields))
    model.load_state_dict(loaded.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.copy_(parameter.half().float())
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--out", type=Path, default=Path("build/train_draft/target"))
    arguments = parser.parse_args()
    convert(arguments.gguf, arguments.out)


if __name__ == "__main__":
    main()
