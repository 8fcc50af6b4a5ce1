"""Stage `rewards`: score every response with every reward, part by part, and save the scores.

responses ─▶ missing parts ─▶ Execute ─┬─▶ reward servers ─▶ scores
                                       └─▶ rewards/part-….parquet, one column for each reward

`Execute` calls the reward servers: `score_here` from this process,
`services/studies/annotation/on_ray.py` from a cluster. Each part is saved before the next one begins, so
a kill costs only the parts in progress. Columns hold the rewards' raw values; readers apply the weights.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from contracts.clients import Scoring
from contracts.errors import DeadlineExceeded, InputError, RunError
from contracts.scores import Sample, Score
from reward_servers.needs import has_reference, missing_keys, shown_keys
from reward_servers.part_checks import needs_meta, needs_references
from reward_servers.settings import Part
from services.data.annotated.parts import Parts
from services.data.annotated.reward_columns import GRADES, REWARD
from services.data.tasks.responses import ResponseRow

LOOK_S = 1.0  # seconds between two checks of the progress
FEW = 16  # rows; fewer failures may be chance
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
    ("scores", pa.string()),  # JSON: the data set's own scores
]

Job = tuple[int, list[ResponseRow]]  # a part, and its rows
# Function of a job and its scores. It is pickled, and the process that got the scores calls it.
Then = Callable[[Job, list[Score]], Any]


class Execute(Protocol):
    """Function that yields (part, result of `then`) once for each job, in any order."""

    def __call__(self, jobs: Iterable[Job], then: Then) -> Iterator[tuple[int, Any]]: ...


class Scores(Protocol):
    """The part of `contracts.clients.RewardClient` that scoring needs."""

    def submit(self, samples: Sequence[Sample]) -> Future[list[Score]]: ...

    def scoring(self) -> Scoring: ...


def awaited(
    client: Scores,
    samples: Sequence[Sample],
    patience_s: float,
    look_s: float = LOOK_S,
    check_stop: Callable[[], None] = lambda: None,
) -> list[Score]:
    """Return the scores of the samples; wait for a slow reward as long as it scores any text.

    Args:
        check_stop: called at each check; raises an error to end the wait.

    Raises:
        DeadlineExceeded: no text was scored for `patience_s`.
        RewardError: a reward can't be reached.
    """
    future, since, num_answered = client.submit(samples), time.monotonic(), client.scoring().num_answered
    while not wait([future], timeout=look_s).done:
        check_stop()
        now = client.scoring()
        if now.num_answered > num_answered:
            since, num_answered = time.monotonic(), now.num_answered
        if time.monotonic() - since >= patience_s:
            raise DeadlineExceeded(
                f"waited {patience_s:.0f} s for the scores of {len(samples)} texts: {now}; "
                "raise reward_servers.default.timeout_s"
            )
    return future.result()


def score_here(client: Scores, patience_s: float, check_stop: Callable[[], None] = lambda: None) -> Execute:
    """Return a function that scores one part after another from this process, waiting like `awaited`."""

    def execute(jobs: Iterable[Job], then: Then) -> Iterator[tuple[int, Any]]:
        for job in jobs:
            scores = awaited(client, samples_of(job[1]), patience_s, check_stop=check_stop)
            yield job[0], then(job, scores)

    return execute


def scores_alone(job: Job, scores: list[Score]) -> list[Score]:
    """Return the scores unchanged; save nothing."""
    return scores


@dataclass(frozen=True, slots=True)
class Keep:
    """Function that saves a part with its scores, and returns its number of rows.

    Raises:
        RunError: a reward scored no row of the part, so the reward is broken, not the rows.
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
    """Score and save the missing parts. If a row can't be scored, its column `error` holds the reason.

    Args:
        again: finished parts to score once more; each keeps its file until its new scores are saved.
        advance: called with the number of rows of each saved part.

    Raises:
        RunError: a reward scored no row of a part, so the reward is broken, not the rows.
    """
    starts = sorted({*parts.missing(), *again})
    jobs = ((start, [rows[row] for row in parts.rows(start)]) for start in starts)
    # Another process may have another working folder.
    keep = Keep(tuple(rewards), replace(parts, folder=parts.folder.absolute()))
    for _, num_rows in execute(jobs, keep) if rewards else _unscored(jobs, keep):
        advance(num_rows)


def samples_of(rows: Sequence[ResponseRow]) -> list[Sample]:
    """Return the rows as samples for graders; rows of one prompt share a group."""
    return [
        Sample(row.response, row.prompt.text, row.prompt.references, row.prompt.meta, f"data/{row.group}")
        for row in rows
    ]


def as_table(
    numbers: Sequence[int], rows: Sequence[ResponseRow], rewards: Sequence[Part], scores: Sequence[Score]
) -> pa.Table:
    """Return the rows with columns `reward.<label>`, `error` and `grades`; missing values are null.

    A reward's value is the sum of its scores of tokens or spans; `grades` has each record by label, as JSON.
    """
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
    columns[GRADES] = [
        _json({label: grade.as_json() for label, grade in score.grades.items()}) if score.grades else None
        for score in scores
    ]
    return pa.table(columns, schema=schema_of(rewards))


def schema_of(rewards: Sequence[Part]) -> pa.Schema:
    fields = [*ROW_FIELDS, *((REWARD + part.label, pa.float64()) for part in rewards)]
    return pa.schema([*fields, ("error", pa.string()), (GRADES, pa.string())])


def _unscored(jobs: Iterable[Job], then: Then) -> Iterator[tuple[int, Any]]:
    """Yield each job's rows without scores, for runs without rewards."""
    for job in jobs:
        yield job[0], then(job, [Score(None) for _ in job[1]])


def failed_parts(parts: Parts) -> list[int]:
    """Return the finished parts with a row that was not scored."""
    there = set(parts.starts) - set(parts.missing())
    return [start for start in sorted(there) if num_failed(parts, start)]


def num_failed(parts: Parts, start: int) -> int:
    """Count the rows of a part that were not scored."""
    return len(parts.rows(start)) - int(parts.read(start, ["error"])["error"].null_count)


def _utf8(text: str) -> str:
    """Escape lone surrogates, which a model can write, as in JSON."""
    return text.encode("utf-8", "backslashreplace").decode()


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values), sort_keys=True, default=str)


def check_inputs(rewards: Sequence[Part], rows: Sequence[ResponseRow], source: str = "data") -> None:
    """Check that some rows have what each reward reads beside texts, before anything starts.

    Args:
        source: the key whose options name columns, "data" or "task".

    Raises:
        InputError: no row has references or meta data that a reward needs.
    """
    prompts = [row.prompt for row in rows]
    for part in rewards:
        if needs_references("reward", part) and not any(has_reference(one.references) for one in prompts):
            raise InputError(
                f"reward={part.name} compares with references, but the data's rows have none: expected "
                f"{source}.references_column=NAME"
            )
        needed = needs_meta("reward", part)
        if needed and all(missing_keys(needed, one.meta) for one in prompts):
            raise InputError(
                f"reward={part.name} needs meta data {', '.join(needed)}, but the data's rows give: "
                f"{shown_keys(prompts[0].meta)}. Expected {source}.meta_columns=[{', '.join(needed)}]"
            )


def check_some(rewards: Sequence[Part], what: str, scores: Sequence[Score]) -> None:
    """Check that each reward scored at least one text.

    Raises:
        RunError: a reward scored none of the texts, so the reward is broken, not the texts.
    """
    if len(scores) < FEW:  # a few texts may all be impossible to score
        return
    for part in rewards:
        if not any(part.label in score.parts for score in scores):
            reason = next((score.error for score in scores if score.error), "no reason given")
            raise RunError(
                f"reward {part.label} scored none of the {len(scores)} {what}; the first: {reason}"
            )
