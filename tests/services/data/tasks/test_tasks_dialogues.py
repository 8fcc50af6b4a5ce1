"""The tasks whose rows are more than a text: tables, conversations, episodes."""

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.tasks.base import SPLITS
from services.data.tasks.crd3 import Crd3
from services.data.tasks.daily_dialog import DailyDialog
from services.data.tasks.table_text import full_table_text, subtable_text
from services.data.tasks.totto import Totto

REAL_SAMPLES = Path(__file__).parents[5] / "shared" / "data"  # a folder of real samples beside the repository


def folder(path: Path, rows: list[Any]) -> str:
    path.mkdir(exist_ok=True)
    for split in SPLITS:
        (path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


# ToTTo


def cell(value: str, header: bool = False, columns: int = 1) -> dict[str, Any]:
    return {"value": value, "is_header": header, "column_span": columns, "row_span": 1}


# | Year (header) | Goals (header, over two columns) |
# |               | home (header) | away (header)    |
# | 1999 (header) | 3             | 4                |
TABLE = [
    [cell("Year", header=True), cell("Goals", header=True, columns=2)],
    [cell(""), cell("home", header=True), cell("away", header=True)],
    [cell("1999", header=True), cell("3"), cell("4")],
]
FOUR = "4 <col_header> Goals </col_header> <col_header> away </col_header> <row_header> 1999 </row_header> "


def test_a_highlighted_cell_brings_its_headers_from_above_and_from_the_left() -> None:
    assert subtable_text(TABLE, [[2, 2]]) == f"<table> <cell> {FOUR}</cell> </table>"


def test_titles_stand_before_the_table_and_empty_ones_nowhere() -> None:
    titles = {"page_title": "A club", "section_title": "Goals"}
    assert subtable_text(TABLE, [[0, 0]], titles) == (
        "<page_title> A club </page_title> <section_title> Goals </section_title> "
        "<table> <cell> Year </cell> </table>"
    )
    assert subtable_text(TABLE, [], {"page_title": "", "section_title": ""}) == "<table> </table>"


def test_a_full_table_marks_what_is_highlighted() -> None:
    year = "<col_header> Year </col_header> "
    goals = "<col_header> Goals </col_header> "
    home = "<col_header> home </col_header> "
    row = "<row_header> 1999 </row_header> "
    assert full_table_text(TABLE, [[2, 2]]) == (
        "<table> "
        # "Goals" has the header "Year" on its left.
        "<row> <cell> Year </cell> <cell> Goals <row_header> Year </row_header> </cell> </row> "
        f"<row> <cell>  {year}</cell> <cell> home {goals}</cell> "
        f"<cell> away {goals}<row_header> home </row_header> </cell> </row> "
        f"<row> <cell> 1999 {year}</cell> <cell> 3 {goals}{home}{row}</cell> "
        f"<highlighted_cell> {FOUR}</highlighted_cell> </row> "
        "</table>"
    )


ROW = {
    "table": TABLE,
    "highlighted_cells": [[2, 2]],
    "table_page_title": "A club",
    "table_section_title": "Goals",
    "table_webpage_url": "u",
    "overlap_subset": "True",
    "sentence_annotations": {
        "original_sentence": ["It scored 4 away, then lost."],
        "sentence_after_deletion": ["It scored 4 away"],
        "sentence_after_ambiguity": ["A club scored 4 away"],
        "final_sentence": ["In 1999, A club scored 4 away."],
    },
}


def test_totto_asks_with_the_table_twice(tmp_path: Path) -> None:
    (prompt,) = Totto(data_files=folder(tmp_path / "d", [ROW])).prompts("validation")
    once = f"<table> <cell> {FOUR}</cell> </table>"
    assert prompt.id == "totto/validation/0"
    assert prompt.text == (
        f"{once}<page_title> A club </page_title> <section_title> Goals </section_title> {once}"
    )
    assert prompt.references == ("In 1999, A club scored 4 away.",)
    assert prompt.meta == {
        "table": TABLE,
        "highlighted_cells": [[2, 2]],
        "table_page_title": "A club",
        "table_section_title": "Goals",
        "overlap_subset": True,
    }


def test_totto_shows_the_whole_table_when_asked(tmp_path: Path) -> None:
    (prompt,) = Totto(data_files=folder(tmp_path / "d", [ROW]), representation="fulltable").prompts("train")
    once = full_table_text(TABLE, [[2, 2]])
    titled = full_table_text(TABLE, [[2, 2]], {"page_title": "A club", "section_title": "Goals"})
    assert prompt.text == once + titled


def test_totto_takes_its_own_files_with_a_list_of_annotations(tmp_path: Path) -> None:
    several = [{"final_sentence": "One."}, {"final_sentence": "Two."}]
    row = {**ROW, "sentence_annotations": several, "overlap_subset": False}
    (prompt,) = Totto(data_files=folder(tmp_path / "d", [row])).prompts("validation")
    assert (prompt.references, prompt.meta["overlap_subset"]) == (("One.", "Two."), False)


def test_totto_keeps_the_test_parts_sentences_to_itself(tmp_path: Path) -> None:
    row = {key: value for key, value in ROW.items() if key not in ("sentence_annotations", "overlap_subset")}
    task = Totto(data_files=folder(tmp_path / "d", [row]))
    (prompt,) = task.prompts("test")
    assert (prompt.references, "overlap_subset" in prompt.meta) == (("empty reference",), False)
    with pytest.raises(InputError, match=r"line 1: there is no column 'sentence_annotations'"):
        task.prompts("train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"highlighted_cells": [[3, 0]]}, "the highlighted cell [3, 0] is not in the table"),
        ({"highlighted_cells": [[0]]}, "expected pairs [row, cell] in column 'highlighted_cells', got [0]"),
        ({"table": "x"}, "expected a list of rows of cells in column 'table'"),
        ({"table": [[{"value": "a"}]]}, "expected cells {value, is_header, column_span}"),
        ({"table": [[cell("a", columns="2")]]}, "expected cells {value, is_header, column_span}"),  # type: ignore[arg-type]
        ({"table_page_title": None}, "expected a text in column 'table_page_title', got None"),
        ({"sentence_annotations": []}, "expected annotations with a final_sentence"),
    ],
)
def test_totto_names_what_is_wrong_to_the_line(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        Totto(data_files=folder(tmp_path / "d", [ROW, {**ROW, **change}])).first_prompts("train")
    assert f"line 2: {message}" in str(caught.value)


# DailyDialog


TALK = {"dialog": ["a . ", " b ? ", " c . ", " d . "], "act": [2, 1, 3, 4], "emotion": [0, 4, 0, 6]}


def test_daily_dialog_asks_for_every_utterance_with_a_full_context(tmp_path: Path) -> None:
    task = DailyDialog(data_files=folder(tmp_path / "d", [TALK]), context_size=2)
    assert task.prompts("train") == [
        Prompt("daily_dialog/train/0/2", "a . <EOU> b ? <EOU>", (" c . <EOU>",), {"intent": 3, "emotion": 0}),
        Prompt("daily_dialog/train/0/3", "b ? <EOU> c . <EOU>", (" d . <EOU>",), {"intent": 4, "emotion": 6}),
    ]
    plain = DailyDialog(
        data_files=folder(tmp_path / "d", [TALK]), context_size=3, eou_token="|", end_references=False
    )
    assert [(prompt.text, prompt.references) for prompt in plain.prompts("train")] == [
        ("a . | b ? | c . |", (" d .",))
    ]


def test_a_prompt_and_its_reference_are_one_conversation(tmp_path: Path) -> None:
    task = DailyDialog(data_files=folder(tmp_path / "d", [TALK]), context_size=1)
    for prompt in task.prompts("test"):
        assert prompt.text + prompt.references[0] in "a . <EOU> b ? <EOU> c . <EOU> d . <EOU>"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"act": [2, 1, 3, 5]}, "expected a list of numbers from 1 to 4 in column 'act'"),
        ({"emotion": "happy"}, "expected a list of numbers from 0 to 6 in column 'emotion', got 'happy'"),
        ({"act": [2, 1]}, "4 utterances in column 'dialog', but 2 numbers in column 'act'"),
        ({"dialog": [1, 2]}, "expected a text or a list of texts in column 'dialog'"),
    ],
)
def test_daily_dialog_names_what_is_wrong_to_the_line(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        DailyDialog(data_files=folder(tmp_path / "d", [TALK, {**TALK, **change}])).prompts("train")
    assert f"line 2: {message}" in str(caught.value)


@pytest.mark.skipif(not REAL_SAMPLES.exists(), reason="the real samples are not here")
def test_daily_dialog_on_real_conversations() -> None:
    task = DailyDialog(data_files=str(REAL_SAMPLES / "daily_dialog"))
    lines = (REAL_SAMPLES / "daily_dialog" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    prompts = task.prompts("train")
    assert len(prompts) == sum(max(0, len(row["dialog"]) - 5) for row in rows)
    assert all(prompt.text.count("<EOU>") == 5 and prompt.text.endswith(" <EOU>") for prompt in prompts)
    assert "  <EOU>" not in "".join(prompt.text + prompt.references[0] for prompt in prompts)
    assert {prompt.meta["intent"] for prompt in prompts} == {1, 2, 3, 4}
    streamed = DailyDialog(data_files=str(REAL_SAMPLES / "daily_dialog"), streaming=True).prompts("train")
    assert list(streamed) == prompts and streamed[17] == prompts[17]


# CRD3


def turn(name: str, *utterances: str) -> dict[str, Any]:
    return {"NAMES": [name, "OTHER"], "UTTERANCES": list(utterances), "NUMBER": 0}


EPISODE = {
    "TURNS": [turn("MATT", "Hello", "all."), turn("SAM", "Hi."), turn("LIAM", "Yes?"), turn("SAM", "No.")]
}
ASKED = [
    ("MATT: Hello all.\nSAM: Hi.\nLIAM: ", ("Yes?",)),
    ("SAM: Hi.\nLIAM: Yes?\nSAM: ", ("No.",)),
]


def test_crd3_asks_for_a_turn_once_two_were_heard(tmp_path: Path) -> None:
    lower = {
        "chunk_id": 1,
        "turns": [{key.lower(): value for key, value in turn.items()} for turn in EPISODE["TURNS"]],
    }
    for row in (EPISODE, lower):
        task = Crd3(data_files=folder(tmp_path / "d", [row]), max_context_size=2)
        prompts = task.prompts("train")
        assert [(prompt.text, prompt.references) for prompt in prompts] == ASKED
        assert [prompt.id for prompt in prompts] == ["crd3/train/0/2", "crd3/train/0/3"]
        assert task.first_prompts("train") == prompts


@pytest.mark.parametrize("streaming", [False, True])
def test_crd3_reads_the_episodes_of_its_repository(tmp_path: Path, streaming: bool) -> None:
    (tmp_path / "data" / "cleaned data").mkdir(parents=True)
    (tmp_path / "data" / "aligned data").mkdir()
    for split, names in (("train", "C1E001\nC1E002\n"), ("val", "C1E003"), ("test", "C1E004")):
        (tmp_path / "data" / "aligned data" / f"{split}_files").write_text(names)
    for number in (1, 2, 3):
        (tmp_path / "data" / "cleaned data" / f"C1E00{number}.json").write_text(json.dumps(EPISODE))
    task = Crd3(data_files=str(tmp_path), max_context_size=2, streaming=streaming)
    assert [(prompt.text, prompt.references) for prompt in task.prompts("train")] == ASKED * 2
    assert [prompt.id for prompt in task.prompts("validation")] == [
        "crd3/validation/0/2",
        "crd3/validation/0/3",
    ]
    with pytest.raises(InputError, match=r"an episode of .*test_files can't be read: .*C1E004"):
        task.prompts("test")


def test_crd3_names_what_is_wrong_to_the_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 1: expected a list of turns in column 'turns'; .*: chunk"):
        Crd3(data_files=folder(tmp_path / "a", [{"chunk": "x"}])).prompts("train")
    with pytest.raises(InputError, match=r"line 1: expected turns \{names: \[…\], utterances: \[…\]\}"):
        Crd3(data_files=folder(tmp_path / "b", [{"turns": [{"names": []}]}])).prompts("train")
