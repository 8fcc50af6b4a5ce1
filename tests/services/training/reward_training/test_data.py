"""Rows of `whetstone train-reward`: how they are dealt to splits that have no file."""

import json
from pathlib import Path

import pytest

from services.training.reward_training.data import RewardData, read_split


@pytest.mark.parametrize(
    "columns",
    [
        ("prompt", "response", "label"),
        ("prompt", "chosen", "rejected"),
        ("text", "label"),
        ("chosen", "rejected"),
    ],
)
def test_rows_of_one_prompt_or_text_are_in_one_split(tmp_path: Path, columns: tuple[str, ...]) -> None:
    """Twenty prompts (or texts), each in three rows: the 9th and the 19th are of validation."""
    rows = [
        {name: f"{name} {n // 3}" if name == columns[0] else f"{name} {n}" for name in columns}
        | ({"label": n % 2} if "label" in columns else {})
        for n in range(60)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = RewardData(files=str(file))
    texts = [row.texts[0] for row in read_split(data, None, None, "validation").rows]
    assert len(texts) == 6
    if "prompt" in columns:
        assert {text.split(f" {columns[1]}")[0] for text in texts} == {"prompt 8", "prompt 18"}
    else:
        assert set(texts) == {f"{columns[0]} 8", f"{columns[0]} 18"}
