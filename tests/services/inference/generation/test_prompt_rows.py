"""`whetstone generate --prompts`: a row's conversation is read as training and evaluations read it."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.rollout import Sampling
from services.commands import generate
from services.config import compose
from services.inference.generation.prompt_rows import rows_of_file
from services.inference.generation.run_model import find_model
from services.training.loop.evaluations.held_out import held_out_leases
from tests.chat_templates import CALLS_TOOLS, make_chat_model

ASKED = {"role": "user", "content": "What is three and four ?"}
ANSWER = {"role": "assistant", "content": "It is seven."}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def file_of(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_reference_stays_hidden_and_tools_are_shown_as_in_evaluations(tmp_path: Path) -> None:
    model = make_chat_model(tmp_path / "model", CALLS_TOOLS)
    row = {"messages": [ASKED, ANSWER], "tools": TOOLS}
    files = [file_of(tmp_path / f"{split}.jsonl", row) for split in ("train", "validation", "test")]
    run = compose.run_settings(
        [f"model.path={model}", "task=prompts", f"task.data_files={tmp_path}", "reward=length"]
    )
    (evaluated,) = held_out_leases(run, "validation")

    rows, prompts = rows_of_file(files[1])
    arguments = argparse.Namespace(n=1, seed=0)
    (lease,), _ = generate._leases(find_model(str(model)), prompts, Sampling(max_tokens=4), arguments)
    assert lease.tokens == evaluated.tokens
    assert (rows[0]["prompt"], rows[0]["references"]) == ([ASKED], ["It is seven."])
    assert (prompts[0].references, prompts[0].tools) == (("It is seven.",), TOOLS)


def test_a_column_of_references_wins_and_texts_stay_as_they_are(tmp_path: Path) -> None:
    rows, prompts = rows_of_file(
        file_of(
            tmp_path / "a.jsonl",
            {"prompt": [ASKED, ANSWER], "answer": "7"},
            {"prompt": [ASKED, ANSWER], "references": ["8"], "answer": "7"},
            {"prompt": "3 5", "note": 1},
        )
    )
    assert [row.get("references") for row in rows] == [None, ["8"], None]
    assert [row["prompt"] for row in rows] == [[ASKED], [ASKED], "3 5"]
    assert (prompts[0].references, rows[2]) == (("7",), {"prompt": "3 5", "note": 1})


@pytest.mark.parametrize("before", [[], [{"role": "system", "content": "Be brief."}]])
def test_a_conversation_that_is_all_answer_is_refused_with_its_line(
    tmp_path: Path, before: list[dict[str, str]]
) -> None:
    file = file_of(tmp_path / "a.jsonl", {"prompt": "3"}, {"messages": [*before, ANSWER]})
    with pytest.raises(InputError, match=r"--prompts: .*a\.jsonl, line 2, column 'messages': expected a mes"):
        rows_of_file(file)
