"""Keep the prompts with a pass rate between the limits, for `whetstone annotate --pass-rate`.

OUTPUT/rewards/part-….parquet ─▶ a pass rate for each prompt ─▶ OUTPUT/train.jsonl, which `task=prompts` reads
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from contracts.conversations.messages import MESSAGES, RESPONSE
from contracts.errors import InputError
from contracts.rollout import Prompt
from services.data.annotated.parts import Parts
from services.data.tasks.base import HELD_OUT, Split, Task
from services.data.tasks.prompts import Prompts
from services.runs.json_lines import without_nan, write_atomically
from services.studies.annotation.pass_rate_settings import PassRateSettings

RATE = "pass_rate"  # the new column
NEVER, ALWAYS, UNSCORED = "never solved", "always solved", "without a score"


def keep(settings: PassRateSettings, parts: Parts, note: Callable[[str], None]) -> None:
    """Write train's kept prompts with their pass rates, and the other splits whole.

    Raises:
        InputError: no prompt is kept.
    """
    rewards = [row for start in parts.starts for row in parts.read(start, ["rewards"])["rewards"].to_pylist()]
    rates = [pass_rate(row, settings.pass_at) for row in rewards]
    reasons = [why_dropped(rate, settings.lowest, settings.highest) for rate in rates]
    dropped = Counter(filter(None, reasons))
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items())) or "none"
    folder = Path(settings.output)
    if len(rates) == dropped.total():
        raise InputError(
            f"all {len(rates)} prompts were dropped: {why}. {folder} keeps the answers. Repeat the command "
            "with other limits, such as lowest=0, highest=1 or pass_at=0.5"
        )
    for split in HELD_OUT:
        _write_rows(folder / f"{split}.jsonl", rows_of(settings.task, split))
    both = zip(rows_of(settings.task, "train"), rates, reasons, strict=True)
    _write_rows(folder / "train.jsonl", [{**row, RATE: rate} for row, rate, reason in both if not reason])
    note(f"kept {len(rates) - dropped.total()} of {len(rates)} prompts; dropped: {why}")
    note(f"task=prompts task.data_files={folder} reads them, with the same options for columns")


def rows_of(task: Task, split: Split) -> list[dict[str, Any]]:
    """Return a row for `task=prompts` for each prompt of a split.

    Rows of `task=prompts` keep their columns; other tasks' prompts become new rows.
    """
    prompts = task.prompts(split)
    if isinstance(task, Prompts):
        rows = zip(prompts, task.rows(split), strict=False)  # task.limit leaves rows behind the prompts
        return [dict(row) for _, row in rows]
    return [_row(prompt) for prompt in prompts]


def _row(prompt: Prompt) -> dict[str, Any]:
    more: Mapping[str, Any] = {
        key: value for key, value in prompt.meta.items() if key not in (MESSAGES, RESPONSE)
    }
    return {**more, "prompt": list(prompt.messages) or prompt.text, "references": list(prompt.references)}


def _write_rows(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    lines = [json.dumps(without_nan(row), ensure_ascii=False, default=str) for row in rows]
    if lines:  # a run refuses an empty file, but takes a missing split from the training rows
        write_atomically(file, "\n".join(lines) + "\n")


def pass_rate(rewards: Sequence[float | None], pass_at: float) -> float | None:
    """Return the share of scored answers that pass; None without scored answers.

    >>> pass_rate([1.0, 0.5, None, 2.0, 0.0], pass_at=1.0), pass_rate([None, None], pass_at=1.0)
    (0.5, None)
    """
    scored = [reward for reward in rewards if reward is not None]
    return sum(reward >= pass_at for reward in scored) / len(scored) if scored else None


def why_dropped(rate: float | None, lowest: float | None, highest: float | None) -> str:
    """Return the reason to drop a prompt with this pass rate; "" to keep it.

    >>> [why_dropped(rate, None, None) for rate in (0.0, 0.125, 1.0, None)]
    ['never solved', '', 'always solved', 'without a score']
    >>> [why_dropped(rate, 0.25, 1.0) for rate in (0.0, 0.125, 0.25, 1.0)]
    ['never solved', 'solved too rarely', '', '']
    """
    if rate is None:
        return UNSCORED
    if rate < (lowest or 0) or (lowest is None and rate == 0):
        return "solved too rarely" if rate else NEVER
    if rate > (1 if highest is None else highest) or (highest is None and rate == 1):
        return "solved too often" if rate < 1 else ALWAYS
    return ""
