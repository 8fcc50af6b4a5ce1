"""What a run leaves out of garbage collection, and that it puts it back."""

import gc
import weakref

from services.loop.garbage import lasting_objects_left_alone


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
