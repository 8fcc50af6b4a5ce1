"""Load the rows of a data set from a user's files, or through `datasets` from the hub.

`data_files` is a folder with train/validation/test.jsonl (or .json, .csv, .tsv, .parquet, or `save_to_disk`'s
files), a mapping of splits to files, or a single file, which is the train split.

A missing split is cut out of the train split. Of each ten rows, the ninth goes to a missing validation split
and the tenth to a missing test split; train keeps the rest. If `by` makes a text from a row, such as its
prompt, distinct texts are counted instead of rows, so that each text is in one split only.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from contracts.errors import InputError, did_you_mean, there_are
from contracts.network.hub import use_cache_if_unreachable
from services.data.tasks.base import SPLITS, Split
from services.data.tasks.cells import holds_nothing
from services.data.tasks.file_bytes import kind_of
from services.data.tasks.file_rows import FileRows, file_rows
from services.data.tasks.rows import SAVED, TEXT_KINDS, Check, check_columns, is_of_rows, read_checked

DataFiles = str | dict[str, str]
CUT_OUT_OF_TEN: dict[Split, int] = {"validation": 8, "test": 9}
NAMES_OF_OTHERS = ("val", "valid", "dev")  # other names of validation files
PARQUET_COPY = (
    "task.revision=refs/convert/parquet"  # for a data set that is a script; its only subset is "default"
)
NUM_EXAMPLES = 20  # rows of a `datasets.Dataset` that are searched for examples
ROWS_READ_AHEAD = 20_000  # checked without heavy imports, so that wrong rows are rejected at once


@dataclass(frozen=True, slots=True)
class FewByRow:
    """Key that divides rows among splits. With too few different texts, rows are divided one by one.

    Example: `FewByRow(itemgetter("prompt"))({"prompt": "a"}) == "a"`
    """

    text_of: Callable[[Mapping[str, Any]], str]

    def __call__(self, row: Mapping[str, Any]) -> str:
        return self.text_of(row)


def from_files(
    data_files: DataFiles,
    split: Split,
    columns: Sequence[str],
    check: Check | None = None,
    *,
    by: Callable[[Mapping[str, Any]], str] | None = None,
) -> Any:
    """Return one split of the files, with `columns`: `FileRows`, or a `datasets.Dataset` of Parquet.

    Args:
        check: rejects wrong rows at the beginning; None: the first column must hold texts.
        by: returns the text of a row by which rows are divided among splits without a file.

    Raises:
        InputError: a file is missing, empty, of an unknown kind, not JSON at some line, or lacks a column.
    """
    files, path = _file_for(data_files, split)
    read_checked(path, columns, ROWS_READ_AHEAD, check)
    rows = file_rows(path) if kind_of(path) in TEXT_KINDS else _read(path)
    check_columns(examples_of(rows), columns, f"task.data_files: {path}")
    return _cut(rows, split, files, f"task.data_files={path}", by)


def read_ahead(
    data_files: DataFiles | None,
    split: Split,
    columns: Sequence[str],
    check: Check | None = None,
    *,
    by: Callable[[Mapping[str, Any]], str] | None = None,
) -> list[dict[str, Any]]:
    """Return the first rows of a split without `datasets`, whose import takes seconds.

    `from_files` begins with the same rows. A Parquet file returns none here.

    Raises:
        InputError: as `from_files`.
    """
    if data_files is None:
        return []
    files, path = _file_for(data_files, split)
    rows = read_checked(path, columns, ROWS_READ_AHEAD, check)
    places = None if by is None or _is_whole(split, files) else _places(rows, by)
    kept = kept_rows(len(rows), split, files, f"task.data_files={path}", places) if rows else []
    return [rows[row] for row in kept]


def from_hub(
    name: str,
    split: Split,
    columns: Sequence[str],
    *,
    subset: str | None = None,
    revision: str | None = None,
    by: Callable[[Mapping[str, Any]], str] | None = None,
) -> Any:
    """Return one split of a data set on the hub (or in its local cache) as a `datasets.Dataset`.

    Raises:
        InputError: the data set can't be loaded, or lacks a column.
    """
    parts = hub_splits(name, subset, revision)
    source = split if split in parts else "train"
    if source not in parts:
        raise InputError(f"task.path={name}: the data set has no train split; {there_are(parts, 'splits')}")
    rows = parts[source]
    check_columns(examples_of(rows), columns, f"task.path={name}")
    return _cut(rows, split, parts, f"task.path={name}", by)


def examples_of(rows: Any) -> dict[str, Any]:
    """Return each column's first value that is not empty. Without a file, search only the first rows."""
    if isinstance(rows, FileRows):
        return dict(rows.examples)
    examples: dict[str, Any] = {}
    for row in islice(rows, NUM_EXAMPLES):
        examples |= {name: value for name, value in row.items() if holds_nothing(examples.get(name))}
    return examples


def hub_splits(
    name: str, subset: str | None = None, revision: str | None = None, data_dir: str | None = None
) -> Mapping[str, Any]:
    """Return all splits of a data set on the hub or in its local cache, or of its folder `data_dir`.

    Raises:
        InputError: the hub can't be reached, or the data set can't be loaded.
    """
    remedy = "Your own files need no hub: task.data_files=FOLDER."
    if not Path(name).is_dir() and not use_cache_if_unreachable() and not _may_be_cached(name):
        raise InputError(
            f"task.path={name}: the hub can't be reached, and its cache on this machine has no such data "
            f"set. {remedy}"
        )
    import datasets

    datasets.disable_progress_bars()
    try:
        loaded: Mapping[str, Any] = datasets.load_dataset(name, subset, revision=revision, data_dir=data_dir)
    except Exception as error:  # the hub's client raises some twenty kinds
        reason = str(error).strip().split("\n")[0]
        if "scripts are no longer supported" in reason:
            remedy = f"The hub may have a copy in Parquet: {PARQUET_COPY}. {remedy}"
        raise InputError(
            f"task.path={name} can't be loaded: {type(error).__name__}: {reason}. {remedy}"
        ) from None
    return loaded


def expect_files(value: Any) -> Any:
    """Check the type of `DataFiles` in a validator, with one message instead of one for each type.

    Raises:
        ValueError: the value is neither a text nor a mapping.
    """
    if value is None or isinstance(value, str | dict):
        return value
    raise ValueError("expected a folder, a file, or a mapping of splits to files")


def split_files(data_files: DataFiles) -> dict[str, str]:
    """Return each split's file.

    Raises:
        InputError: a split has an unknown name, or the folder has no training file.
    """
    if isinstance(data_files, dict):
        for name in data_files:
            if name not in SPLITS:
                raise InputError(
                    f"task.data_files.{name}: there is no such split{did_you_mean(name, SPLITS)}"
                )
        return data_files
    path = Path(data_files)
    if not path.is_dir() or (path / SAVED).is_file():
        return {"train": data_files}
    by_split: dict[str, str] = {}
    for split in SPLITS:
        files = _of_formats(path, split)
        files += [path / split] if (path / split / SAVED).is_file() else []
        if len(files) > 1:
            raise InputError(
                f"task.data_files={data_files}: {files[0].name} and {files[1].name} both belong to the split "
                f"{split}; expected one of them, or task.data_files={{{split}: FILE, …}}"
            )
        if files:
            by_split[split] = str(files[0])
    if "train" not in by_split:
        there = ", ".join(sorted(os.listdir(path))[:10]) or "nothing"
        is_of_hub = any(file for pattern in ("", "data/") for file in path.glob(f"{pattern}train-*-of-*"))
        remedy = f". task.path={data_files} reads pieces such as train-00000-of-00002" if is_of_hub else ""
        raise InputError(
            f"task.data_files={data_files}: the folder has no train.jsonl (.json, .csv, .tsv or .parquet); "
            f"there is: {there}{remedy}"
        )
    return by_split


def _refuse_other_names(folder: Path) -> None:
    """Reject a folder whose validation file has another name, because its rows would be left out."""
    for other in (file for name in NAMES_OF_OTHERS for file in _of_formats(folder, name)):
        raise InputError(
            f"task.data_files={folder}: {other.name} belongs to no split; expected the name "
            f"validation{other.suffix}, or task.data_files={{train: FILE, validation: FILE}}"
        )


def _of_formats(folder: Path, name: str) -> list[Path]:
    return [file for file in sorted(folder.glob(f"{name}.*")) if is_of_rows(file)]


def places_by(texts: Iterable[object]) -> list[int]:
    """Number the distinct texts in the order of appearance, and return each text's number.

    >>> places_by(["a", "b", "a", "c"])
    [0, 1, 0, 2]
    """
    numbers: dict[str, int] = {}
    return [numbers.setdefault(str(text), len(numbers)) for text in texts]


def kept_rows(
    num_rows: int, split: Split, present: Collection[str], where: str, places: Sequence[int] | None = None
) -> list[int]:
    """Return the rows of the source that serve `split`, if the source has the splits `present`.

    Args:
        places: number by which each row is divided; None: its index.

    Raises:
        InputError: the split would be empty.

    >>> kept_rows(12, "train", ("train", "test"), "here")
    [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11]
    >>> kept_rows(12, "validation", ("train", "test"), "here")
    [8]
    >>> kept_rows(3, "test", ("train", "test"), "here")
    [0, 1, 2]
    """
    places = range(num_rows) if places is None else places
    if split == "train":
        given_away = {place for name, place in CUT_OUT_OF_TEN.items() if name not in present}
        rows = [row for row, place in enumerate(places) if place % 10 not in given_away]
    elif split in present:
        rows = list(range(num_rows))
    else:
        rows = [row for row, place in enumerate(places) if place % 10 == CUT_OUT_OF_TEN[split]]
    if not rows:
        raise InputError(
            f"{where}: {num_rows} rows with {len(set(places))} different prompts leave none for "
            f"{split}, which takes one in ten of train. Give at least 10 different prompts, "
            f"or a file for each split: task.data_files={{train: …, {split}: …}}"
        )
    return rows


def _file_for(data_files: DataFiles, split: Split) -> tuple[dict[str, str], Path]:
    """Return all files by split, and the file for this split."""
    files = split_files(data_files)
    if isinstance(data_files, str) and Path(data_files).is_dir() and "validation" not in files:
        _refuse_other_names(Path(data_files))
    source = split if split in files else "train"
    if source not in files:
        raise InputError(f"task.data_files: there is no train split; {there_are(files, 'splits')}")
    return files, Path(files[source])


def _cut(
    rows: Any,
    split: Split,
    present: Collection[str],
    where: str,
    by: Callable[[Mapping[str, Any]], str] | None,
) -> Any:
    """Select the rows of a `datasets.Dataset` that serve the split."""
    places = None if by is None or _is_whole(split, present) else _places(rows, by)
    return rows.select(kept_rows(len(rows), split, present, where, places))


def _places(
    rows: Iterable[Mapping[str, Any]], by: Callable[[Mapping[str, Any]], str]
) -> Sequence[int] | None:
    """Return the number by which each row is divided; None: its index."""
    places = places_by(map(by, rows))
    return None if isinstance(by, FewByRow) and max(places, default=0) < 9 else places


def _is_whole(split: Split, present: Collection[str]) -> bool:
    """Tell whether a split has all rows of its file, so that none are divided."""
    return split in present and (split != "train" or CUT_OUT_OF_TEN.keys() <= set(present))


def _read(path: Path) -> Any:
    import datasets

    datasets.disable_progress_bars()
    try:
        if path.is_dir():
            return datasets.load_from_disk(str(path))
        return datasets.load_dataset(path.suffix[1:], data_files={"train": str(path)}, split="train")
    except Exception as error:  # pyarrow and datasets raise errors of their own
        reason = str(error.__cause__ or error).strip().split("\n")[0]
        raise InputError(f"task.data_files: {path} can't be read: {reason}") from None


def _may_be_cached(name: str) -> bool:
    """Tell whether the cache of the hub or of `datasets` has a folder for this data set."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    processed = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets"))
    return (hub / f"datasets--{name.replace('/', '--')}").is_dir() or (
        processed / name.lower().replace("/", "___")
    ).is_dir()
