"""Garbage collection pauses while a process starts, and ignores the start's objects."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from contracts.processes.garbage import lasting_objects_left_alone, uncollected


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


class Ring:
    """An object that only a collection can free."""

    def __init__(self) -> None:
        self.itself = self


def test_only_objects_of_before_are_left_out_and_only_for_the_time() -> None:
    garbage, lasting = weakref.ref(Ring()), Ring()
    kept = weakref.ref(lasting)
    with lasting_objects_left_alone():
        assert garbage() is None  # garbage of before is no lasting object
        assert gc.get_freeze_count() > 0
        del lasting
        new = weakref.ref(Ring())
        gc.collect()
        assert kept() is not None and new() is None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert kept() is None
