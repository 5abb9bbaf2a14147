"""Where figures come from: the machine, its load and the versions of what was compared."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

from tuner.provenance import package_versions

PACKAGES = ("specdec-tuner", "torch", "transformers", "tokenizers", "numpy")


def machine_facts() -> dict[str, object]:
    """Processor, cores, memory and system."""
    return {
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "platform": platform.platform(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Installed versions of what takes part."""
    return package_versions(PACKAGES)


def load_average() -> float:
    """Processes that wanted a CPU, on average over the last minute."""
    return psutil.getloadavg()[0]


def _processor() -> str:
    description = Path("/proc/cpuinfo")
    lines = description.read_text().splitlines() if description.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
