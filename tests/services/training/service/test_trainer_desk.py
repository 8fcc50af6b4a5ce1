"""The desk's memory of models, and its end: a trainer that dies too often fails no call that waits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from services.training.service.child import ChildGivenUp
from services.training.service.journal import Call, Journal, answer
from services.training.service.presence import AWAY_S, Presence
from services.training.service.trainer_desk import TrainerDesk
from services.training.service.training_calls import Outcome
from services.training.service.waiters import Waiters


class Calls:
    """Calls without a trainer, which note the models that it would hold."""

    def __init__(self) -> None:
        self.num_starts, self.held, self.gives_up = 1, set[str](), False

    def start(self) -> None:
        if self.gives_up:
            raise ChildGivenUp("the trainer's process died; that is loss 11 within an hour")

    def call(self, method: str, model: str) -> None:
        assert method == "forget"
        self.held.discard(model)

    def create(self, row: dict[str, Any]) -> None:
        self.held.add(row["id"])

    def perform(self, call: Call) -> Outcome:
        return Outcome(answer({}))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite")
    for session in ("a", "b", "c"):
        journal.write("INSERT INTO models (id, session) VALUES (?, ?)", f"{session}:train:0", session)
    yield journal
    journal.close()


def desk(journal: Journal, calls: Any, folder: Path, presence: Presence) -> TrainerDesk:
    return TrainerDesk(journal, calls, calls, Waiters(), folder, presence)


def admit(journal: Journal, session: str, seq: int) -> Call:
    model = f"{session}:train:0"
    call = Call(f"{model}/{seq}", model, seq, "forward", b"")
    journal.admit(call, "digest")
    return call


def test_models_of_sessions_that_are_away_are_freed_and_come_back(journal: Journal, tmp_path: Path) -> None:
    calls, presence = Calls(), Presence()
    trained = desk(journal, calls, tmp_path, presence)
    for session in ("a", "b"):
        trained._serve(admit(journal, session, 0))
    presence.leave("a")
    presence._heard["b"] = presence._began + 1.0  # a client that lives
    trained._serve(admit(journal, "c", 0))
    assert calls.held == {"b:train:0", "c:train:0"}
    presence._heard["b"] -= AWAY_S + 2.0  # and is silent later
    trained._serve(admit(journal, "a", 1))
    assert calls.held == {"a:train:0", "c:train:0"}


def test_a_trainer_that_is_given_up_fails_no_call(journal: Journal, tmp_path: Path) -> None:
    calls = Calls()
    trained = desk(journal, calls, tmp_path, Presence())
    calls.gives_up = True
    waits = admit(journal, "a", 0)
    trained.run()  # it ends by itself
    assert trained.broken is not None and "loss 11" in trained.broken
    assert journal.next_call() == waits


def test_a_model_whose_checkpoint_was_deleted_is_refused_in_plain_words(
    journal: Journal, tmp_path: Path
) -> None:
    calls = Calls()
    loaded = Call("a:train:0/0", "a:train:0", 0, "load_weights", b"")
    journal.admit(loaded, "digest")
    journal.finish(loaded, answer({}), moves=True)

    def perform(call: Call) -> Outcome:
        raise InputError("there is no checkpoint 'tinker://b:train:0/weights/x'")

    calls.perform = perform  # type: ignore[method-assign]
    later = admit(journal, "a", 1)
    desk(journal, calls, tmp_path, Presence())._serve(later)
    outcome = journal.answer_of(later.id)
    assert outcome is not None and outcome.failed
    assert b"call 0 (load_weights) can't be repeated: there is no checkpoint" in outcome.body
