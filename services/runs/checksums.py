"""Checksums of a run's folders: size and SHA-256 of each file, in `checksums.json`.

{"files": {"policy.safetensors": {"size": 497774208, "sha256": "9f2c…"}, …}}
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from contracts.errors import InputError
from services.models.safetensors_files import count_numbers
from services.runs.json_lines import read_json, read_object, write_atomically

CHECKSUMS = "checksums.json"
THREADS = 4  # files read at once
SHOWN = 3  # files in a message

Files = dict[str, dict[str, Any]]  # path within the folder: {"size": …, "sha256": …}


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged file. Example: `Damage("policy.safetensors", "has 1024 bytes; 4096 were written")`"""

    file: str
    why: str

    def __str__(self) -> str:
        return f"{self.file} {self.why}"


def told(damage: Sequence[Damage]) -> str:
    """List damaged files for a message.

    >>> told([Damage("a", "is missing"), *[Damage("b", "…")] * 4])
    'a is missing; b …; b …; and 2 more files'
    """
    more = len(damage) - SHOWN
    return "; ".join([*map(str, damage[:SHOWN]), *[f"and {more} more files"] * (more > 0)])


def write_checksums(folder: Path) -> None:
    """Write the checksums of a complete folder into it."""
    files = {name: path for name, path in _files(folder).items() if name != CHECKSUMS}
    with ThreadPoolExecutor(THREADS) as threads:
        checksums = dict(zip(files, threads.map(said_of, files.values()), strict=True))
    write_atomically(folder / CHECKSUMS, json.dumps({"files": checksums}, indent=1) + "\n")


def read_checksums(folder: Path) -> Files | None:
    """Read a folder's checksums; None if it has none.

    Raises:
        InputError: the checksums themselves are damaged.
    """
    file = folder / CHECKSUMS
    if not file.exists():
        return None
    files = read_object(file).get("files")
    if isinstance(files, dict) and all(map(_is_entry, files.items())):
        return files
    raise InputError(f'{file} is damaged: expected {{"files": {{NAME: {{"size": …, "sha256": …}}}}}}')


def damage_in(folder: Path) -> list[Damage]:
    """Return each file that differs from its checksum or, without checksums, has a broken form."""
    try:
        files = read_checksums(folder)
    except InputError as error:
        return [Damage(CHECKSUMS, str(error).removeprefix(f"{folder / CHECKSUMS} "))]
    if files is None:
        return list(_broken(folder))
    with ThreadPoolExecutor(THREADS) as threads:
        reasons = threads.map(lambda file: _compared(folder / file[0], file[1]), files.items())
        return [Damage(name, why) for name, why in zip(files, reasons, strict=True) if why]


def said_of(path: Path) -> dict[str, Any]:
    """Compute a file's entry in `checksums.json`."""
    with path.open("rb") as file:
        return entry(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())


def entry(size: int, digest: str) -> dict[str, Any]:
    return {"size": size, "sha256": digest}


def _compared(path: Path, written: Mapping[str, Any]) -> str | None:
    """Return a file's fault, if any. Compare the size first, because that costs nothing."""
    try:
        if (size := path.stat().st_size) != written["size"]:
            return f"has {size} bytes; {written['size']} were written"
        return None if said_of(path) == written else "is not what was written: its SHA-256 differs"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"can't be read: {error.strerror}"


def _broken(folder: Path) -> Iterator[Damage]:
    for name, path in _files(folder).items():
        try:
            if path.suffix == ".safetensors":
                count_numbers(path)
            elif path.suffix == ".json":
                read_json(path)
        except InputError as error:
            yield Damage(name, str(error).removeprefix(f"{path} "))
        except (ValueError, OSError) as error:
            yield Damage(name, str(error))


def _is_entry(item: tuple[str, Any]) -> bool:
    path = PurePosixPath(item[0])
    is_inside = not path.is_absolute() and ".." not in path.parts
    return is_inside and isinstance(item[1], dict) and {"size", "sha256"} <= item[1].keys()


def _files(folder: Path) -> dict[str, Path]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in paths}
