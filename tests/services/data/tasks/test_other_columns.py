"""Columns of other programs' data sets: each is read as what it is, refused, or reported as not read."""

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from services.data.annotated.responses import ResponseData, read_responses
from services.data.tasks.base import SPLITS
from services.data.tasks.columns import not_read
from services.data.tasks.gsm8k import Gsm8k
from services.data.tasks.prompts import Prompts
from services.training.reward_training.data import RewardData, read_split
from tests.services.data.tasks.test_columns import ANSWER, SYSTEM, TOOL, USER, WRONG, first, roles, written

TEXT = "3 + 4 ?"
AGAIN = {"role": "user", "content": "Sure ?"}
PAIR = [(TEXT, "7", True), (TEXT, "8", False)]


def sharegpt(*messages: dict[str, Any]) -> list[dict[str, str]]:
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    return [{"from": names[message["role"]], "value": message["content"]} for message in messages]


@pytest.mark.parametrize(
    ("row", "text", "references", "messages"),
    [
        # Alpaca, with and without an input; Dolly; LLaMA-Factory's turns
        ({"instruction": "Add.", "input": "3, 4", "output": "7"}, "Add.\n\n3, 4", ("7",), []),
        ({"instruction": "Add.", "input": "", "output": "7"}, "Add.", ("7",), []),
        ({"instruction": "Who ?", "context": "I do.", "response": "I."}, "Who ?\n\nI do.", ("I.",), []),
        (
            {"instruction": "Sure ?", "output": "Yes.", "system": "Be brief.", "history": [[TEXT, "7"]]},
            f"Be brief.\n{TEXT}\n7\nSure ?",
            ("Yes.",),
            [SYSTEM, USER, ANSWER, AGAIN],
        ),
        # a system message beside the prompt
        ({"prompt": TEXT, "system": "Be brief."}, f"Be brief.\n{TEXT}", (), [SYSTEM, USER]),
        ({"prompt": TEXT, "system": ""}, TEXT, (), []),
        (
            {"messages": [SYSTEM, USER, ANSWER], "system": "Be brief."},
            f"Be brief.\n{TEXT}",
            ("7",),
            [SYSTEM, USER],
        ),
        (
            {"conversations": sharegpt(USER, ANSWER), "system": "Be brief."},
            f"Be brief.\n{TEXT}",
            ("7",),
            [SYSTEM, USER],
        ),
        # verl's rows, a line of an OpenAI batch, ms-swift's texts, names in other letters
        (
            {"prompt": [USER], "reward_model": {"style": "rule", "ground_truth": "7"}, "ability": "math"},
            *(TEXT, ("7",), [USER]),
        ),
        ({"custom_id": "1", "body": {"model": "m", "messages": [USER]}}, TEXT, (), [USER]),
        ({"query": TEXT, "response": "7"}, TEXT, ("7",), []),
        ({"Question": TEXT, " Answer ": 7}, TEXT, ("7",), []),
        # names as they are go before names in other letters
        ({"prompt": TEXT, "answer": "7", "Solution": "3 + 4 = 7"}, TEXT, ("7",), []),
        ({"prompt": TEXT, "Question": "Other ?"}, TEXT, (), []),
        # a label "yes" is no truth value
        ({"prompt": TEXT, "answer": "7", "label": "no"}, TEXT, ("7",), []),
        # a bad answer is no reference
        ({"prompt": TEXT, "completion": "8", "label": False}, TEXT, (), []),
        ({"prompt": TEXT, "completion": "7", "label": True}, TEXT, ("7",), []),
        ({"conversations": sharegpt(USER, WRONG), "kto_tag": False}, TEXT, (), [USER]),
        # the prompt of a pair is what both begin with, and the reference is the better answer
        ({"chosen": [USER, ANSWER, AGAIN, ANSWER], "rejected": [USER, WRONG]}, TEXT, (), [USER]),
        ({"chosen": [USER, ANSWER], "rejected": [USER, WRONG, AGAIN, WRONG]}, TEXT, ("7",), [USER]),
        ({"rejected": [USER, WRONG]}, TEXT, (), [USER]),
    ],
)
def test_prompts_of_other_programs_data(
    tmp_path: Path, row: dict[str, Any], text: str, references: tuple[str, ...], messages: list[Any]
) -> None:
    prompt = first(tmp_path, row)
    assert (prompt.text, prompt.references, list(prompt.messages)) == (text, references, messages)


def test_tools_reach_the_template_beside_a_text(tmp_path: Path) -> None:
    prompt = first(tmp_path, {"prompt": TEXT, "tools": [TOOL]})
    assert (list(prompt.messages), list(prompt.tools)) == ([USER], [TOOL])


def test_meta_data_may_be_inside_of_a_column(tmp_path: Path) -> None:
    row = {"prompt": TEXT, "extra_info": {"answer": "#### 7", "index": 0}, "data_source": "gsm8k"}
    meta_columns = ("extra_info.answer", "extra_info", "data_source")
    assert first(tmp_path, row, meta_columns=meta_columns).meta == {
        "extra_info.answer": "#### 7",
        "extra_info": {"answer": "#### 7", "index": 0},
        "data_source": "gsm8k",
    }


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"messages": [SYSTEM, USER], "system": "Be long."},
            "has a system message, but the conversation in c",
        ),
        (
            {"chosen": "Human: a Assistant: b", "rejected": "Human: a Assistant: c"},
            "a text that begins with its",
        ),
        ({"chosen": [USER, ANSWER], "rejected": [AGAIN, WRONG]}, "differ before their last answer"),
        ({"instruction": [USER], "input": "x"}, "belongs after the text of an instruction"),
        ({"prompt": TEXT, "tools": "no JSON"}, "expected JSON"),
    ],
)
def test_what_can_be_no_prompt_is_refused(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match="line 1") as caught:
        first(tmp_path, row)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "option", ["prompt_column", "references_column", "input_column", "system_column", "weight_column"]
)
def test_a_column_that_was_named_must_be_there(tmp_path: Path, option: str) -> None:
    with pytest.raises(InputError, match="there is no column 'gold'; there are: prompt"):
        first(tmp_path, {"prompt": TEXT}, **{option: "gold"})


def test_what_was_named_inside_of_a_column_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no column 'info\.gold'; did you mean 'info\.x'"):
        first(tmp_path, {"prompt": TEXT, "info": {"x": 1}}, meta_columns=("info.gold",))


def test_what_stands_beside_the_prompt_can_be_left_out_and_is_then_reported(tmp_path: Path) -> None:
    row = {"instruction": "Add.", "input": "3, 4", "system": "Be brief."}
    assert first(tmp_path, row, input_column="", system_column="").text == "Add."
    left = roles(tmp_path, row, input_column="", system_column="")
    assert (left["input"], left["system"]) == ("not read", "not read")
    read_as = roles(tmp_path, {"question": TEXT, "context": "x", "answer": True})
    assert read_as["context"] == "not read task.input_column=context puts it after the prompt"
    assert read_as["answer"] == "not read"
    assert first(tmp_path, {"question": "a", "context": "x"}, input_column="context").text == "a\n\nx"


def test_tasks_of_known_columns_report_the_others(tmp_path: Path) -> None:
    file = written(tmp_path, [{"question": TEXT, "answer": "#### 7", "level": 3}] * 10)
    columns = Gsm8k(data_files=file).columns_read("train")
    assert [column.read_as for column in columns] == ["read", "read", ""]
    assert not_read({"easy": columns}) == ["columns of the data of easy that are not read: level"]


def annotated(folder: Path, rows: list[dict[str, Any]] | str, **options: Any) -> list[tuple[str, str, bool]]:
    name = "rows.csv" if isinstance(rows, str) else "rows.jsonl"
    if isinstance(rows, str):
        (folder / name).write_text(rows)
    else:
        written(folder, rows)
    data = ResponseData(files=dict.fromkeys(SPLITS, str(folder / name)), **options)
    return [(row.prompt.text, row.response, row.is_good) for row in read_responses(data, None, "train").rows]


@pytest.mark.parametrize(
    ("good", "bad"), [("true", "false"), ("True", "False"), ("1", "0"), ("1.0", "0.0"), ("yes", "no")]
)
@pytest.mark.parametrize("column", ["good", "label", "kto_tag"])
def test_a_table_says_which_responses_are_good(tmp_path: Path, column: str, good: str, bad: str) -> None:
    rows = f"prompt,completion,{column}\na,b,{good}\nc,d,{bad}\n"
    # A number may as well be a class of the text, and a label "yes" the answer to it.
    if (column != "good" and good[0] == "1") or (column == "label" and good == "yes"):
        with pytest.raises(InputError, match=f"column '{column}' holds '{good}'; expected true or false"):
            annotated(tmp_path, rows)
        assert annotated(tmp_path, rows, good="") == [("a", "b", True), ("c", "d", True)]
        return
    assert annotated(tmp_path, rows) == [("a", "b", True), ("c", "d", False)]
    assert annotated(tmp_path, rows, good=column) == [("a", "b", True), ("c", "d", False)]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"conversations": sharegpt(USER, WRONG), "kto_tag": False}, [(TEXT, "8", False)]),
        ({"messages": [USER, WRONG], "label": False}, [(TEXT, "8", False)]),
        ({"instruction": "Add.", "input": "3, 4", "output": "7"}, [("Add.\n\n3, 4", "7", True)]),
        ({"prompt": TEXT, "response": "7", "system": "Be brief."}, [(f"Be brief.\n{TEXT}", "7", True)]),
        ({"Prompt": TEXT, "Response": 7, "Good": False}, [(TEXT, "7", False)]),
        # ms-swift's, LLaMA-Factory's and TRL's pairs
        ({"messages": [USER, ANSWER], "rejected_response": "8"}, PAIR),
        (
            {
                "conversations": sharegpt(USER),
                "chosen": sharegpt(ANSWER)[0],
                "rejected": sharegpt(WRONG)[0],
            },
            PAIR,
        ),
        ({"prompt": [USER], "chosen": [USER, ANSWER], "rejected": [USER, WRONG]}, PAIR),
        ({"prompt": [USER, ANSWER], "chosen": "7", "rejected": "8"}, PAIR),
        ({"prompt": TEXT, "chosen": f"{TEXT}7", "rejected": f"{TEXT}8"}, PAIR),
    ],
)
def test_responses_of_other_programs_data(
    tmp_path: Path, row: dict[str, Any], expected: list[tuple[str, str, bool]]
) -> None:
    assert annotated(tmp_path, [row]) == expected


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": TEXT, "response": "7", "label": 3}, "column 'label' holds 3; expected true or false"),
        (
            {"prompt": TEXT, "response": ["7", "8"], "label": True},
            "ranks several responses, and column 'label'",
        ),
        (
            {"prompt": "Other ?", "chosen": [USER, ANSWER], "rejected": [USER, WRONG]},
            "differ before their last",
        ),
        (
            {"prompt": [USER, ANSWER], "chosen": "9", "rejected": "8"},
            "expected a message to answer at the end",
        ),
        ({"chosen": "7", "rejected": "8"}, "there is no column 'prompt'"),
        ({"chosen": f"{TEXT} 7", "rejected": f"{TEXT} 8"}, "texts that both begin with their prompt"),
        ({"question": TEXT, "completion": "7", "answer": "7"}, "columns completion and answer may hold the"),
    ],
)
def test_responses_that_may_be_meant_otherwise_are_refused(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        annotated(tmp_path, [row])
    assert message in str(caught.value)


@pytest.mark.parametrize("option", ["prompt", "response", "good", "group", "system", "input", "reasoning"])
def test_a_column_of_responses_that_was_named_must_be_there(tmp_path: Path, option: str) -> None:
    with pytest.raises(InputError, match="there is no column 'x'; there are: prompt, response"):
        annotated(tmp_path, [{"prompt": TEXT, "response": "7"}], **{option: "x"})


def test_cells_of_responses_stay_as_they_are(tmp_path: Path) -> None:
    assert annotated(tmp_path, "prompt,response\na,02134\nb,NA\nc,2020-01-01\n") == [
        ("a", "02134", True),
        ("b", "NA", True),
        ("c", "2020-01-01", True),
    ]
    pairs = annotated(tmp_path, "prompt,chosen,rejected,response\na,02134,2134,\nb,,,007\n")
    assert pairs == [("a", "02134", True), ("a", "2134", False), ("b", "007", True)]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_the_thought_before_a_response_is_part_of_it(tmp_path: Path, name: str) -> None:
    file = written(tmp_path, [{"question": TEXT, name: "3 and 4.", "answer": "7"}])
    responses = read_responses(ResponseData(files=dict.fromkeys(SPLITS, file)), None, "train")
    (row,) = responses.rows
    assert row.response == "<think>\n3 and 4.\n</think>\n\n7"
    assert (
        next(column.read_as for column in responses.columns if column.name == name)
        == "thought before the response"
    )


def told(folder: Path, row: dict[str, Any]) -> dict[str, str]:
    """Return what each column of a row with responses is read as, or what to give."""
    data = ResponseData(files=dict.fromkeys(SPLITS, written(folder, [row])))
    return {
        column.name: column.read_as or column.hint for column in read_responses(data, None, "train").columns
    }


def test_a_thought_stands_once_before_its_response(tmp_path: Path) -> None:
    both = {"prompt": TEXT, "response": "<think>a b</think> 7", "reasoning": "a b"}
    assert annotated(tmp_path, [both]) == [(TEXT, "<think>a b</think> 7", True)]
    with pytest.raises(InputError, match="expected one thought"):
        annotated(tmp_path, [{**both, "reasoning": "other"}])
    for name in ("reasoning_content", "thinking"):
        row = {"prompt": TEXT, "response": [{**ANSWER, name: "its own"}], "reasoning": "other"}
        with pytest.raises(InputError, match="line 1: the response has a thought, 'its own', but"):
            annotated(tmp_path, [row])
        assert annotated(tmp_path, [{**row, "reasoning": "its own"}])[0][1].count("its own") == 1


def test_a_rationale_is_a_thought_only_where_it_is_named_so(tmp_path: Path) -> None:
    row = {"prompt": TEXT, "response": "7", "rationale": "By counting."}
    assert told(tmp_path, row)["rationale"] == "data.reasoning=rationale puts it before the response"
    assert annotated(tmp_path, [row]) == [(TEXT, "7", True)]
    assert annotated(tmp_path, [row], reasoning="rationale")[0][1].startswith("<think>\nBy counting.")


def test_columns_beside_a_pair_are_those_of_rows_without_one(tmp_path: Path) -> None:
    row = {"prompt": TEXT, "chosen": "7", "rejected": "8", "answer": "7", "reasoning": "x", "good": False}
    assert annotated(tmp_path, [row]) == PAIR
    read_as = told(tmp_path, row)
    assert read_as["answer"] == "response, in rows without a pair"
    assert read_as["reasoning"] == "thought before the response, in rows without a pair"
    assert read_as["good"] == "says whether the response is good, in rows without a pair"
    assert annotated(tmp_path, [{**row, "solution": "9"}]) == PAIR  # which of two is no question then
    assert told(tmp_path, {"messages": [USER, ANSWER], "answer": "9"})["answer"] == ""


def test_earlier_turns_are_read_where_the_first_row_has_none(tmp_path: Path) -> None:
    turns: list[Any] = [[], [[TEXT, "7"]], [], json.dumps([USER, ANSWER])]
    for values in (turns, turns[2:]):
        file = written(
            tmp_path, [{"prompt": f"{n} ?", "history": values[n % len(values)]} for n in range(20)]
        )
        task = Prompts(data_files=file)
        for prompts in (task.prompts("train"), task.first_prompts("train")):
            assert [len(prompt.messages) for prompt in prompts[:4]] == [0, 3, 0, 3]
        rows = annotated(
            tmp_path, [{"prompt": "a", "response": "b", "history": history} for history in values]
        )
        assert [text for text, _, _ in rows[:2]] == ["a", f"{TEXT}\n7\na"]


def test_a_label_that_is_not_whether_an_answer_is_good_can_be_left_alone(tmp_path: Path) -> None:
    labels = ["true", "false", "half true", "true"]
    rows = [{"prompt": f"{n} ?", "answer": "7", "label": labels[n % 4]} for n in range(20)]
    file = written(tmp_path, rows)
    with pytest.raises(InputError, match=r"got 'half true'\. task\.meta_columns=\[label\] keeps"):
        Prompts(data_files=file).prompts("train")
    for options in ({"meta_columns": ("label",)}, {"references_column": "answer"}):
        assert {prompt.references for prompt in Prompts(data_files=file, **options).prompts("train")} == {
            ("7",)
        }
    prompts = Prompts(data_files=file, references_column="label").prompts("train")
    assert [prompt.references[0] for prompt in prompts[:3]] == labels[:3]
    with pytest.raises(InputError, match=r"got 'half true'\. data\.good='' makes all responses good"):
        annotated(tmp_path, rows)


def test_columns_of_responses_that_are_not_read_are_reported(tmp_path: Path) -> None:
    rows = [{"prompt": TEXT, "response": "7", "solution": "7", "images": ["a.png"], "id": 5}]
    data = ResponseData(files=dict.fromkeys(SPLITS, written(tmp_path, rows)), meta_columns=("id",))
    (line,) = not_read({"": read_responses(data, None, "train").columns})
    assert line == "columns of the data that are not read: solution, images (only texts are read)"


def test_a_reward_model_reads_what_stands_around_the_prompt_and_numbers_of_a_table(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(
        "prompt,system,response,label,id\n" + "".join(f"a{n},s,b,{n % 12},x\n" for n in range(24))
    )
    pairs = read_split(RewardData(files=dict.fromkeys(SPLITS, str(file))), None, None, "train")
    assert pairs.rows[0].texts == ("s\na0 b",) and [row.label for row in pairs.rows[:3]] == [0, 1, 2]
    assert pairs.not_read == ["columns of the data that are not read: id"]
    with pytest.raises(InputError, match="there is no column 'x'"):
        read_split(RewardData(files=str(file), margin="x"), None, None, "train")


def test_rows_may_leave_out_what_others_have(tmp_path: Path) -> None:
    more = {"system": "Be brief."}
    file = written(tmp_path, [{"prompt": f"{n} ?", **(more if n % 2 else {})} for n in range(20)])
    prompts = Prompts(data_files=file).prompts("train")
    assert [bool(prompt.messages) for prompt in prompts[:4]] == [False, True, False, True]
