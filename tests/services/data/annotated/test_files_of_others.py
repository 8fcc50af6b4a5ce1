"""Files as widely used data sets have them, and as other programs write tables with missing values."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from contracts.errors import InputError
from contracts.rollout import Prompt
from services.commands import annotate, plan
from services.config.compose import run_settings
from services.data.annotated.responses import ResponseData, read_responses
from services.data.tasks.prompts import Prompts
from services.training.preflight.checks.prompt_checks import check_references
from tests.models import make_tiny_model
from tests.services.data.tasks.test_columns import ANSWER, USER, WRONG, written
from tests.services.data.tasks.test_other_columns import AGAIN, PAIR, TEXT, annotated

FEEDBACK: dict[str, Any] = {
    "prompt": TEXT,
    "prompt_id": "x",
    "chosen": [USER, ANSWER],
    "rejected": [USER, WRONG],
}
FEEDBACK |= {"messages": [USER, ANSWER], "score_chosen": 8.5, "score_rejected": 2.0}


@pytest.mark.parametrize("options", [[], ["data.prompt=prompt"]])
def test_evaluations_read_the_prompt_of_the_rows_that_are_learned(tmp_path: Path, options: list[str]) -> None:
    file = written(tmp_path, [{**FEEDBACK, "prompt_id": n} for n in range(20)])
    run = run_settings(["algorithm=dpo", f"data={file}", "model.path=gpt2", *options])
    assert isinstance(run.task, Prompts) and run.data is not None
    assert run.task.prompts("validation")[0].text == TEXT
    assert annotated(tmp_path, [FEEDBACK]) == PAIR


def test_a_conversation_that_is_named_is_prompt_and_response(tmp_path: Path) -> None:
    row = {"prompt": TEXT, "messages": [USER, ANSWER, AGAIN, WRONG]}
    assert annotated(tmp_path, [row], prompt="messages") == [(f"{TEXT}\n7\nSure ?", "8", True)]
    with pytest.raises(InputError, match="expected prompt and response"):
        annotated(tmp_path, [row])


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER, ANSWER]},
        {"prompt": TEXT, "chosen": [USER, ANSWER], "rejected": [USER, WRONG]},
        {"prompt": TEXT, "completion": [ANSWER]},
    ],
)
def test_messages_that_a_table_holds_in_pythons_form_are_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    """pandas and `datasets` write Python's form of a list into CSV, the latter with line ends for commas."""
    table = pd.DataFrame([row] * 20).to_csv(index=False)
    for text in (table, table.replace("}, {", "}\n {")):
        with pytest.raises(InputError, match=r"column '\w+': a list of messages that is not JSON"):
            annotated(tmp_path, text)
    (tmp_path / "rows.csv").write_text(table)
    task = Prompts(data_files=str(tmp_path / "rows.csv"))
    if "chosen" not in row:
        with pytest.raises(InputError, match="a list of messages that is not JSON"):
            task.prompts("train")
    assert annotated(tmp_path, "prompt,completion\n[{'a': 1}],\"[1, 2]\"\n") == [
        ("[{'a': 1}]", "[1, 2]", True)
    ]


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        ([{"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": None}], 1),
        ([{"prompt": "a", "completion": "b"}, {"prompt": "c"}], 1),
        ([{"prompt": "a", "completion": "b"}, {"prompt": None, "completion": "d"}], 1),
        (
            [
                {"prompt": "a", "chosen": "b", "rejected": "c"},
                {"prompt": "d", "chosen": "e", "rejected": None},
            ],
            3,
        ),
        (
            [
                {"prompt": "a", "chosen": "b", "rejected": "c"},
                {"prompt": "d", "chosen": None, "rejected": None},
            ],
            2,
        ),
        ([{"messages": [USER, ANSWER]}, {"messages": None}], 1),
        ([{"chosen": [USER, ANSWER], "rejected": [USER, WRONG]}, {"chosen": None, "rejected": None}], 2),
    ],
)
def test_nulls_are_empty_texts(tmp_path: Path, rows: list[dict[str, Any]], kept: int) -> None:
    with pytest.raises(InputError, match=r"has \d empty (responses|prompts).*data\.skip_empty=true"):
        annotated(tmp_path, rows)
    assert len(annotated(tmp_path, rows, skip_empty=True)) == kept


@pytest.mark.parametrize("name", ["q", "a"])
def test_nulls_inside_objects_are_empty_texts(tmp_path: Path, name: str) -> None:
    rows = [{"d": {"q": "a", "a": "b"}}, {"d": {"q": "c", "a": "e"} | {name: None}}]
    options = {"prompt": "d.q", "response": "d.a"}
    with pytest.raises(InputError, match=r"has 1 empty (responses|prompts).*data\.skip_empty=true"):
        annotated(tmp_path, rows, **options)
    assert annotated(tmp_path, rows, skip_empty=True, **options) == [("a", "b", True)]


@pytest.mark.parametrize(
    "text", ["[{'from': 'Paris', 'to': 'Rome'}]", "[{'role': 'admin'}]", "[{'role': 'user', 'content': 'x'}]"]
)
def test_texts_that_look_like_messages_stay_texts_outside_tables(tmp_path: Path, text: str) -> None:
    assert annotated(tmp_path, [{"prompt": "route", "completion": text}]) == [("route", text, True)]


@pytest.mark.parametrize(
    ("name", "begin", "expected"),
    [
        ("rows.csv", "prompt;completion", "expected commas between columns"),
        ("rows.csv", "\tprompt\tcompletion", "expected commas between columns"),
        ("rows.tsv", "prompt,completion", "expected tabs between columns"),
    ],
)
def test_other_separators_are_named(tmp_path: Path, name: str, begin: str, expected: str) -> None:
    (tmp_path / name).write_text(f"{begin}\na;b\n")
    with pytest.raises(InputError, match=f"line 1: {expected}.*got one column"):
        read_responses(ResponseData(files=str(tmp_path / name)), None, "train")


@pytest.mark.parametrize("inside", ["", "data"])
def test_a_folder_of_pieces_names_the_option_that_reads_it(tmp_path: Path, inside: str) -> None:
    (tmp_path / inside).mkdir(exist_ok=True)
    for number in range(2):
        rows = pd.DataFrame([{"prompt": f"{number} {n} ?", "completion": "b"} for n in range(10)])
        rows.to_parquet(tmp_path / inside / f"train-0000{number}-of-00002.parquet")
    with pytest.raises(InputError, match=rf"data\.path={tmp_path} reads pieces such as train-00000-of-00002"):
        read_responses(ResponseData(files=str(tmp_path)), None, "train")
    assert len(read_responses(ResponseData(path=str(tmp_path)), None, "train").rows) == 16  # 8 of 10


def test_one_row_without_a_reference_is_not_a_wrong_column() -> None:
    prompts = [Prompt("prompts/train/0", "a", ("b",)), Prompt("prompts/train/1", "c")]
    evaluation = run_settings(["model.path=gpt2"]).evaluation
    with pytest.raises(InputError, match=r"train/1 has no reference\. Leave this prompt out"):
        check_references(prompts, evaluation, [], "supervised")
    with pytest.raises(InputError, match=r"name the column of references"):
        check_references(prompts[1:], evaluation, [], "supervised")


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("rouge", r"compares with references.*expected data\.references_column=NAME"),
        ("coverage", r"needs meta data concepts.*give: none\. Expected data\.meta_columns=\[concepts\]"),
    ],
)
def test_rows_without_what_a_reward_reads_are_refused_before_anything_starts(
    tmp_path: Path, reward: str, message: str
) -> None:
    file = written(tmp_path, [{"prompt": f"{n} ?", "completion": "7", "gold": "7"} for n in range(20)])
    words = [f"data.files={file}", f"reward={reward}", f"output={tmp_path / 'out'}", "executor=here"]
    with pytest.raises(InputError, match=message):
        annotate.run(words)
    model = make_tiny_model(tmp_path / "model")
    of_run = ["algorithm=wbc", f"data={file}", f"model.path={model}", "rollout.max_tokens=8"]
    with pytest.raises(InputError, match=message):
        plan.run([*of_run, f"reward={reward}"])
    assert plan.run([*of_run, "reward=rouge", "data.references_column=gold"]) == 0


def test_an_annotation_names_its_own_option_for_shorter_responses(tmp_path: Path) -> None:
    file = written(tmp_path, [{"prompt": "1 2", "completion": "3"}] * 10)
    model = make_tiny_model(tmp_path / "model")
    with pytest.raises(InputError, match=r"Give rollout\.max_tokens=64, say"):
        annotate.run([f"data.files={file}", f"reference={model}", f"output={tmp_path / 'out'}"])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"chosen": "4", "rejected": "4"}, "1 prompts whose chosen and rejected responses are equal"),
        ({"chosen": "4", "rejected": None}, "1 empty responses, 1 prompts with fewer than 2 responses"),
        ({"response": ["4"]}, "1 prompts with fewer than 2 responses"),
    ],
)
def test_a_plan_says_which_rows_are_left_out(
    tmp_path: Path, row: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": f"{n} ?", "chosen": "7", "rejected": "8"} for n in range(20)]
    file = written(tmp_path, [{"prompt": "a ?", **row}, *rows])
    model = make_tiny_model(tmp_path / "model")
    options = ["rollout.max_tokens=8", "data.skip_empty=true"]
    assert plan.run(["algorithm=dpo", f"data={file}", f"model.path={model}", *options]) == 0
    assert message in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([None] * 20, "all 16 responses of"),
        ([True] * 20, "are good, and algorithm=kto learns from both kinds"),
        ([False] * 20, "are not good, and algorithm=kto learns from both kinds"),
        ([True, False] * 10, None),
    ],
)
def test_a_plan_says_that_labels_of_one_kind_teach_little(
    tmp_path: Path, labels: list[bool | None], message: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = [{"prompt": f"{n} ?", "completion": "7"} for n in range(20)]
    for row, good in zip(rows, labels, strict=True):
        row |= {} if good is None else {"label": good}
    model = make_tiny_model(tmp_path / "model")
    options = ["algorithm=kto", f"data={written(tmp_path, rows)}", f"model.path={model}"]
    assert plan.run([*options, "rollout.max_tokens=8"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert message in printed if message else "both kinds" not in printed
