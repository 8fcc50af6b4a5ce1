"""Files in the folder of `whetstone annotate`: complete parts of rows, and their manifest.

    manifest.json                    the source of the rows, and the settings of each stage
    rewards/part-000000064.parquet   the rows from 64 on with their scores; reference/ has the same rows
    value/                           generations, the head, the values
    annotated.parquet                the columns of all stages, row by row, for training

A part is written under a temporary name and then renamed, so a killed run leaves no half part. The next run
makes the missing parts.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from contracts.errors import InputError
from contracts.processes.disk import room_for
from services.data.tasks.responses import ResponseRow
from services.runs import claim as run_claim
from services.runs.json_lines import read_object, write_atomically

ANNOTATED, MANIFEST, TOLD = "annotated.parquet", "manifest.json", "told"
# Stages whose results each stage needs. If one of these changes, the stage is out of date, too.
STAGES: dict[str, tuple[str, ...]] = {
    "rows": (),
    "rewards": ("rows",),
    "reference": ("rows",),
    "generations": ("reference",),
    "value": ("generations",),
}
FILES = {
    "rows": ("rewards", "reference"),
    "rewards": ("rewards",),
    "reference": ("reference",),
    "generations": ("value/generations.parquet",),
    "value": ("value/values.parquet", "value/head.safetensors", "value/errors.json"),
}
NO_REWARDS: dict[str, Any] = {"rewards": {"parts": {}, TOLD: []}}  # entry of a manifest without rewards
ROW_GROUP = 1024  # rows per row group in annotated.parquet


@dataclass(frozen=True, slots=True)
class Parts:
    """Files that hold `num_rows` rows, `size` in each. A part is named by the number of its first row.

    Example: `Parts(Path("out/rewards"), num_rows=100, size=64)` has the parts 0 and 64, the last of 36 rows.
    """

    folder: Path
    num_rows: int
    size: int
    cuts: tuple[int, ...] | None = None  # first rows of the parts, if parts must not split groups

    @property
    def starts(self) -> Sequence[int]:
        return range(0, self.num_rows, self.size) if self.cuts is None else self.cuts

    def rows(self, start: int) -> range:
        if self.cuts is None:
            return range(start, min(start + self.size, self.num_rows))
        later = [cut for cut in self.cuts if cut > start]
        return range(start, later[0] if later else self.num_rows)

    def file(self, start: int) -> Path:
        return self.folder / f"part-{start:09d}.parquet"

    def missing(self) -> list[int]:
        """Return the missing parts, in order."""
        there = {path.name for path in self.folder.glob("part-*.parquet")}
        return [start for start in self.starts if self.file(start).name not in there]

    def write(self, start: int, table: pa.Table) -> None:
        if table.num_rows != len(self.rows(start)):
            raise ValueError(f"part {start} has {len(self.rows(start))} rows; got {table.num_rows}")
        write_table(self.file(start), [table])

    def read(self, start: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Read a part.

        Raises:
            InputError: the file is damaged, or has a wrong number of rows.
        """
        table = read_table(self.file(start), columns)
        if table.num_rows != len(self.rows(start)):
            raise InputError(
                f"{self.file(start)} has {table.num_rows} rows, expected {len(self.rows(start))}; delete it, "
                "and the next run makes it again"
            )
        return table


def cuts_between(groups: Sequence[int], size: int) -> tuple[int, ...]:
    """Return the first rows of parts of at least `size` rows, each ending with a group.

    Args:
        groups: group of each row.

        Raises:
        InputError: the rows of a group are not next to each other.

    >>> cuts_between([0, 0, 0, 1, 2, 2], size=2)
    (0, 3)
    """
    cuts: list[int] = []
    first: dict[int, int] = {}
    for row, group in enumerate(groups):
        if row and groups[row - 1] == group:
            continue
        if first.setdefault(group, row) != row:
            raise InputError(
                f"rows {first[group]} and {row} belong to one prompt, with others in between, but a reward "
                "scores whole groups: expected the rows of a prompt next to each other; sort the data"
            )
        if not cuts or row - cuts[-1] >= size:
            cuts.append(row)
    return tuple(cuts)


def write_table(file: Path, tables: Iterable[pa.Table]) -> None:
    """Write the rows of several tables with one schema into one file, which appears only when complete.

    The same rows give the same bytes, however they are divided into tables.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    neighbour = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with room_for(file), neighbour.open("wb") as opened:
            _write(opened, iter(tables))
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(neighbour, file)
    finally:
        neighbour.unlink(missing_ok=True)


def read_table(file: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file.

    Raises:
        InputError: the file is missing or damaged.
    """
    try:
        return pq.read_table(file, columns=None if columns is None else list(columns), partitioning=None)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).strip().split("\n")[0]
        raise InputError(
            f"{file} can't be read: {reason}. Delete it, and the next run makes it again"
        ) from None


def fingerprint(rows: Iterable[ResponseRow]) -> str:
    """Return a hash of everything that rewards can read: texts, order, groups and meta data."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(asdict(row), sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()


def files_fingerprint(folder: Path, names: Iterable[str] = ("*.json", "*.safetensors", "*.bin")) -> str:
    """Return a hash of a model's files; the folder's path does not matter."""
    digest = hashlib.sha256()
    for path in sorted({path for name in names for path in folder.glob(name)}):
        with path.open("rb") as opened:
            digest.update(f"{path.name} {hashlib.file_digest(opened, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def reference_fingerprint(path: str, folder: Path) -> str:
    """Return a hash of a local model's files, or a hub model's name and commit, which names `folder`."""
    return files_fingerprint(Path(path)) if Path(path).is_dir() else f"{path} {folder.name}"


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Claim an annotation's folder for this process, and remove half-written files of a killed run.

    Raises:
        InputError: the folder is in use, can't be written, or holds something else than an annotation.
    """
    if folder.is_file():
        raise InputError(f"output={folder} is a file; expected a folder's name")
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    # A run that is killed at its start leaves only a lock and half a manifest.
    others = [name for name in there if name != ".lock" and not name.startswith(f".{MANIFEST}.")]
    if others and MANIFEST not in there:
        raise InputError(f"output={folder} holds {others[0]!r} but no {MANIFEST}; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        run_claim.lock(folder)
    except InputError:
        raise InputError(f"output={folder}: another `whetstone annotate` uses this folder; wait") from None
    except OSError as error:
        raise InputError(f"output={folder} can't be written: {error.strerror}") from None
    for leftover in folder.rglob(".*.tmp"):  # from a run that was killed while writing
        leftover.unlink(missing_ok=True)
    yield


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest; return {} if there is none.

    Raises:
        InputError: the manifest or one of its stages is not a JSON object.
    """
    file = folder / MANIFEST
    manifest = read_object(file) if file.exists() else {}
    for stage in STAGES:
        if not isinstance(manifest.get(stage, {}), dict):
            raise InputError(f"{file} is damaged: expected an object {{…}} under {stage!r}")
    return manifest


def settle_manifest(folder: Path, settings: Mapping[str, Any], *, overwrite: bool) -> None:
    """Compare the manifest with the new settings, and write these into it.

    A stage without new settings stays unchanged. Rows without rewards are replaced once the settings have
    rewards. Values under `told`, such as a reward's weight, do not affect the files, so they are replaced
    without comparison.

    Args:
        settings: settings of each stage.
        overwrite: True: delete stages that were made with other settings, and all stages that need these.

    Raises:
        InputError: settings differ, and `overwrite` is false; the message names the differences.
    """
    there = read_manifest(folder)
    had_rewards, asks_rewards = (bool(stages.get("rewards", {}).get("parts")) for stages in (there, settings))
    gets_rewards = asks_rewards and not had_rewards
    changed = {
        stage: differences
        for stage in STAGES
        if stage in there and stage in settings and not (stage == "rewards" and gets_rewards)
        if (
            differences := run_claim.config_differences(
                there[stage], run_claim.plain(settings[stage]), may_change=(TOLD,)
            )
        )
    }
    if changed and not overwrite:
        lines = [
            f"  {stage}.{key}: {before} in the folder, {now} now"
            for stage, differences in changed.items()
            for key, before, now in differences
        ]
        raise InputError(
            f"output={folder} holds an annotation with other settings:\n"
            + "\n".join(lines)
            + "\nGive output=OTHER, or overwrite=true to repeat the stages whose settings differ"
        )
    anew = [*changed, *(["rewards"] if gets_rewards else [])]
    if anew:
        (folder / ANNOTATED).unlink(missing_ok=True)
    for stage in _with_dependents(anew):
        there.pop(stage, None)
        for name in FILES[stage]:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    merged = run_claim.plain({"format": 1, **NO_REWARDS, **there, **settings})
    write_atomically(folder / MANIFEST, json.dumps(merged, indent=1, ensure_ascii=False) + "\n")


def _with_dependents(changed: Iterable[str]) -> list[str]:
    affected = set(changed)
    for stage, needed in STAGES.items():  # each stage comes after the stages that it needs
        if affected & set(needed):
            affected.add(stage)
    return [stage for stage in STAGES if stage in affected]


def _write(opened: Any, tables: Iterator[pa.Table]) -> None:
    waiting = next(tables)
    with pq.ParquetWriter(opened, waiting.schema, compression="zstd") as writer:
        for table in tables:
            waiting = pa.concat_tables([waiting, table])
            if whole := waiting.num_rows // ROW_GROUP * ROW_GROUP:
                writer.write_table(waiting.slice(0, whole).combine_chunks(), row_group_size=ROW_GROUP)
                waiting = waiting.slice(whole)
        if waiting.num_rows:
            writer.write_table(waiting.combine_chunks(), row_group_size=ROW_GROUP)
