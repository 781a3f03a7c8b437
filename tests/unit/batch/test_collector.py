"""The pause of the garbage collector."""

from __future__ import annotations

import gc

import pytest

from hermes_batch.collector import pause_collector


def is_old(value: object) -> bool:
    return any(each is value for each in gc.get_objects(generation=2))


def test_objects_of_a_pause_are_old_afterwards() -> None:
    with pause_collector():
        assert not gc.isenabled()
        kept: list[object] = [[]]
        assert not is_old(kept)
    assert gc.isenabled()
    assert is_old(kept)
    assert gc.get_freeze_count() == 0


def test_pause_leaves_frozen_objects_frozen() -> None:
    frozen: list[object] = [[]]
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with pause_collector():
            pass
        assert gc.get_freeze_count() >= count - 100  # others may be freed meanwhile
        assert not is_old(frozen)
    finally:
        gc.unfreeze()


def test_pause_in_a_pause_ends_with_the_outer_one() -> None:
    with pause_collector():
        with pause_collector():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_pause_ends_after_an_error() -> None:
    with pytest.raises(ValueError, match="wrong"), pause_collector():
        raise ValueError("wrong")
    assert gc.isenabled()
