"""Contracts that engines, stores and dispatchers must keep, as pytest classes, and fakes to test against. Needs pytest.

Third parties subclass the contracts; see ``tuner.testing.engines``, ``stores`` and ``dispatchers``.
"""

from __future__ import annotations

from tuner.testing.dispatchers import DispatcherContract
from tuner.testing.engines import EngineContract
from tuner.testing.fakes import FakeClock, FakeEngine, LoadedFakeEngine
from tuner.testing.stores import PersistentTrialStoreContract, TrialStoreContract

__all__ = [
    "DispatcherContract",
    "EngineContract",
    "FakeClock",
    "FakeEngine",
    "LoadedFakeEngine",
    "PersistentTrialStoreContract",
    "TrialStoreContract",
]
