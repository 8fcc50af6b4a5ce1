"""Tasks: their prompts, disjoint splits, and messages about bad data."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InputError
from contracts.rollout import Prompt
from contracts.settings import build
from services.data.tasks.base import SPLITS, ReadsAhead, Split
from services.data.tasks.dates import Dates
from services.data.tasks.files import kept_rows
from services.data.tasks.imdb import Imdb
from services.data.tasks.increasing_numbers import IncreasingNumbers
from services.data.tasks.prompts import Prompts
from services.data.tasks.rows import read_checked

REAL_SAMPLES = Path(__file__).parents[5] / "shared" / "data"  # a folder of real samples beside the repository


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def texts(prompts: Sequence[Prompt]) -> list[str]:
    return [prompt.text for prompt in prompts]


# Synthetic


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20)
def test_numbers_ascend_and_no_split_shares_a_prompt(seed: int) -> None:
    task = IncreasingNumbers(num_prompts=40, num_eval_prompts=10, seed=seed)
    prompts = [text for split in SPLITS for text in texts(task.prompts(split))]
    assert len(prompts) == len(set(prompts)) == 60
    for text in prompts:
        numbers = [int(word) for word in text.split()]
        assert len(numbers) == 2 and numbers == sorted(set(numbers))


@pytest.mark.parametrize("kind", [IncreasingNumbers, Dates])
def test_a_seed_gives_the_same_prompts_and_another_seed_others(
    kind: type[IncreasingNumbers] | type[Dates],
) -> None:
    assert kind(seed=1).prompts("train") == kind(seed=1).prompts("train")
    assert texts(kind(seed=1).prompts("train")) != texts(kind(seed=2).prompts("train"))


def test_ids_name_task_split_and_row() -> None:
    assert Dates().prompts("validation")[3].id == "dates/validation/3"


def test_dates_hold_no_date_yet_and_no_split_shares_a_prompt() -> None:
    prompts = [text for split in SPLITS for text in texts(Dates().prompts(split))]
    assert len(prompts) == len(set(prompts)) == 256 + 2 * 64
    assert not any(character.isdigit() for text in prompts for character in text)


def test_more_prompts_than_there_are_is_refused() -> None:
    # 5 numbers make 10 ascending pairs.
    with pytest.raises(InputError, match=r"make 12 prompts, but there are only 10 different ones"):
        IncreasingNumbers(below=5, num_prompts=10, num_eval_prompts=1).prompts("train")


# IMDB


def test_imdb_asks_with_the_first_half_of_the_words(tmp_path: Path) -> None:
    # 5 words: int(2.5) = 2 of them; a double blank counts as an empty word, as in a plain split(" ").
    write(tmp_path / "train.jsonl", [{"text": "a b c d e", "label": 1}, {"text": "a  b c", "label": 0}] * 10)
    first, second = Imdb(data_files=str(tmp_path)).prompts("train")[:2]
    assert first == Prompt("imdb/train/0", "a b", ("a b c d e",), {"label": 1})
    assert second.text == "a "


def test_imdb_caps_the_prompt(tmp_path: Path) -> None:
    file = write(tmp_path / "reviews.jsonl", [{"text": " ".join("abcdefghij")}] * 10)
    prompt = Imdb(data_files=str(file), max_words=3).prompts("train")[0]
    assert (prompt.text, prompt.meta) == ("a b c", {})


def test_imdb_from_a_data_set_with_its_own_two_parts_divides_them_as_rl4lms_does(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [{"text": f"train{i} x", "label": 0} for i in range(20)])
    write(tmp_path / "test.jsonl", [{"text": f"test{i} x", "label": 0} for i in range(7)])
    task = Imdb(path=str(tmp_path), seed=3)
    train, validation, test = (texts(task.prompts(split)) for split in SPLITS)
    assert (len(train), len(validation), len(test)) == (16, 4, 7)  # 80 % and 20 % of 20
    assert {*train, *validation} == {f"train{i}" for i in range(20)}
    assert {*test} == {f"test{i}" for i in range(7)}
    assert train != texts(Imdb(path=str(tmp_path), seed=4).prompts("train"))


def test_a_data_set_that_can_not_be_fetched_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HF_DATASETS_CACHE", raising=False)
    with pytest.raises(InputError, match=r"stanfordnlp/imdb: the hub can't be reached.*task\.data_files="):
        Imdb().prompts("train")


# Files of one's own


def test_prompts_take_columns_of_any_name(tmp_path: Path) -> None:
    row = {"question": "why?", "answers": ["so", "thus"], "topic": "x", "unused": 1}
    file = write(tmp_path / "all.jsonl", [row] * 10)
    task = Prompts(
        data_files=str(file), prompt_column="question", references_column="answers", meta_columns=("topic",)
    )
    assert task.prompts("test") == [Prompt("prompts/test/0", "why?", ("so", "thus"), {"topic": "x"})]


def test_prompts_take_weights_from_a_column(tmp_path: Path) -> None:
    file = write(tmp_path / "all.jsonl", [{"prompt": "a", "w": weight} for weight in (2, 0.5, 0)])
    task = Prompts(
        data_files={"train": str(file), "validation": str(file), "test": str(file)}, weight_column="w"
    )
    assert [prompt.weight for prompt in task.prompts("train")] == [2.0, 0.5, 0.0]


@pytest.mark.parametrize("weight", [-1, "heavy", None])
def test_a_weight_that_is_none_is_refused(tmp_path: Path, weight: Any) -> None:
    file = write(tmp_path / "all.jsonl", [{"prompt": "a", "w": weight}] * 10)
    with pytest.raises(
        InputError, match=r"train row 0: expected a weight, a number of at least 0, in column 'w'"
    ):
        Prompts(data_files=str(file), weight_column="w").prompts("train")


@pytest.mark.parametrize("limit", [None, 3])
def test_streamed_prompts_are_the_same(tmp_path: Path, limit: int | None) -> None:
    file = write(tmp_path / "all.jsonl", [{"prompt": f"p{i}", "answer": "b"} for i in range(30)])
    options = {"data_files": str(file), "references_column": "answer", "limit": limit}
    for split in SPLITS:
        whole = Prompts(**options).prompts(split)
        streamed = Prompts(**options, streaming=True).prompts(split)
        assert not isinstance(streamed, list)
        assert list(streamed) == streamed[:] == whole and len(streamed) == len(whole)
        assert streamed[-1] == whole[-1] and streamed[1:3] == whole[1:3]
        with pytest.raises(IndexError):
            streamed[len(whole)]


def test_a_single_reference_may_be_a_plain_text(tmp_path: Path) -> None:
    file = write(tmp_path / "all.jsonl", [{"prompt": "a", "answer": "b"}] * 10)
    assert Prompts(data_files=str(file), references_column="answer").prompts("train")[0].references == ("b",)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_other_formats_give_the_same_prompts(tmp_path: Path, suffix: str) -> None:
    import pandas

    frame = pandas.DataFrame({"prompt": [f"p{i}" for i in range(20)]})
    path = tmp_path / f"train.{suffix}"
    {
        "csv": lambda: frame.to_csv(path, index=False),
        "parquet": lambda: frame.to_parquet(path),
        "json": lambda: frame.to_json(path, orient="records"),
    }[suffix]()
    task = Prompts(data_files=str(tmp_path))
    assert texts(task.prompts("validation")) == ["p8", "p18"]
    assert task.first_prompts("train") == ([] if suffix == "parquet" else task.prompts("train"))


def test_a_folder_a_mapping_and_a_limit(tmp_path: Path) -> None:
    files = {
        split: write(tmp_path / f"{split}.jsonl", [{"prompt": f"{split}{i}"} for i in range(3)])
        for split in SPLITS
    }
    folder = Prompts(data_files=str(tmp_path))
    mapping = Prompts(data_files={split: str(file) for split, file in files.items()}, limit=2)
    for split in SPLITS:
        assert texts(folder.prompts(split)) == [f"{split}{i}" for i in range(3)]
        assert texts(mapping.prompts(split)) == [f"{split}{i}" for i in range(2)]


@given(num_rows=st.integers(10, 300), present=st.sets(st.sampled_from(["validation", "test"])))
def test_splits_cut_out_of_train_never_share_a_row(num_rows: int, present: set[str]) -> None:
    cut: list[Split] = [split for split in SPLITS if split not in present]
    shares = [kept_rows(num_rows, split, {"train", *present}, "here") for split in cut]
    assert sorted(row for share in shares for row in share) == list(range(num_rows))


@pytest.mark.parametrize("task", [Imdb, Prompts])
def test_reading_ahead_gives_the_first_prompts(tmp_path: Path, task: Callable[..., Any]) -> None:
    write(tmp_path / "train.jsonl", [{"text": f"a{i} b c d", "prompt": f"p{i}"} for i in range(30)])
    made = task(data_files=str(tmp_path))
    assert isinstance(made, ReadsAhead)
    for split in SPLITS:
        assert made.first_prompts(split) == made.prompts(split)


# Bad data


def refused(content: bytes | None, tmp_path: Path, name: str = "train.jsonl") -> str:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        Prompts(data_files=str(tmp_path / name)).prompts("train")
    return str(caught.value)


GOOD = b'{"prompt": "a"}\n'


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b"\n \n", "holds no rows"),
        (GOOD + b'{"prompt": \n', "line 2, column 11: not JSON"),
        (GOOD + b"[1]\n", "line 2: expected an object {…}, got [1]"),
        (b'{"promt": "a"}\n', "line 1: there is no column 'prompt'; did you mean 'promt'?"),
        (b'{"text": "a", "label": 1}\n', "line 1: there is no column 'prompt'; there are: label, text"),
        (b'{"prompt": "\xff"}\n', "is not UTF-8"),
        (GOOD * 3 + b'{"prompt": null}\n', "line 4: expected a text in column 'prompt', got None"),
        (GOOD + b'\n{"prompt": 5}\n', "line 3: expected a text in column 'prompt', got 5"),
    ],
)
def test_a_bad_file_is_named_to_the_line(content: bytes | None, part: str, tmp_path: Path) -> None:
    message = refused(content, tmp_path)
    assert part in message
    assert "train.jsonl" in message


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "question,label\n1 2,0\n", "a.csv, line 1: there is no column 'prompt'; there are: label"),
        ("a.csv", "label,prompt\n0,a\n1\n", "a.csv, line 3: expected 2 cells, as in the header, got 1: 1. A"),
        ("a.csv", "prompt,label\n", "a.csv holds no rows"),
        ("a.json", '[{"prompt": "a"},\n {"prompt": }]', "a.json, line 2, column 13: not JSON"),
        (
            "a.json",
            '[{"prompt": "a"}, {"promt": "b"}]',
            "a.json, row 2: there is no column 'prompt'; did you",
        ),
        ("a.json", '{"prompt": "a"}\n{"prompt": \n', "a.json, line 2, column 11: not JSON"),
        ("a.json", "[]", "a.json holds no rows"),
    ],
)
def test_other_formats_are_refused_without_importing_what_takes_seconds(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=re.escape(message)):
        read_checked(tmp_path / name, ["prompt"])


def test_a_byte_order_mark_and_a_break_within_quotes_are_read_as_they_are_meant(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfprompt,label\r\n"two\r\nlines",1\r\n')
    assert read_checked(tmp_path / "a.csv", ["prompt"]) == [{"prompt": "two\r\nlines", "label": "1"}]


def test_json_that_is_no_list_is_one_row(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"prompt":\n "a", "n": [1, 2]}')
    assert read_checked(tmp_path / "a.json", ["prompt"]) == [{"prompt": "a", "n": [1, 2]}]


def test_what_is_neither_file_nor_folder_nor_mapping_is_refused_in_one_line() -> None:
    with pytest.raises(InputError) as caught:
        build(Prompts, {"data_files": ["a.jsonl"]}, where="task")
    assert str(caught.value) == (
        "task.data_files: got ['a.jsonl']; expected a folder, a file, or a mapping of splits to files"
    )


def test_a_broken_parquet_file_is_refused(tmp_path: Path) -> None:
    assert "train.parquet can't be read" in refused(b"PAR1", tmp_path, "train.parquet")


def test_an_unknown_kind_of_file_is_refused(tmp_path: Path) -> None:
    assert "expected a name that ends in .jsonl" in refused(b"x", tmp_path, "train.txt")


def test_a_folder_without_train_says_what_is_there(tmp_path: Path) -> None:
    write(tmp_path / "val.jsonl", [{"prompt": "a"}])
    with pytest.raises(InputError, match=r"no train\.jsonl.*there is: val\.jsonl"):
        Prompts(data_files=str(tmp_path)).prompts("train")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("val.jsonl", r"val\.jsonl belongs to no split; expected the name validation\.jsonl"),
        ("dev.csv", r"dev\.csv belongs to no split; expected the name validation\.csv"),
        ("train.old.jsonl", r"train\.jsonl and train\.old\.jsonl both belong to the split train"),
    ],
)
def test_a_file_that_would_be_left_out_is_refused(tmp_path: Path, name: str, message: str) -> None:
    for file in ("train.jsonl", name):
        write(tmp_path / file, [{"prompt": "a"}])
    with pytest.raises(InputError, match=message):
        Prompts(data_files=str(tmp_path)).prompts("train")


def test_a_column_that_the_second_row_leaves_out_is_read_ahead_as_empty(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "answer": "b"},
        {"prompt": "c"},
        *({"prompt": "d", "answer": "e"} for _ in "12345678"),
    ]
    file = write(tmp_path / "train.jsonl", rows)
    prompts = Prompts(data_files=str(file)).first_prompts("train")
    assert [prompt.references for prompt in prompts[:2]] == [("b",), ()]


def test_a_mapping_with_an_unknown_split_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"data_files\.valid: there is no such split; did you mean 'validation'"
    ):
        Prompts(data_files={"valid": "x.jsonl"}).prompts("train")


def test_too_few_rows_to_cut_a_split_from_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "few.jsonl", [{"prompt": "a"}] * 5)
    with pytest.raises(InputError, match=r"5 rows with 5 .* leave none for validation.*Give at least 10 "):
        Prompts(data_files=str(file)).prompts("validation")


@pytest.mark.skipif(not REAL_SAMPLES.exists(), reason="the real samples are not here")
def test_real_reviews() -> None:
    task = Imdb(data_files=str(REAL_SAMPLES / "imdb"))
    train, validation, test = (task.prompts(split) for split in SPLITS)
    assert (len(train), len(validation), len(test)) == (400, 100, 100)
    for prompt in train:
        (review,) = prompt.references
        assert review.startswith(prompt.text)
        assert len(prompt.text.split(" ")) == len(review.split(" ")) // 2
