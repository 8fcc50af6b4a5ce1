"""The stage `rewards`: every response is scored by every reward, part by part, and its scores are kept.

    responses ─▶ parts that are missing ─▶ Execute ─┬─▶ reward servers ─▶ scores
                                                    └─▶ rewards/part-….parquet, one column a reward

`Execute` is who asks the reward servers: `score_here` in this process, `services/annotation_ray.py` over a
cluster. Whoever had a part scored writes it before it takes the next one: what a kill costs is what was under
way. Columns hold the values as the rewards gave them; weights are laid on when they are read.
"""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from contracts.errors import InputError, RunError, did_you_mean
from contracts.scores import Sample, Score
from reward_servers.settings import Part
from reward_servers.shaping import contribution
from services.annotation import Parts
from services.tasks.responses import ResponseRow

REWARD = "reward."  # a column's name before the reward's label
FEW = 16  # rows
ROW_FIELDS = [
    ("row", pa.int64()),
    ("prompt_id", pa.string()),
    ("prompt", pa.string()),
    ("references", pa.list_(pa.string())),
    ("meta", pa.string()),  # JSON
    ("response", pa.string()),
    ("good", pa.bool_()),
    ("group", pa.int64()),
    ("order", pa.int64()),
    ("scores", pa.string()),  # JSON: what the data set itself says of it
]

Job = tuple[int, list[ResponseRow]]  # a part, and its rows
# What is done with a part's scores, by whoever had them scored; goes to other processes as it is.
Then = Callable[[Job, list[Score]], Any]


class Execute(Protocol):
    """Gives (part, what `then` made of it) of each job, in any order; of each part once."""

    def __call__(self, jobs: Iterable[Job], then: Then) -> Iterator[tuple[int, Any]]: ...


class Submits(Protocol):
    """As `contracts.clients.RewardClient`."""

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]: ...


def score_here(client: Submits, timeout_s: float) -> Execute:
    """One part after another, from this process."""

    def execute(jobs: Iterable[Job], then: Then) -> Iterator[tuple[int, Any]]:
        for job in jobs:
            yield job[0], then(job, client.submit(samples_of(job[1])).result(timeout_s))

    return execute


def scores_alone(job: Job, scores: list[Score]) -> list[Score]:
    """Nothing is kept."""
    return scores


@dataclass(frozen=True, slots=True)
class Keep:
    """Writes a part with its scores; gives how many rows it has.

    Raises:
        RunError: a reward scored not one row of it: something is wrong with it, and not with the rows.
    """

    rewards: tuple[Part, ...]
    parts: Parts

    def __call__(self, job: Job, scores: list[Score]) -> int:
        start, rows = job
        check_some(self.rewards, f"rows of the part from row {start} on", scores)
        self.parts.write(start, as_table(self.parts.rows(start), rows, self.rewards, scores))
        return len(rows)


def score_missing(
    rows: Sequence[ResponseRow],
    rewards: Sequence[Part],
    parts: Parts,
    execute: Execute,
    advance: Callable[[int], None],
    again: Collection[int] = (),
) -> None:
    """Score what is not scored yet. A row that can't be scored has the reason in `error`.

    Args:
        again: parts that are there and scored once more; each stays as it is until its new scores are there.
        advance: told how many rows more are kept.

    Raises:
        RunError: a reward scored not one row of a part: something is wrong with it, and not with the rows.
    """
    starts = sorted({*parts.missing(), *again})
    jobs = ((start, [rows[row] for row in parts.rows(start)]) for start in starts)
    # Another process may stand in another folder.
    keep = Keep(tuple(rewards), replace(parts, folder=parts.folder.absolute()))
    for _, num_rows in execute(jobs, keep) if rewards else _unscored(jobs, keep):
        advance(num_rows)


def samples_of(rows: Sequence[ResponseRow]) -> list[Sample]:
    """What graders are shown of them; rows of one prompt share a group."""
    return [
        Sample(row.response, row.prompt.text, row.prompt.references, row.prompt.meta, f"data/{row.group}")
        for row in rows
    ]


def as_table(
    numbers: Sequence[int], rows: Sequence[ResponseRow], rewards: Sequence[Part], scores: Sequence[Score]
) -> pa.Table:
    """The rows with a column `reward.<label>` for each reward, and `error`; what was not scored is null."""
    columns: dict[str, list[Any]] = {
        "row": list(numbers),
        "prompt_id": [row.prompt.id for row in rows],
        "prompt": [_utf8(row.prompt.text) for row in rows],
        "references": [list(map(_utf8, row.prompt.references)) for row in rows],
        "meta": [_json(row.prompt.meta) for row in rows],
        "response": [_utf8(row.response) for row in rows],
        "good": [row.is_good for row in rows],
        "group": [row.group for row in rows],
        "order": [row.order for row in rows],
        "scores": [_json(row.scores) for row in rows],
    }
    for part in rewards:
        columns[REWARD + part.label] = [score.parts.get(part.label) for score in scores]
    columns["error"] = [None if score.error is None else _utf8(score.error) for score in scores]
    return pa.table(columns, schema=schema_of(rewards))


def schema_of(rewards: Sequence[Part]) -> pa.Schema:
    fields = [*ROW_FIELDS, *((REWARD + part.label, pa.float64()) for part in rewards)]
    return pa.schema([*fields, ("error", pa.string())])


def _unscored(jobs: Iterable[Job], then: Then) -> Iterator[tuple[int, Any]]:
    """Where no reward is asked for, the rows are kept without."""
    for job in jobs:
        yield job[0], then(job, [Score(None) for _ in job[1]])


def totals(table: pa.Table, rewards: Sequence[Part], where: str) -> NDArray[np.float64]:
    """The weighted sum of each row's rewards, (rows,); NaN where one of them is not known.

    Raises:
        InputError: the table has no column of a reward.
    """
    sums = np.zeros(table.num_rows)
    for part in rewards:
        if REWARD + part.label not in table.column_names:
            there = [name.removeprefix(REWARD) for name in table.column_names if name.startswith(REWARD)]
            raise InputError(
                f"reward: {where} has no column of '{part.label}'{did_you_mean(part.label, there)}"
            )
        values = table[REWARD + part.label].to_pylist()
        sums += [math.nan if value is None else contribution(part, value) for value in values]
    return sums


def failed_parts(parts: Parts) -> list[int]:
    """The parts that are there with a row that was not scored."""
    there = set(parts.starts) - set(parts.missing())
    return [start for start in sorted(there) if num_failed(parts, start)]


def num_failed(parts: Parts, start: int) -> int:
    """How many rows of a part were not scored."""
    return len(parts.rows(start)) - int(parts.read(start, ["error"])["error"].null_count)


def _utf8(text: str) -> str:
    """Half a surrogate pair, which a model can write, as the escape that JSON has for it."""
    return text.encode("utf-8", "backslashreplace").decode()


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values), sort_keys=True, default=str)


def check_some(rewards: Sequence[Part], what: str, scores: Sequence[Score]) -> None:
    """
    Raises:
        RunError: a reward scored none of them: something is wrong with it, and not with the texts.
    """
    if len(scores) < FEW:  # chance may have it that none of them can be scored
        return
    for part in rewards:
        if not any(part.label in score.parts for score in scores):
            reason = next((score.error for score in scores if score.error), "no reason given")
            raise RunError(
                f"reward {part.label} scored none of the {len(scores)} {what}; the first: {reason}"
            )
