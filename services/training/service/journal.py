"""The service's journal: every accepted call, its answer, and the state from which a model is restored.

    request   pending ─▶ done | failed          a call counts once: (model, seq) is the key of its row
    model     spec, snapshot (state after call `covered`), next call to run

A call is in the journal before its sender gets an id. Calls that changed a model after its snapshot keep
their bodies, so that a new trainer can repeat them.
"""

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import InputError

KEPT_S = 3600.0  # time for which answers stay
SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY, info TEXT, finished INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS models (id TEXT PRIMARY KEY, session TEXT, spec TEXT, metadata TEXT, snapshot TEXT,
    covered INTEGER DEFAULT -1, next INTEGER DEFAULT 0, served REAL DEFAULT 0);
CREATE TABLE IF NOT EXISTS requests (id TEXT PRIMARY KEY, model TEXT, seq INTEGER, kind TEXT, digest TEXT,
    body BLOB, state TEXT, moves INTEGER DEFAULT 0, answer BLOB, is_proto INTEGER DEFAULT 0, ready REAL);
CREATE INDEX IF NOT EXISTS waiting ON requests (state, model, seq);
CREATE INDEX IF NOT EXISTS placed ON requests (model, seq);
CREATE INDEX IF NOT EXISTS kept ON requests (ready) WHERE answer IS NOT NULL;
CREATE TABLE IF NOT EXISTS joined (sampler TEXT);
CREATE TABLE IF NOT EXISTS base (path TEXT, trains_whole INTEGER);
CREATE TABLE IF NOT EXISTS checkpoints (path TEXT PRIMARY KEY, model TEXT, name TEXT, kind TEXT, folder TEXT,
    spec TEXT, metadata TEXT, made REAL, size INTEGER, hidden INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS samplers (id TEXT PRIMARY KEY, session TEXT, path TEXT);
"""


@dataclass(frozen=True, slots=True)
class Call:
    """A call to run. Example: `Call("s:train:0/3", "s:train:0", 3, "optim_step", b'{"adam_params": …}')`"""

    id: str
    model: str
    seq: int
    kind: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """Bytes of an answer, as a message of the SDK or as JSON."""

    body: bytes
    is_proto: bool = False
    failed: bool = False


def answer(fields: Mapping[str, Any]) -> Answer:
    return Answer(json.dumps(fields).encode())


def failure(reason: str, category: str) -> Answer:
    """Return the answer to a call that failed.

    Args:
        category: "user" if the call was wrong; "server" if the service failed.
    """
    return Answer(json.dumps({"error": reason, "category": category}).encode(), failed=True)


class Journal:
    """Tables in one SQLite file, for several threads."""

    def __init__(self, file: Path) -> None:
        self._lock = threading.RLock()
        self._tables = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._tables.row_factory = sqlite3.Row
        self._tables.execute("PRAGMA journal_mode=WAL")
        self._tables.execute("PRAGMA synchronous=FULL")
        self._tables.executescript(SCHEMA)

    def claim(self, path: str, *, trains_whole: bool) -> None:
        """Record once which base the journal's models are trained on.

        Raises:
            InputError: the journal has models of another base, or of the other kind.
        """
        row = self.row("SELECT * FROM base")
        if row is None:
            self.write("INSERT INTO base VALUES (?,?)", path, int(trains_whole))
        elif (row["path"], bool(row["trains_whole"])) != (path, trains_whole):
            kinds = {True: "with --full", False: "without --full"}
            raise InputError(
                f"the folder has models of {row['path']} {kinds[bool(row['trains_whole'])]}; expected "
                f"the same, or another --folder for {path} {kinds[trains_whole]}"
            )

    def close(self) -> None:
        with self._lock:
            self._tables.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all writes inside at once, or none."""
        with self._lock:
            self._tables.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._tables.execute("ROLLBACK")
                raise
            self._tables.execute("COMMIT")

    def write(self, statement: str, *values: Any) -> None:
        with self._lock:
            self._tables.execute(statement, values)

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._lock:
            return list(self._tables.execute(query, values))

    def row(self, query: str, *values: Any) -> sqlite3.Row | None:
        rows = self.rows(query, *values)
        return rows[0] if rows else None

    def admit(self, call: Call, digest: str, refused: Answer | None = None) -> str | None:
        """Record a call once; return the digest of an earlier call with the same key, or None.

        Args:
            refused: answer to a call that must not run. It still takes its place in the order.
        """
        with self.transaction():
            earlier = self.row("SELECT digest FROM requests WHERE id = ?", call.id)
            if earlier is not None:
                return str(earlier["digest"])
            values = (call.id, call.model, call.seq, call.kind, digest, call.body)
            self.write(
                "INSERT INTO requests (id, model, seq, kind, digest, body, state) VALUES (?,?,?,?,?,?,?)",
                *values,
                "pending" if refused is None else "refused",
            )
            if refused is not None:
                self._settle(call, refused, "refused", moves=False)
                self.advance(call.model)
        return None

    def next_call(self) -> Call | None:
        """Return the next call in its model's order, for the model that has waited longest."""
        row = self.row(
            "SELECT r.* FROM requests r JOIN models m ON r.model = m.id "
            "WHERE r.state = 'pending' AND r.seq = m.next ORDER BY m.served LIMIT 1"
        )
        return None if row is None else _call(row)

    def finish(self, call: Call, answer: Answer, *, moves: bool) -> None:
        """Record a call's answer, and let the model's next call run. Works inside a transaction or alone.

        Args:
            moves: whether a new trainer has to repeat the call.
        """
        self._settle(call, answer, "failed" if answer.failed else "done", moves=moves)
        self._forget_old()
        self.write("UPDATE models SET served = ? WHERE id = ?", time.time(), call.model)
        self.advance(call.model)

    def advance(self, model: str) -> None:
        """Move the model's next call past all settled calls."""
        row = self.row("SELECT next FROM models WHERE id = ?", model)
        if row is None:
            return
        upcoming = int(row["next"])
        while self.row(
            "SELECT 1 FROM requests WHERE model = ? AND seq = ? AND state != 'pending'", model, upcoming
        ):
            upcoming += 1
        self.write("UPDATE models SET next = ? WHERE id = ?", upcoming, model)

    def answer_of(self, request: str) -> Answer | None:
        """Return an answer, or None while the call waits.

        Raises:
            KeyError: there is no such call.
        """
        row = self.row("SELECT state, answer, is_proto FROM requests WHERE id = ?", request)
        if row is None or (row["state"] != "pending" and row["answer"] is None):
            raise KeyError(request)
        if row["state"] == "pending":
            return None
        return Answer(row["answer"], bool(row["is_proto"]), row["state"] != "done")

    def moved_since(self, model: str, covered: int) -> list[Call]:
        """Return the calls after a snapshot that a new trainer has to repeat, in order."""
        rows = self.rows(
            "SELECT * FROM requests WHERE model = ? AND seq > ? AND moves = 1 ORDER BY seq", model, covered
        )
        return [_call(row) for row in rows]

    def cover(self, model: str, seq: int, snapshot: Path) -> None:
        """Record a snapshot of the state after call `seq`, and delete the bodies up to it."""
        self.write("UPDATE models SET snapshot = ?, covered = ? WHERE id = ?", str(snapshot), seq, model)
        self.write(
            "UPDATE requests SET body = NULL WHERE model = ? AND seq <= ? AND body IS NOT NULL", model, seq
        )

    def _forget_old(self) -> None:
        old = time.time() - KEPT_S
        self.write(
            "UPDATE requests SET answer = NULL WHERE ready < ? AND answer IS NOT NULL AND body IS NULL", old
        )

    def _settle(self, call: Call, answer: Answer, state: str, *, moves: bool) -> None:
        self.write(
            "UPDATE requests SET state = ?, moves = ?, body = CASE WHEN ? THEN body END, answer = ?, "
            "is_proto = ?, ready = ? WHERE id = ?",
            state,
            int(moves),
            int(moves),
            answer.body,
            int(answer.is_proto),
            time.time(),
            call.id,
        )


def _call(row: sqlite3.Row) -> Call:
    return Call(row["id"], row["model"], row["seq"], row["kind"], row["body"] or b"")
