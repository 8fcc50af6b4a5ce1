"""Files of rows with responses, and invariants of every task that reads them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contracts.rollout import Prompt
from services.data.tasks.base import SPLITS
from services.data.tasks.response_task import ResponseTask
from services.data.tasks.responses import ResponseRow


def write(path: Path, rows: Sequence[Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def folder(path: Path, rows: Sequence[Any], **of_split: Sequence[Any]) -> str:
    """The same rows in every split, but where others are given."""
    for split in SPLITS:
        write(path / f"{split}.jsonl", of_split.get(split, rows))
    return str(path)


def texts(prompts: Sequence[Prompt]) -> list[str]:
    return [prompt.text for prompt in prompts]


def check_rows(task: ResponseTask) -> None:
    """Check a task's groups: one a prompt, in the prompts' order, its references the good ones."""
    for split in SPLITS:
        prompts, groups = task.prompts(split), dict[int, list[ResponseRow]]()
        for row in task.responses(split):
            groups.setdefault(row.group, []).append(row)
        assert list(groups) == list(range(len(prompts)))
        for group, rows in groups.items():
            assert [row.order for row in rows] == list(range(len(rows)))
            assert {row.prompt.id for row in rows} == {prompts[group].id}
            assert rows[0].prompt == prompts[group]
            assert tuple(row.response for row in rows if row.is_good) == prompts[group].references
        streamed = type(task)(**task.model_dump() | {"streaming": True}).prompts(split)
        assert list(streamed) == list(prompts)
        first = type(task)(**task.model_dump() | {"max_size": 1})
        assert list(first.prompts(split)) == list(prompts[:1])
        assert first.responses(split) == groups[0]
