"""What this engine can do, known without PyTorch."""

from __future__ import annotations

WEIGHT_FORMATS = ("auto", "fp16-packed", "fp32", "int8")
LOSSY_WEIGHT_FORMATS = frozenset({"int8"})

ARCHITECTURES = ("llama", "qwen2", "qwen3")
SHALLOW = "tuner_shallow"
EAGLE = "tuner_eagle"

MAX_NUM_SEQS = 8
MAX_DRAFTED_TOKENS = 16
