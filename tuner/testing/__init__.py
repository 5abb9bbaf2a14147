"""Contracts that engines and stores must keep, as pytest classes, and fakes to test against. Needs pytest.

Third parties subclass the contracts; see ``tuner.testing.engines`` and ``tuner.testing.stores``.
"""

from __future__ import annotations

from tuner.testing.engines import EngineContract
from tuner.testing.fakes import FakeClock, FakeEngine, LoadedFakeEngine
from tuner.testing.stores import PersistentTrialStoreContract, TrialStoreContract

__all__ = [
    "EngineContract",
    "FakeClock",
    "FakeEngine",
    "LoadedFakeEngine",
    "PersistentTrialStoreContract",
    "TrialStoreContract",
]
