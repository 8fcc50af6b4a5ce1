"""Traits that all tasks of data sets share: sources of rows, streaming, sizes, refusals."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from contracts.components import find
from contracts.errors import InputError
from contracts.rollout import Prompt
from services.config.compose import run_settings
from services.data.tasks import TASKS
from services.data.tasks.base import SPLITS, ReadsAhead, Split
from services.data.tasks.data_set import DataSetTask
from services.data.tasks.lazy import PromptsOfRows
from services.data.tasks.rows import text_at

DATA_SETS = [name for name in TASKS if issubclass(find("task", name, TASKS), DataSetTask)]


class Words(DataSetTask):
    """Each word of a row's text is a prompt, and what stands before it the reference."""

    task_name: ClassVar[str] = "words"
    columns: ClassVar[tuple[str, ...]] = ("text",)
    one_each: ClassVar[bool] = False

    def of_row(self, split: Split, fields: Mapping[str, Any], where: str) -> list[Prompt]:
        words = text_at(fields, "text", where).split(" ")
        return [Prompt(str(n), word, (f"{n} before",)) for n, word in enumerate(words)]


def file_of(path: Path, texts: Sequence[Any]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def everywhere(file: str) -> dict[str, str]:
    return {split: file for split in SPLITS}


def test_every_data_set_is_one_of_rl4lms_or_lolrls_or_has_right_answers() -> None:
    of_others = {"increasing_numbers", "dates", "dummy", "prompts", "textworld", "episodes"}
    of_others |= {"reasoning_gym", "mixture", "everyday_questions"}
    assert set(TASKS) - set(DATA_SETS) == of_others
    assert len(DATA_SETS) == 13 + 6 + len({"gsm8k", "math"})
    for name in DATA_SETS:
        kind = find("task", name, TASKS)
        assert kind.task_name == name and kind().path + name


@pytest.mark.parametrize("name", DATA_SETS)
def test_what_a_file_lacks_is_said_before_anything_heavy_is_imported(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"nothing": 1}\n')
    task = find("task", name, TASKS)(data_files=str(tmp_path))
    assert isinstance(task, ReadsAhead)
    with pytest.raises(InputError, match=r"train\.jsonl, line 1: .*nothing"):
        task.first_prompts("train")


def test_rows_may_make_any_number_of_prompts(tmp_path: Path) -> None:
    task = Words(data_files=everywhere(file_of(tmp_path / "a.jsonl", ["a b", "c", "d e f"])))
    prompts = task.prompts("test")
    assert [prompt.text for prompt in prompts] == ["a", "b", "c", "d", "e", "f"]
    assert [prompt.id for prompt in prompts][1:4] == ["words/test/0/1", "words/test/1/0", "words/test/2/0"]


@pytest.mark.parametrize("skip_empty", [False, True])
@pytest.mark.parametrize("max_size", [None, 4])
def test_streamed_read_ahead_and_whole_are_the_same(
    tmp_path: Path, skip_empty: bool, max_size: int | None
) -> None:
    options = {"max_size": max_size, "skip_empty": skip_empty}
    file = file_of(tmp_path / "a.jsonl", ["a b", "c", "d e f"] * 10)
    for data_files in (file, everywhere(file)):
        for split in SPLITS:
            whole = Words(data_files=data_files, **options).prompts(split)
            streamed = Words(data_files=data_files, streaming=True, **options).prompts(split)
            assert list(streamed) == streamed[:] == whole
            assert [streamed[index] for index in range(-len(whole), 0)] == whole
            assert Words(data_files=data_files, **options).first_prompts(split) == whole
            assert len(whole) <= (max_size or 60)


def test_nothing_is_made_before_it_is_asked_for() -> None:
    made: list[int] = []

    def make(row: int, fields: Mapping[str, Any]) -> list[Prompt]:
        made.append(row)
        return [Prompt(str(row), fields["text"])]

    prompts = PromptsOfRows([{"text": letter} for letter in "abcde"], make, max_size=4)
    assert (len(prompts), made) == (4, [])
    assert (prompts[2].text, made) == ("c", [2])
    assert ([prompt.text for prompt in prompts], made) == (list("abcd"), [2, 0, 1, 2, 3])


def test_empty_texts_are_refused_to_the_line_or_left_out(tmp_path: Path) -> None:
    files = everywhere(file_of(tmp_path / "a.jsonl", ["a", "b  c"]))  # a word of nothing between two blanks
    with pytest.raises(InputError, match=r"a\.jsonl, line 2: the prompt is empty; task\.skip_empty=true"):
        Words(data_files=files).prompts("train")
    left = Words(data_files=files, skip_empty=True).prompts("train")
    assert [prompt.text for prompt in left] == ["a", "b", "c"]


def test_rows_beyond_what_is_read_ahead_are_named_by_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.data.tasks.files.ROWS_READ_AHEAD", 2)
    files = everywhere(file_of(tmp_path / "a.jsonl", ["a", "b", "c", " "]))
    with pytest.raises(InputError, match=r"^task=words, validation row 3: the prompt is empty"):
        Words(data_files=files).prompts("validation")


def test_a_split_that_is_missing_is_cut_out_of_train(tmp_path: Path) -> None:
    file = file_of(tmp_path / "a.jsonl", [f"w{i}" for i in range(20)])
    task = Words(data_files=file)
    assert [prompt.text for prompt in task.prompts("validation")] == ["w8", "w18"]
    assert [prompt.text for prompt in task.prompts("test")] == ["w9", "w19"]


def test_a_hub_data_set_that_is_a_script_comes_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    def refuses(*_: Any, **__: Any) -> None:
        raise RuntimeError("Dataset scripts are no longer supported, but found words.py")

    monkeypatch.setattr(datasets, "load_dataset", refuses)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HF_DATASETS_CACHE", raising=False)
    (tmp_path / "hub" / "datasets--someone--words").mkdir(parents=True)  # so that it may be cached
    with pytest.raises(InputError, match=r"Parquet: task\.revision=refs/convert/parquet\. Your own files"):
        Words(path="someone/words").prompts("train")


def test_the_class_that_the_documentation_shows_is_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = (Path(__file__).parents[4] / "docs" / "tasks.md").read_text(encoding="utf-8")
    (code,) = (
        block for block in re.findall(r"```python\n(.*?)```", document, re.DOTALL) if "DataSetTask" in block
    )
    (tmp_path / "questions_task.py").write_text(code)
    (tmp_path / "all.jsonl").write_text('{"question": "Why?", "answer": "So."}\n' * 10)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    task = run_settings(
        ["model.path=m", "task=questions_task:Questions", "task.data_files=all.jsonl", "task.max_size=1"]
    ).task
    assert task.prompts("train") == [Prompt("questions/train/0", "Why?", ("So.",))]
