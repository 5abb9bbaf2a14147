"""What holds for every test: no telemetry, no token for Ray, and no study outside a temporary folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

RAY_SETTINGS = {
    "RAY_AUTH_MODE": "disabled",  # otherwise Ray writes a token into the home folder
    "RAY_USAGE_STATS_ENABLED": "0",
}


def pytest_configure() -> None:
    # Before any test module can import Ray, which reads these once; worker processes inherit them.
    os.environ.update(RAY_SETTINGS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    unmarked = [
        item.nodeid
        for item in items
        if "integration" in item.path.parts
        and not any(item.get_closest_marker(name) is not None for name in ("slow", "model"))
    ]
    if unmarked:
        raise pytest.UsageError("tests/integration needs the mark slow or model on: " + ", ".join(unmarked))


@pytest.fixture(scope="session", autouse=True)
def _no_personal_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep studies in a temporary folder and the default target; fetched models stay in the person's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNER_STORAGE", f"sqlite:///{tmp_path_factory.mktemp('data')}/tuner.db")
        patch.delenv("TUNER_TARGET", raising=False)
        patch.setenv("TUNER_CPU_LOCKS", str(tmp_path_factory.mktemp("cpus")))  # other tests run at the same time
        yield
