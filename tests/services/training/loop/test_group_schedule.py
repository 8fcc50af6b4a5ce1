"""Choice of the groups to train on: each once, none too old, none starved, else the first that finish."""

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from services.training.loop.group_schedule import GroupSchedule, InFlight


@dataclass
class World:
    """Groups that finish in any order, and a learner that trains as soon as it may."""

    schedule: GroupSchedule
    iterations: int
    chance: random.Random
    groups: dict[int, InFlight] = field(default_factory=dict)
    num_leased: int = 0
    num_finished: int = 0

    def lease(self, update: int, version: int) -> None:
        fresh = self.chance.randint(0, len(self.groups))
        room = self.schedule.room(len(self.groups), fresh, update, version)
        room = min(room, (self.iterations - update) * self.schedule.size - len(self.groups))
        for _ in range(self.chance.randint(max(0, room) // 2, max(0, room))):
            due = version + self.schedule.max_staleness
            self.groups[self.num_leased] = InFlight(self.num_leased, due)
            self.num_leased += 1

    def finish_one(self) -> None:
        written = [number for number, group in self.groups.items() if group.place is None]
        if not written:
            return
        number = self.chance.choice(written)
        self.groups[number] = InFlight(number, self.groups[number].due, self.num_finished)
        self.num_finished += 1

    def choose(self, update: int) -> list[InFlight]:
        for _ in range(10_000):
            self.lease(update, version=update)
            chosen = self.schedule.choose(list(self.groups.values()), update)
            if chosen is not None:
                return [self.groups.pop(number) for number in chosen]
            self.finish_one()
        raise AssertionError(f"update {update} never begins: {self.groups}")


sizes = {
    "size": st.integers(1, 6),
    "max_staleness": st.integers(1, 5),
    "iterations": st.integers(1, 12),
    "seed": st.integers(0, 2**32),
}


@settings(deadline=None, max_examples=200)
@given(**sizes)
def test_each_is_trained_on_once_and_none_is_older_than_the_bound(
    size: int, max_staleness: int, iterations: int, seed: int
) -> None:
    schedule = GroupSchedule(size, max_staleness)
    world = World(schedule, iterations, random.Random(seed))
    trained: list[int] = []
    for update in range(iterations):
        batch = world.choose(update)
        assert len(batch) == size and all(group.due >= update for group in batch)
        assert all(group.place is not None for group in batch)
        trained += [group.number for group in batch]
        world.lease(update + 1, version=update)  # while the learner trains
        for _ in range(world.chance.randint(0, 2 * size)):
            world.finish_one()
        for later in range(max_staleness):  # so every one can be trained on in time
            due = sum(group.due <= update + 1 + later for group in world.groups.values())
            assert due <= (later + 1) * size
        assert len(world.groups) <= (1 + max_staleness) * size
    assert sorted(trained) == list(range(size * iterations))


def test_the_first_that_finish_come_first_and_the_slow_one_when_it_is_due() -> None:
    schedule = GroupSchedule(size=2, max_staleness=2)
    groups = [InFlight(0, due=2), InFlight(1, 2, place=1), InFlight(2, 2, place=0)]
    assert schedule.choose(groups, 0) == [1, 2]
    left = [InFlight(0, due=2), InFlight(3, 3, place=2), InFlight(4, 3, place=3)]
    assert schedule.choose(left, 1) == [3, 4]
    assert schedule.choose(left, 2) is None  # 0 is due, and still written
    left[0] = InFlight(0, due=2, place=4)
    assert schedule.choose(left, 2) == [0, 3]


def test_those_that_could_not_all_be_trained_on_in_time_are_taken_now() -> None:
    """Three are due by update 1, and update 1 takes two: one of them must be taken at update 0."""
    schedule = GroupSchedule(size=2, max_staleness=2)
    due = [InFlight(0, 1), InFlight(1, 1, place=2), InFlight(2, 1)]
    fresh = [InFlight(3, 2, place=0), InFlight(4, 2, place=1)]
    assert schedule.must([*due, *fresh], 0) == [0, 1, 1]
    assert schedule.choose([*due, *fresh], 0) == [1, 3]


def test_a_short_batch_is_taken_only_if_it_is_asked_for() -> None:
    schedule = GroupSchedule(size=3, max_staleness=2)
    groups = [InFlight(0, 2, place=0), InFlight(1, 2)]
    assert schedule.choose(groups, 0) is None
    assert schedule.choose(groups, 0, short=True) == [0]
    assert schedule.choose(groups[1:], 0, short=True) is None


def test_as_many_are_fresh_as_with_one_version_and_the_slow_ones_have_the_rest() -> None:
    one, four = GroupSchedule(size=4, max_staleness=1), GroupSchedule(size=4, max_staleness=4)
    for schedule in (one, four):
        assert schedule.room(0, 0, update=0, version=0) == 8
        assert schedule.room(4, 4, update=1, version=0) == 0
    assert one.room(8, 4, update=0, version=0) == 0  # with one version nothing is left to choose
    assert four.room(8, 4, update=0, version=0) == 4
    # The bound allows (1 + 4) * 4 groups; 4 * 3 / 2 of them stay free.
    assert [four.room(in_flight, 0, 0, 0) for in_flight in (8, 12, 14)] == [6, 2, 0]
