"""Rows of the common formats: which columns are read, and what prompts they make."""

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.annotated.responses import ResponseData, read_responses
from services.data.tasks.base import SPLITS
from services.data.tasks.files import from_files
from services.data.tasks.prompts import Prompts
from services.inference.grading.sample_files import read_samples
from services.training.reward_training.data import RewardData, read_split

USER, ANSWER = {"role": "user", "content": "3 + 4 ?"}, {"role": "assistant", "content": "7"}
WRONG = {"role": "assistant", "content": "8"}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 3}'}}],
}
FOUND = {"role": "tool", "name": "add", "content": "7", "tool_call_id": None}


def written(folder: Path, rows: list[dict[str, Any]], name: str = "rows.jsonl") -> str:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / name)


def first(folder: Path, row: dict[str, Any], **options: Any) -> Prompt:
    task = Prompts(data_files=written(folder, [row] * 10), **options)
    assert list(task.first_prompts("train")) == task.prompts("train")  # read ahead as they are loaded
    return task.prompts("train")[0]


@pytest.mark.parametrize(
    ("row", "text", "references", "messages"),
    [
        ({"prompt": "3 + 4 ?"}, "3 + 4 ?", (), []),
        ({"question": "3 + 4 ?", "answer": "7"}, "3 + 4 ?", ("7",), []),
        ({"problem": "3 + 4 ?", "solution": ["7", "seven"]}, "3 + 4 ?", ("7", "seven"), []),
        ({"prompt": "3 + 4 ?", "answer": 7}, "3 + 4 ?", ("7",), []),
        ({"prompt": "3 + 4 ?", "answer": [7, "seven", 0.5]}, "3 + 4 ?", ("7", "seven", "0.5"), []),
        ({"prompt": "3 + 4 ?", "answer": {"value": 7}}, "3 + 4 ?", (), []),  # a guess may be wrong
        ({"messages": json.dumps([USER, ANSWER])}, "3 + 4 ?", ("7",), [USER]),
        (
            {"messages": [USER, CALL]},
            "3 + 4 ?",
            ('<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call>',),
            [USER],
        ),
        ({"prompt": "[3 + 4] ?"}, "[3 + 4] ?", (), []),
        ({"prompt": [USER]}, "3 + 4 ?", (), [USER]),
        ({"prompt": [SYSTEM, USER], "answer": "7"}, "Be brief.\n3 + 4 ?", ("7",), [SYSTEM, USER]),
        ({"prompt": [USER], "completion": [ANSWER]}, "3 + 4 ?", ("7",), [USER]),
        ({"messages": [USER, ANSWER]}, "3 + 4 ?", ("7",), [USER]),
        ({"messages": [USER, ANSWER], "answer": "seven"}, "3 + 4 ?", ("seven",), [USER]),
        ({"chosen": [USER, ANSWER], "rejected": [USER, WRONG]}, "3 + 4 ?", ("7",), [USER]),
        (
            {"conversations": [{"from": "human", "value": "3 + 4 ?"}, {"from": "gpt", "value": "7"}]},
            *("3 + 4 ?", ("7",), [USER]),
        ),
        (
            {"prompt": [{"role": "user", "content": [{"type": "text", "text": "3 + 4 ?"}]}]},
            "3 + 4 ?",
            (),
            [USER],
        ),
    ],
)
def test_rows_of_the_common_formats(
    tmp_path: Path, row: dict[str, Any], text: str, references: tuple[str, ...], messages: list[Any]
) -> None:
    prompt = first(tmp_path, row)
    assert (prompt.text, prompt.references, list(prompt.messages)) == (text, references, messages)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
@pytest.mark.parametrize(
    "answers",
    [
        ["007", "3"],
        ["2020-01-01", "2021-06-30T10:00:00"],
        [3, 0.5],
        ["007", 3],
        [["2020-01-01"], ["007", 3]],
        ["True", "NA", ""],
    ],
)
def test_references_are_the_texts_of_the_file(tmp_path: Path, name: str, answers: list[Any]) -> None:
    """Dates, numbers of two kinds, and texts beside numbers, which `datasets` reads otherwise."""
    made = [{"prompt": f"{number} ?", "answer": answer} for number, answer in enumerate(answers)]
    file = tmp_path / name
    file.write_text(json.dumps(made) if name == "rows.json" else "\n".join(map(json.dumps, made)))
    expected = [tuple(map(str, answer if isinstance(answer, list) else [answer])) for answer in answers]
    assert references(file) == expected


def test_a_list_of_rows_may_begin_with_a_blank_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text("\n " + json.dumps([{"prompt": "1 ?", "answer": "2020-01-01"}]))
    assert references(file) == [("2020-01-01",)]


def test_references_of_a_table_are_its_cells(tmp_path: Path) -> None:
    cells = ["007", "True", "2020-01-01", "NA", "", "1.50"]
    for place, column in enumerate(([cell] for cell in cells), start=0):
        file = tmp_path / f"{place}.csv"  # a column of one kind each, which `datasets` would make a type of
        file.write_text("prompt,answer\n" + "".join(f"{n} ?,{column[0]}\n" for n in range(3)))
        assert references(file) == [(cells[place],)] * 3


def test_cells_of_a_table_are_texts(tmp_path: Path) -> None:
    """A table has no types: whatever is made of a cell, such as a number of 007, is a guess."""
    file = tmp_path / "train.csv"
    file.write_text("prompt,answer,level,note\n1 ?,NA,3,\n2 ?,,,x\n3 ?,007,5,2020-01-01\n")
    rows = list(from_files({split: str(file) for split in SPLITS}, "train", ["prompt"]))
    assert [row["answer"] for row in rows] == ["NA", "", "007"]
    assert [row["level"] for row in rows] == ["3", "", "5"]
    assert [row["note"] for row in rows] == ["", "x", "2020-01-01"]


def references(file: Path) -> list[tuple[str, ...]]:
    """Return each row's references, which are the same in both readers."""
    task = Prompts(data_files={"train": str(file), "validation": str(file), "test": str(file)})
    ahead, whole = task.first_prompts("train"), task.prompts("train")
    assert list(ahead) == list(whole)
    return [prompt.references for prompt in whole]


def test_tools_and_calls_reach_the_template(tmp_path: Path) -> None:
    prompt = first(tmp_path, {"prompt": [USER, CALL, FOUND], "tools": [TOOL]})
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": '{"a": 3}'}}],
    }
    assert list(prompt.messages) == [USER, call, {"role": "tool", "name": "add", "content": "7"}]
    assert list(prompt.tools) == [TOOL]
    assert list(first(tmp_path, {"prompt": [USER], "tools": json.dumps([TOOL])}).tools) == [TOOL]


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        (
            {"prompt": "a", "messages": [USER]},
            {},
            "columns prompt and messages may hold the prompt: give task.prompt",
        ),
        ({"text": "a"}, {}, "there is no column 'prompt'; there are: text. Give task.prompt_column=NAME"),
        ({"prompt": [ANSWER]}, {}, "expected a message to answer"),
        ({"prompt": [USER, SYSTEM]}, {}, "expected a message to answer"),
        ({"prompt": [{"role": "boss", "content": "a"}]}, {}, "expected a role, one of system, "),
        ({"prompt": [{"role": "user"}]}, {}, "message 1: expected a text under 'content'"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, {}, "parts of the type image"),
        ({"prompt": 5}, {}, "expected a text in column 'prompt', got 5"),
        (
            {"prompt": "a", "answer": {}},
            {"references_column": "answer"},
            "expected a text or a list of texts",
        ),
        (
            {"prompt": "a", "answer": True},
            {"references_column": "answer"},
            "a list of texts in column 'answer'",
        ),
    ],
)
def test_rows_that_cannot_be_read_are_told_with_their_line(
    tmp_path: Path, row: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        first(tmp_path, row, **options)
    assert message in str(caught.value) and "line 1" in str(caught.value)


def test_no_references_are_none_of_a_conversation_too(tmp_path: Path) -> None:
    assert first(tmp_path, {"messages": [USER, ANSWER]}, references_column="").references == ()


def roles(folder: Path, row: dict[str, Any], **options: Any) -> dict[str, str]:
    """Return what each column is read as."""
    task = Prompts(data_files=written(folder, [row] * 10), **options)
    return {
        column.name: column.read_as or f"not read {column.hint}".strip()
        for column in task.columns_read("train")
    }


def test_each_column_is_read_or_reported(tmp_path: Path) -> None:
    assert roles(tmp_path, {"question": "a", "answer": "b", "id": 1}) == {
        "question": "prompt",
        "answer": "reference",
        "id": "not read",
    }
    unsure = roles(tmp_path, {"prompt": "a", "answer": "b", "solution": "c", "reasoning": "d", "images": []})
    assert unsure == {
        "prompt": "prompt",
        "answer": "not read task.references_column=answer makes it the reference",
        "solution": "not read task.references_column=solution makes it the reference",
        "reasoning": "not read the thought before the answer",
        "images": "not read only texts are read",
    }
    meta = roles(tmp_path, {"prompt": "a", "answer": "b"}, meta_columns=("answer",))
    assert meta["answer"] == "reference, meta data of rewards"
    for name in ("messages", "tools", "response_message"):
        with pytest.raises(ValueError, match=rf"{name} holds a prompt.s conversation"):
            Prompts(data_files="x", meta_columns=(name,))


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "3 + 4 ?", "chosen": "7", "rejected": "8"},
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [WRONG]},
        {"prompt": [USER], "chosen": [USER, ANSWER], "rejected": [USER, WRONG]},
        {"prompt": "3 + 4 ?", "chosen": [USER, ANSWER], "rejected": [USER, WRONG]},
        {"chosen": [USER, ANSWER], "rejected": [USER, WRONG]},
        {"chosen": json.dumps([USER, ANSWER]), "rejected": json.dumps([USER, WRONG])},
    ],
)
def test_preferences_are_one_prompt_with_two_answers(tmp_path: Path, row: dict[str, Any]) -> None:
    file = written(tmp_path, [row] * 10)
    split = {"train": file}
    responses = read_responses(ResponseData(files=split), None, "train").rows[:2]
    assert [(response.prompt.text, response.response, response.is_good) for response in responses] == [
        ("3 + 4 ?", "7", True),
        ("3 + 4 ?", "8", False),
    ]
    assert {bool(response.prompt.messages) for response in responses} == {row.get("chosen") != "7"}
    rows = read_split(RewardData(files=split), None, None, "train").rows
    assert rows[0].texts == ("3 + 4 ? 7", "3 + 4 ? 8")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [SYSTEM, USER, ANSWER]},
        {"messages": json.dumps([SYSTEM, USER, ANSWER])},
        {
            "conversations": [
                {"from": message["role"], "value": message["content"]} for message in (SYSTEM, USER, ANSWER)
            ]
        },
    ],
)
def test_annotated_rows_may_be_conversations(tmp_path: Path, row: dict[str, Any]) -> None:
    split = {"train": written(tmp_path, [row] * 10)}
    (response, *_) = read_responses(ResponseData(files=split), None, "train").rows
    assert (list(response.prompt.messages), response.response) == ([SYSTEM, USER], "7")


def test_answers_to_different_prompts_are_refused(tmp_path: Path) -> None:
    other = {"role": "user", "content": "4 + 5 ?"}
    split = {"train": written(tmp_path, [{"chosen": [USER, ANSWER], "rejected": [other, WRONG]}] * 10)}
    with pytest.raises(InputError, match=r"line 1: the conversations .* differ before their last answer"):
        read_responses(ResponseData(files=split), None, "train")


def test_the_same_prompt_is_in_one_split_alone(tmp_path: Path) -> None:
    def pair(number: int) -> dict[str, Any]:
        question = {"role": "user", "content": f"{number} ?"}
        return {"chosen": [question, ANSWER], "rejected": [question, WRONG]}

    file = written(tmp_path, [pair(number) for number in range(20) for _ in range(2)])
    data = ResponseData(files={"train": file})
    texts = {
        split: {row.prompt.text for row in read_responses(data, None, split).rows}
        for split in ("train", "validation", "test")
    }
    assert not texts["train"] & texts["validation"] and len(set.union(*texts.values())) == 20


def test_scored_files_may_have_conversations(tmp_path: Path) -> None:
    file = written(tmp_path, [{"prediction": "7", "prompt": [USER]}] * 2)
    one, two = read_samples(Path(file), None)
    assert (one.prompt, one.meta, one.group) == ("3 + 4 ?", {"messages": [USER]}, two.group)


def test_a_null_role_is_refused_in_words(tmp_path: Path) -> None:
    rows = [{"prompt": [{"role": None, "content": "x"}]}] * 10
    with pytest.raises(InputError, match="message 1: expected a role"):
        Prompts(data_files=written(tmp_path, rows)).prompts("train")


def test_tools_of_a_table_have_no_null_fields(tmp_path: Path) -> None:
    """A table's column gives each tool the parameters of all others, as nulls."""

    def tool(name: str) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {name: {"type": "string"}}}
        return {"type": "function", "function": {"name": name, "parameters": parameters}}

    rows = [{"prompt": [USER], "tools": [tool("city"), tool("a")]}] * 10
    (prompt, *_) = Prompts(data_files=written(tmp_path, rows)).prompts("train")
    assert list(prompt.tools) == [tool("city"), tool("a")]
