"""Where the tuner keeps its files and which target it takes by default: option over environment over default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from tuner.errors import ConfigurationError

CACHE_VARIABLE = "TUNER_CACHE"
STORAGE_VARIABLE = "TUNER_STORAGE"
MODELS_VARIABLE = "TUNER_MODELS"
TARGET_VARIABLE = "TUNER_TARGET"

# The catalogue's only target that a plain machine runs and that can be had without an account.
DEFAULT_TARGET = "SmolLM2-135M-Instruct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What holds for every command of one person on one machine.

    Attributes:
        cache_dir: Fetched and converted models, compiled artifacts; may be deleted at any time.
        storage_url: Database of studies. Not printed with the settings, as it may hold a password.
        models_dir: Folder that holds models by their catalogue name, looked into before anything is fetched; None
            where there is none.
        default_target: The target of a search that names none.
    """

    cache_dir: Path
    storage_url: str = field(repr=False)
    models_dir: Path | None = None
    default_target: str = DEFAULT_TARGET


def read_settings(
    env: Mapping[str, str] | None = None,
    *,
    cache_dir: Path | None = None,
    storage_url: str | None = None,
    models_dir: Path | None = None,
    default_target: str | None = None,
) -> Settings:
    """The settings: an option that was given, else the environment, else the default.

    Empty variables count as absent.

    Args:
        env: The environment; None takes this process's.
        cache_dir: Option of that name.
        storage_url: Option of that name.
        models_dir: Option of that name.
        default_target: Option of that name.

    Raises:
        ConfigurationError: The option for the database is empty.
    """
    if storage_url is not None and not storage_url.strip():
        raise ConfigurationError("--storage is empty", "give a value, or leave the option out")
    stated = os.environ if env is None else env
    cache = cache_dir or stated.get(CACHE_VARIABLE) or platformdirs.user_cache_path("tuner")
    models = models_dir or stated.get(MODELS_VARIABLE) or None
    return Settings(
        cache_dir=_absolute(cache),
        storage_url=storage_url or stated.get(STORAGE_VARIABLE) or _default_storage_url(),
        models_dir=None if models is None else _absolute(models),
        default_target=default_target or stated.get(TARGET_VARIABLE) or DEFAULT_TARGET,
    )


def _absolute(path: str | Path) -> Path:
    return Path(path).expanduser().absolute()


def _default_storage_url() -> str:
    return f"sqlite:///{platformdirs.user_data_path('tuner') / 'tuner.db'}"
