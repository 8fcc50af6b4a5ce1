"""Rows of Python are read as the rows of a file are."""

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset, DatasetDict

from services.data.tasks.prompts import Prompts
from whetstone.errors import InputError
from whetstone.objects import Objects, configured
from whetstone.rows import PLACE, placed, write

ROWS: list[dict[str, Any]] = [
    {"question": f"{number} + 1?", "answer": str(number + 1)} for number in range(20)
]


def made(task: Any, folder: Path) -> Prompts:
    """Return the task of an argument, made of the files that its rows become."""
    kept = Objects()
    config = configured({"task": task}, kept)["task"]
    write(kept.rows, folder)
    options = placed(config, folder)
    assert options.pop("name") == "prompts"
    return Prompts(**options)


def generated() -> Iterator[dict[str, Any]]:
    yield from ROWS


@pytest.mark.parametrize(
    "task",
    [ROWS, generated(), pd.DataFrame(ROWS), Dataset.from_list(ROWS), {"name": "prompts", "data_files": ROWS}],
)
def test_prompts_and_references_are_found_in_each_kind_of_rows(task: Any, tmp_path: Path) -> None:
    train = made(task, tmp_path).prompts("train")
    assert [prompt.text for prompt in train][:2] == ["0 + 1?", "1 + 1?"]
    assert train[1].references == ("2",)
    assert len(train) == 16  # the ninth and the tenth of each ten are for validation and test


def test_splits_are_kept_apart(tmp_path: Path) -> None:
    splits = {"train": ROWS[:15], "validation": ROWS[15:], "test": ROWS[15:]}
    for task in (splits, DatasetDict({name: Dataset.from_list(rows) for name, rows in splits.items()})):
        source = made(task, tmp_path)
        assert [len(source.prompts(split)) for split in ("train", "validation")] == [15, 5]


def test_texts_alone_are_prompts(tmp_path: Path) -> None:
    prompts = made([f"say {number}" for number in range(10)], tmp_path).prompts("train")
    assert prompts[0].text == "say 0"


def test_cells_of_libraries_become_json(tmp_path: Path) -> None:
    frame = pd.DataFrame({"prompt": ["a"], "n": [np.int64(3)], "day": [date(2026, 1, 2)], "none": [np.nan]})
    kept = Objects()
    configured({"task": frame}, kept)
    (rows,) = kept.rows.values()
    assert rows == [{"prompt": "a", "n": 3, "day": "2026-01-02", "none": None}]
    write(kept.rows, tmp_path)
    assert json.loads(next(tmp_path.glob("train-*.jsonl")).read_text()) == rows[0]


def test_other_rows_are_other_files() -> None:
    places = []
    for rows in (ROWS, ROWS, ROWS[1:]):
        kept = Objects()
        configured({"task": rows}, kept)
        places += kept.rows
    assert places[0] == places[1] != places[2]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": object()}], "task: train row 0, column 'prompt': got object; expected text, numbers"),
        (iter([3]), "task: train row 0: got 3; expected a text, or a dict"),
        (iter([]), "task: train has no rows"),
    ],
)
def test_what_is_no_row_is_refused_with_its_place(rows: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        configured({"task": rows}, Objects())


def test_names_and_mappings_of_files_are_no_rows() -> None:
    for task in ("imdb", {"name": "prompts", "data_files": "a.jsonl"}, {"data_files": {"train": "a.jsonl"}}):
        kept = Objects()
        assert configured({"task": task}, kept) == {"task": task} and not kept.rows


@pytest.mark.parametrize(
    "overrides",
    [
        {"task__data_files": ["a.jsonl", "b.jsonl"]},
        {"task": {"name": "prompts", "data_files": {"train": ["a.jsonl"]}}},
        {"data__files": ["a.jsonl"]},
        {"data": {"files": ("a.jsonl", "b.jsonl")}},
        {"data": {"path": ["a"]}},
    ],
)
def test_lists_of_names_are_no_rows(overrides: dict[str, Any]) -> None:
    kept = Objects()
    as_lists = json.loads(json.dumps(overrides))
    assert configured(overrides, kept) == as_lists and not kept.rows


def test_names_that_come_one_by_one_are_refused() -> None:
    with pytest.raises(InputError, match=r"data.files: train row 0: got 'a.jsonl'; expected a dict"):
        configured({"data__files": iter(["a.jsonl"])}, Objects())


def test_files_is_no_split() -> None:
    for data in ({"files": ROWS}, {"files": {"train": ROWS}}):
        kept = Objects()
        assert configured({"data": data}, kept) == {"data": {"files": {"train": next(iter(kept.rows))}}}
    for task in ({"name": "prompts", "data_files": ROWS}, {"data_files": ROWS}):
        place = configured({"task": task}, Objects())["task"]["data_files"]["train"]
        assert place.startswith("rows of Python/train-")


def test_a_split_without_a_name_of_ours_is_refused() -> None:
    with pytest.raises(InputError, match="got rows of the split 'dev'; expected train, validation, test"):
        configured({"task": {"train": ROWS, "dev": ROWS}}, Objects())


def test_a_file_that_is_cut_short_is_not_there(tmp_path: Path) -> None:
    half_a_pair = [{"prompt": "a" * 100_000}, {"prompt": "\ud800"}]
    with pytest.raises(UnicodeEncodeError):
        write({f"{PLACE}train-1.jsonl": half_a_pair}, tmp_path)
    assert not list(tmp_path.iterdir())
