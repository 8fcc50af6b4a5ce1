"""Progress lines of long waits: to whom they go, and when."""

from contracts.processes.waiting import Waiting


def test_who_gets_on_is_no_warning() -> None:
    warnings: list[str] = []
    progress: list[str] = []
    waiting = Waiting(warnings.append, every_s=0.0, say=progress.append)
    waiting.tell("an update", ["the learner has been at update 3 of 24 for 16 s"], gets_on=True)
    waiting.tell("an update", ["the learner has been at update 3 of 24 for 95 s"])
    assert progress == ["waiting 0 s for an update: the learner has been at update 3 of 24 for 16 s"]
    assert warnings == ["waiting 0 s for an update: the learner has been at update 3 of 24 for 95 s"]


def test_without_another_hearer_all_is_noted() -> None:
    notes: list[str] = []
    Waiting(notes.append, every_s=0.0).tell("an update", gets_on=True)
    assert notes == ["waiting 0 s for an update"]
