"""Every store keeps the contract of ``TrialStore``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tuner.store import TrialStore
from tuner.testing.memory_store import MemoryStore
from tuner.testing.stores import PersistentTrialStoreContract, TrialStoreContract
from tuner_storage import open_store


class TestMemoryStore(TrialStoreContract):
    @pytest.fixture
    def store(self) -> TrialStore:
        return MemoryStore()


class TestSqliteInMemory(TrialStoreContract):
    @pytest.fixture
    def store(self) -> Iterator[TrialStore]:
        store = open_store("sqlite://")
        yield store
        store.close()


class TestSqlite(PersistentTrialStoreContract):
    @pytest.fixture
    def reopen(self, sqlite_url: str) -> Callable[[], TrialStore]:
        return lambda: open_store(sqlite_url)


@pytest.mark.slow
class TestPostgresql(PersistentTrialStoreContract):
    @pytest.fixture
    def reopen(self, postgres_url: str) -> Callable[[], TrialStore]:
        return lambda: open_store(postgres_url)
