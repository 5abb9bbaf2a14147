"""Where a result comes from: versions, machine and command line, stored beside it."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from tuner.redact import hide_passwords

PACKAGES = ("specdec-tuner", "optuna", "ray", "sqlalchemy", "torch", "numpy", "tokenizers", "safetensors")


def package_versions(names: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Installed versions by distribution name; packages that are not installed are left out."""
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def collect_provenance() -> dict[str, object]:
    """Facts about this run that explain a figure later, but do not decide what is measured."""
    return {
        "packages": package_versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "command": [os.path.basename(sys.argv[0]), *map(hide_passwords, sys.argv[1:])],  # noqa: PTH119 - a name, not a file
    }
