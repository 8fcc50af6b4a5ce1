"""Garbage collection pauses while a process starts, and leaves what it made alone."""

import gc
from collections.abc import Iterator

import pytest

from contracts.garbage import uncollected


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_inside_and_what_is_there_is_frozen() -> None:
    before = gc.get_freeze_count()
    with uncollected():
        assert not gc.isenabled()
        kept = [[index] for index in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(kept)


def test_collections_come_back_after_an_error_and_stay_off_where_they_were_off() -> None:
    with pytest.raises(ZeroDivisionError), uncollected():
        _ = 1 / 0
    assert gc.isenabled()
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()
