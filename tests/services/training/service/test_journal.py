"""The journal keeps what a new trainer needs, and no more; a failure costs no checkpoint."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.errors import InputError, RunError
from services.training.service.checkpoints import Checkpoints
from services.training.service.journal import KEPT_S, Answer, Call, Journal, answer


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite")
    journal.write("INSERT INTO models (id, session, spec, next) VALUES ('m', 's', '{\"rank\": 2}', 1)")
    yield journal
    journal.close()


def run(journal: Journal, seq: int, *, moves: bool) -> Call:
    call = Call(f"m/{seq}", "m", seq, "forward_backward" if moves else "forward", b"body")
    journal.admit(call, "digest")
    journal.finish(call, answer({}), moves=moves)
    return call


def test_only_calls_that_are_repeated_keep_their_bodies(journal: Journal) -> None:
    run(journal, 1, moves=False)
    moved = run(journal, 2, moves=True)
    refused = Call("m/3", "m", 3, "optim_step", b"body")
    journal.admit(refused, "digest", Answer(b"{}", failed=True))
    rows = journal.rows("SELECT id FROM requests WHERE body IS NOT NULL")
    assert [row["id"] for row in rows] == [moved.id]
    assert journal.moved_since("m", -1) == [moved]


def test_old_answers_go_without_a_snapshot(journal: Journal) -> None:
    old = run(journal, 1, moves=False)
    journal.write("UPDATE requests SET ready = ready - ?", KEPT_S + 1)
    new = run(journal, 2, moves=False)
    with pytest.raises(KeyError):
        journal.answer_of(old.id)
    assert journal.answer_of(new.id) == answer({})


def test_no_step_reads_all_calls(journal: Journal) -> None:
    statements: list[str] = []
    journal._tables.set_trace_callback(statements.append)
    run(journal, 1, moves=True)
    journal.next_call()
    journal.cover("m", 1, Path("state"))
    journal._tables.set_trace_callback(None)
    plans = [
        row["detail"]
        for statement in statements
        if statement.startswith(("SELECT", "UPDATE"))
        for row in journal.rows(f"EXPLAIN QUERY PLAN {statement}")
    ]
    assert plans
    assert not [plan for plan in plans if plan.startswith(("SCAN r", "SCAN requests"))]


def test_a_journal_is_of_one_base(journal: Journal) -> None:
    journal.claim("models/a", trains_whole=False)
    journal.claim("models/a", trains_whole=False)
    for path, whole in (("models/b", False), ("models/a", True)):
        with pytest.raises(InputError, match="models of models/a without --full"):
            journal.claim(path, trains_whole=whole)


def test_a_checkpoint_stays_if_the_one_that_replaces_it_fails(journal: Journal, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, journal)
    kept = checkpoints.write("m", "weights", "last", lambda folder: _note(folder, "first"))

    def fail(folder: Path) -> None:
        _note(folder, "half")
        raise RunError("the disk is full")

    with pytest.raises(RunError):
        checkpoints.write("m", "weights", "last", fail)
    assert (kept / "note").read_text() == "first"
    checkpoints.write("m", "weights", "last", lambda folder: _note(folder, "second"))
    assert (kept / "note").read_text() == "second"


def _note(folder: Path, text: str) -> None:
    (folder / "note").write_text(text)
