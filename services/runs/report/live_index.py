"""Index of a run's new episodes, from tokens/*.jsonl and, for episodes without numbers, episodes.jsonl.

It reads the new parts of growing files, keeps a summary of each episode, and reads whole episodes on request.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from services.runs.folder import RunFolder

MOST_LETTERS = 2000  # letters of a prompt that the filter searches
SHOWN_LETTERS = 160


@dataclass(frozen=True, slots=True)
class Entry:
    """Summary of an episode, and its place."""

    id: str
    iteration: int
    split: str
    sample: str
    prompt: str
    reward: float | None
    length: int
    end: str
    group: int | None
    numbered: bool  # whether it has the learner's numbers
    file: Path
    start: int
    size: int

    def shown(self) -> dict[str, Any]:
        """Return the summary for the page."""
        row = asdict(self) | {"prompt": self.prompt[:SHOWN_LETTERS]}
        return {key: value for key, value in row.items() if key not in ("file", "start", "size")}


@dataclass(slots=True)
class Known:
    """Entries of a file so far, and the file's state then."""

    node: int
    changed: int
    place: int
    entries: list[Entry]


class LiveIndex:
    """All episodes of a run so far. `look` reads new ones."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._known: dict[Path, Known] = {}
        self.entries: list[Entry] = []  # the newest iteration first
        self.by_id: dict[str, Entry] = {}

    def look(self) -> None:
        """Read new lines; leave out lines that are not episodes, or are incomplete."""
        paths = [*self._folder.tokens.glob("*.jsonl"), self._folder.episodes]
        fresh = {path: known for path in paths if (known := self._read(path)) is not None}
        if fresh == self._known:
            return
        self._known = fresh
        newest = max((int(path.stem) for path in fresh if path.stem.isdecimal()), default=0)
        entries = [
            entry
            for path, known in fresh.items()
            for entry in known.entries
            # An iteration's training episodes are in the iteration's own file by now.
            if path != self._folder.episodes or entry.split != "train" or entry.iteration > newest
        ]
        self.entries = sorted(entries, key=lambda entry: (-entry.iteration, entry.file.name, entry.start))
        self.by_id = {entry.id: entry for entry in self.entries}

    def chosen(self, prompt: str, low: float | None, high: float | None) -> list[Entry]:
        """Return episodes with these letters in the prompt or its id, and with rewards from low to high."""
        letters = prompt.casefold()
        return [
            entry
            for entry in self.entries
            if (not letters or letters in entry.prompt.casefold() or letters in entry.sample.casefold())
            and (low is None or (entry.reward is not None and entry.reward >= low))
            and (high is None or (entry.reward is not None and entry.reward <= high))
        ]

    def group(self, name: str) -> list[dict[str, Any]]:
        """Return whole episodes of one group, as written; [] if the file has gone or changed."""
        entry = self.by_id.get(name)
        if entry is None:
            return []
        alike = [entry] if entry.group is None else self._known[entry.file].entries
        rows = []
        for other in alike:
            if other.group == entry.group:
                row = _at(other)
                rows += [{**row, **other.shown()}] if row is not None else []
        return rows

    def _read(self, path: Path) -> Known | None:
        try:
            with path.open("rb") as opened:
                state = os.fstat(opened.fileno())
                known = self._known.get(path)
                if known and (known.node, known.changed) == (state.st_ino, state.st_mtime_ns):
                    return known
                grows = known is not None and path == self._folder.episodes
                if known is None or not grows or known.node != state.st_ino or known.place > state.st_size:
                    known = Known(state.st_ino, 0, 0, [])
                opened.seek(known.place)
                whole, newline, _ = opened.read().rpartition(b"\n")
        except OSError:
            return None
        place, entries = known.place, list(known.entries)
        for line in (whole + newline).splitlines(keepends=True):
            entries += _entries(path, place, line)
            place += len(line)
        return Known(state.st_ino, state.st_mtime_ns, place, entries)


def _entries(file: Path, start: int, line: bytes) -> Iterator[Entry]:
    """Yield the line's summary, or nothing if it is not an episode."""
    row = _object(line)
    try:
        turns = row["turns"]
        numbered = any("ratio" in turn.get("seen", {}) for turn in turns)
        iteration = row["iteration"] if "iteration" in row else row["weights"] + (row["split"] == "train")
        length = row["length"] if "length" in row else sum(turn["written"] or 0 for turn in turns)
        reward = None if row.get("reward") is None else float(row["reward"])
        yield Entry(
            f"{file.stem}@{start}",
            int(iteration),
            str(row["split"]),
            str(row["sample_id"]),
            str(row["prompt_text"])[:MOST_LETTERS],
            reward,
            int(length),
            str(row.get("end", "")),
            row.get("group"),
            numbered,
            *(file, start, len(line)),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        row = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _at(entry: Entry) -> Mapping[str, Any] | None:
    try:
        with entry.file.open("rb") as opened:
            opened.seek(entry.start)
            row = _object(opened.read(entry.size))
    except OSError:
        return None
    return row if row.get("turns") is not None else None
