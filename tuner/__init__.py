"""Finds the speculative-decoding configuration that pays off for a workload.

What is exported here is public; everything else may change.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.api import predict as predict
    from tuner.api import run_prediction as run_prediction
    from tuner.api import run_search as run_search
    from tuner.api import search as search
    from tuner.driver import PredictedStudy as PredictedStudy
    from tuner.driver import SearchResult as SearchResult
    from tuner.errors import TunerError as TunerError
    from tuner.observer import Observer as Observer
    from tuner.samplers import ReplaySampler as ReplaySampler
    from tuner.search_options import SearchOptions as SearchOptions
    from tuner.speculation import Speculation as Speculation

_PUBLIC = {
    "Observer": "tuner.observer",
    "PredictedStudy": "tuner.driver",
    "ReplaySampler": "tuner.samplers",
    "SearchOptions": "tuner.search_options",
    "SearchResult": "tuner.driver",
    "Speculation": "tuner.speculation",
    "TunerError": "tuner.errors",
    "predict": "tuner.api",
    "run_prediction": "tuner.api",
    "run_search": "tuner.api",
    "search": "tuner.api",
}

__all__ = [
    "Observer",
    "PredictedStudy",
    "ReplaySampler",
    "SearchOptions",
    "SearchResult",
    "Speculation",
    "TunerError",
    "predict",
    "run_prediction",
    "run_search",
    "search",
]

try:
    __version__ = version("specdec-tuner")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0.0.0"


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``import tuner`` and ``tuner --help`` cost little."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tuner' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
