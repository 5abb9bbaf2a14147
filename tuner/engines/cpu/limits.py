"""What this engine can do, known without PyTorch."""

from __future__ import annotations

from tuner.speculation import Speculation

WEIGHT_FORMATS = ("auto", "fp16-packed", "fp32", "int8")
LOSSY_WEIGHT_FORMATS = frozenset({"int8"})

ARCHITECTURES = ("llama", "qwen2", "qwen3")
SHALLOW = "tuner_shallow"
EAGLE = "tuner_eagle"

MAX_NUM_SEQS = 8
MAX_DRAFTED_TOKENS = 16

# Longest and shortest n-gram looked up when the configuration names none. Two tokens repeat by chance less often
# than one, and nothing longer than four was ever needed to tell two earlier places apart.
PROMPT_LOOKUP_MAX = 4
PROMPT_LOOKUP_MIN = 2


def lookup_lengths(speculation: Speculation) -> tuple[int, int]:
    """Longest and shortest n-gram looked up, defaults filled in."""
    longest = speculation.prompt_lookup_max or PROMPT_LOOKUP_MAX
    return longest, speculation.prompt_lookup_min or min(PROMPT_LOOKUP_MIN, longest)
