"""Files of rows: every value is the file's own, whatever it looks like, and wherever the file comes from."""

import bz2
import csv
import gzip
import io
import json
import lzma
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InputError
from services.data.tasks import files
from services.data.tasks.base import SPLITS
from services.data.tasks.file_rows import file_rows
from services.data.tasks.prompts import Prompts
from services.data.tasks.rows import read_tabbed

# Values that readers who guess types change: dates, whole numbers beyond 64 bits, leading zeros, "NA".
LOOKING_LIKE = ["2020-01-01", "2020-01-01T10:00:00Z", 12345678901234567890123, "007", "NA", "", None]
LOOKING_LIKE += [3, 3.5, 3.0, True, "null", [1, "x"], {"a": None}, "10:30", "1e5", -0.0]
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=5)
cells = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | cells,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
@given(rows=st.lists(st.dictionaries(names, values, min_size=1, max_size=4), min_size=1, max_size=6))
def test_json_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, name: str, rows: list[dict[str, Any]]
) -> None:
    file = tmp_path_factory.mktemp("rows") / name
    file.write_text(lines(rows) if name == "a.jsonl" else json.dumps(rows, indent=1), encoding="utf-8")
    read = file_rows(file)
    assert [read.written(number) for number in range(len(read))] == rows
    columns = {column for row in rows for column in row}
    assert set(read.column_names) == columns
    assert list(read) == [dict.fromkeys(columns) | row for row in rows]
    assert list(pickle.loads(pickle.dumps(read.select([0])))) == list(read)[:1]


@given(rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=6), ends=st.sampled_from(["\n", "\r\n"]))
def test_cells_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], ends: str
) -> None:
    file = tmp_path_factory.mktemp("rows") / "a.csv"
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=ends, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *rows])
    file.write_bytes(text.getvalue().encode())
    assert list(file_rows(file)) == [{"a": a, "b": b} for a, b in rows]


@pytest.mark.parametrize("value", LOOKING_LIKE)
def test_rewards_get_the_value_of_the_file(tmp_path: Path, value: Any) -> None:
    """The trial before the start reads `first_prompts`, training `prompts`; every second row differs."""
    rows = [{"prompt": f"{n} ?", "gold": value if n % 2 else LOOKING_LIKE[n // 2 % 3]} for n in range(20)]
    file = tmp_path / "a.jsonl"
    file.write_text(lines(rows))
    task = Prompts(data_files=dict.fromkeys(SPLITS, str(file)), meta_columns=("gold",))
    for prompts in (task.first_prompts("train"), task.prompts("train")):
        assert [(type(prompt.meta["gold"]), prompt.meta["gold"]) for prompt in prompts] == [
            (type(row["gold"]), row["gold"]) for row in rows
        ]


def test_a_prompt_that_looks_like_a_date_is_a_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines([{"prompt": f"2024-05-0{n % 2 + 1}"} for n in range(20)]))
    prompts = Prompts(data_files=str(tmp_path / "a.jsonl")).prompts("train")
    assert {prompt.text for prompt in prompts} == {"2024-05-01", "2024-05-02"}


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("a.jsonl", lambda text: b"\xef\xbb\xbf" + text),
        ("a.jsonl", lambda text: (b"\xef\xbb\xbf" + text) * 2),  # two files, one put after the other
        ("a.jsonl", lambda text: text.decode().encode("utf-16")),
        ("a.jsonl", lambda text: text.replace(b"\n", b"\r\n\r\n")),
        ("a.json", lambda text: b"\xef\xbb\xbf" + text),
        ("a.json", lambda text: b"\xef\xbb\xbf[" + text.strip() + b"]"),
        ("a.jsonl.gz", gzip.compress),
        ("a.jsonl.bz2", bz2.compress),
        ("a.json.xz", lzma.compress),
        ("a.csv", lambda text: b'\xef\xbb\xbfprompt,gold\n"a \xc3\xa9",007\n'),
        ("a.csv", lambda text: 'prompt,gold\r\n"a é",007\r\n'.encode("utf-16")),
        ("a.csv", lambda text: 'prompt,gold\r"a é",007\r'.encode()),  # lines that end as on old Macs
        ("a.tsv.gz", lambda text: gzip.compress("prompt\tgold\na é\t007\n".encode(), mtime=0)),
    ],
)
def test_a_file_is_the_same_however_it_is_stored(
    tmp_path: Path, name: str, packed: Callable[[bytes], bytes]
) -> None:
    (tmp_path / name).write_bytes(packed('{"prompt": "a é", "gold": "007"}\n'.encode()))
    rows = list(file_rows(tmp_path / name))
    assert rows[0] == {"prompt": "a é", "gold": "007"} and rows[-1] == rows[0]


def test_a_text_with_tabs_may_begin_with_a_mark(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"\xef\xbb\xbfa\tb\n")
    assert read_tabbed(tmp_path / "a.tsv", ("x", "y"), "x and y") == [{"x": "a", "y": "b"}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            b'{"a": 1}\n{"a": 1, "a": 2}\n',
            "line 2: not JSON that can be read: the name 'a' occurs tw",
        ),
        ("a.json", b'[{"a": 1}\n {"a": 2}]', "line 2, column 2: not JSON: Expecting ',' delimiter"),
        ("a.json", b'[{"a": 1}, 5]', "row 2: expected an object"),
        ("a.json", b'[{"a": 1}]\n more', "line 2, column 2: not JSON: Extra data after the list"),
        ("a.json", b'[{"a": 1}] [{"a": 2}]', "line 1, column 12: not JSON: Extra data after the list"),
        ("a.json", b'[] {"a": 2}', "line 1, column 4: not JSON: Extra data after the list"),
        ("a.jsonl", b'{"a": "\xe9"}\n', "line 1 is not UTF-8 text (byte 0xe9)"),
        ("a.csv", b"a,a\n1,2\n", "line 1: column 'a' occurs twice"),
        (
            "a.csv",
            b"a,b\n1,2\n1\n",
            "line 3: expected 2 cells, as in the header, got 1: 1. An empty cell needs",
        ),
        ("a.csv", b"a,b\n1,2,3\n", "line 2: expected 2 cells, as in the header, got 3"),
        ("a.csv", b'a,b\n"1,2\n3,4\n', "unexpected end of data"),
        ("a.jsonl.gz", b"no", "a.jsonl.gz can't be read"),
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}', mtime=0)[:10] + b"\xff" * 9, "a.jsonl.gz can't be read"),
        ("a.jsonl.xz", b"no", "a.jsonl.xz can't be read"),
    ],
)
def test_nothing_of_a_file_is_dropped_in_silence(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        file_rows(tmp_path / name)
    assert message in str(caught.value)


def test_the_index_of_a_table_that_pandas_wrote_has_pandas_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",prompt\n0,x\n")
    assert list(file_rows(tmp_path / "a.csv")) == [{"Unnamed: 0": "0", "prompt": "x"}]


def test_a_file_that_changes_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(lines([{"a": 1}]))
    before = list(file_rows(file))
    file.write_text(lines([{"a": 1}, {"a": 2}]))
    assert (before, list(file_rows(file))) == ([{"a": 1}], [{"a": 1}, {"a": 2}])


def test_only_the_first_rows_of_a_large_list_are_needed_ahead(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"a": 1}, {"a": 2}, {"a": ')
    assert list(file_rows(tmp_path / "a.json", 2)) == [{"a": 1}, {"a": 2}]


def test_what_datasets_saved_is_read_with_its_types(tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"prompt": ["2020-01-01", "007"] * 10, "n": [1, None] * 10})
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(str(tmp_path / "saved"))
    rows.save_to_disk(str(tmp_path / "alone"))
    for name, sizes in (("saved", (18, 2, 20)), ("alone", (16, 2, 2))):
        task = Prompts(data_files=str(tmp_path / name), meta_columns=("n",))
        assert tuple(len(task.prompts(split)) for split in SPLITS) == sizes
        assert [(prompt.text, prompt.meta["n"]) for prompt in task.prompts("train")[:2]] == [
            ("2020-01-01", 1),
            ("007", None),
        ]


def test_every_row_behind_those_read_ahead_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROWS_READ_AHEAD", 3)
    (tmp_path / "a.jsonl").write_text(lines([{"prompt": "a"}] * 9) + "{\n")
    with pytest.raises(InputError, match="line 10, column 2: not JSON"):
        Prompts(data_files=str(tmp_path / "a.jsonl")).prompts("train")
