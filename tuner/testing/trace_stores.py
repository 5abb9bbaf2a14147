"""What every store must do with acceptance traces; part of the contract in ``tuner.testing.stores``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from tuner.errors import StorageError
from tuner.store import TrialStore
from tuner.testing.store_records import NOON, a_trace


class TraceStoreContract:
    """What the docstrings of ``TrialStore`` promise of traces; subclasses override the fixture ``store``."""

    @pytest.fixture
    def store(self) -> Iterator[TrialStore]:
        """An empty store."""
        raise NotImplementedError("the subclass supplies the fixture `store`")

    def test_a_trace_comes_back_equal_and_belongs_to_no_study(self, store: TrialStore) -> None:
        assert store.save_trace(a_trace())
        assert store.trace(a_trace().key) == a_trace()

    def test_an_unknown_trace_is_none(self, store: TrialStore) -> None:
        store.save_trace(a_trace())
        assert store.trace("another") is None
        assert store.trace(a_trace().path_key) is None

    def test_a_deeper_trace_replaces_a_shallower_one(self, store: TrialStore) -> None:
        deeper = a_trace(depth=9, data=b"deeper", header={"prompts": 13}, created_at=NOON + timedelta(days=1))
        store.save_trace(a_trace())
        assert store.save_trace(deeper)
        assert store.trace(deeper.key) == deeper
        assert len(store.traces()) == 1

    @pytest.mark.parametrize("depth", [1, 4])
    def test_a_trace_that_is_no_deeper_changes_nothing(self, store: TrialStore, depth: int) -> None:
        store.save_trace(a_trace())
        assert not store.save_trace(a_trace(depth=depth, data=b"other", header={}))
        assert store.trace(a_trace().key) == a_trace()

    def test_a_trace_of_depth_0_is_kept(self, store: TrialStore) -> None:
        assert store.save_trace(a_trace(depth=0))
        assert store.trace(a_trace().key) == a_trace(depth=0)

    def test_traces_come_oldest_first_without_their_data(self, store: TrialStore) -> None:
        early = a_trace(key="early", created_at=NOON - timedelta(hours=1))
        store.save_trace(a_trace())
        store.save_trace(early)
        assert store.traces() == (replace(early, data=None), replace(a_trace(), data=None))

    def test_traces_along_the_same_outputs_are_found(self, store: TrialStore) -> None:
        for key, path_key in (("a", "here"), ("b", "elsewhere"), ("c", "here")):
            store.save_trace(a_trace(key=key, path_key=path_key))
        assert [one.key for one in store.traces("here")] == ["a", "c"]
        assert store.traces("nowhere") == ()

    def test_a_store_without_traces_has_none(self, store: TrialStore) -> None:
        assert store.traces() == ()

    def test_a_trace_from_a_listing_cannot_be_saved(self, store: TrialStore) -> None:
        with pytest.raises(StorageError, match="no data"):
            store.save_trace(a_trace(data=None))
        assert store.traces() == ()
