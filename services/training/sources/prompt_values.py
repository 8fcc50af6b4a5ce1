"""Stages `generations` and `value`: predict the reward of the reference model's responses to a prompt.

    validation prompts ─▶ reference writes ─▶ rewards ─▶ value/generations.parquet
           └─▶ hidden states ─▶ learner/models/value_estimator.py ─▶ value/head.safetensors, value/errors.json
    all prompts of the data ─▶ hidden states ─▶ head ─▶ value/values.parquet

The head never trains on a prompt of the data, so the advantage (reward - value) is not fitted to the data.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from contracts.errors import InputError, LearnerError
from contracts.processes.disk import room_for
from contracts.rollout import Lease, Prompt, Rollout, Sampling
from contracts.scores import Score
from reward_servers.settings import Part
from reward_servers.user_rewards.own import wants_groups
from rollout_workers.settings import RolloutSettings
from services.config.post_processing import PostProcess
from services.config.value_stage import ValueStage
from services.data.annotated.parts import cuts_between, read_table, write_table
from services.data.annotated.reward_columns import totals
from services.data.tasks.responses import ResponseRow
from services.data.tokens.prompt_tokens import PromptTokens
from services.runs.json_lines import without_nan, write_atomically
from services.training.sources.leasing import EVALUATION, evaluation_leases
from services.training.sources.row_rewards import Execute, as_table, check_some, scores_alone

if TYPE_CHECKING:
    from learner.models.value_estimator import TrainedValue
    from services.training.sources.reference import Reference

Write = Callable[[Sequence[Lease]], Iterable[list[Rollout]]]
AT_ONCE = 64  # prompts in a batch of values; texts in a batch of scores
VALUES = pa.schema([("prompt_id", pa.string()), ("value", pa.float64())])


@dataclass(frozen=True, slots=True)
class ValueFiles:
    """Files that the two stages write."""

    folder: Path

    @property
    def generations(self) -> Path:
        return self.folder / "generations.parquet"

    @property
    def values(self) -> Path:
        return self.folder / "values.parquet"

    @property
    def head(self) -> Path:
        return self.folder / "head.safetensors"

    @property
    def errors(self) -> Path:
        return self.folder / "errors.json"


def distinct_prompts(rows: Iterable[ResponseRow]) -> list[Prompt]:
    """Return one prompt for each text, in the order of the rows."""
    by_text: dict[str, Prompt] = {}
    for row in rows:
        by_text.setdefault(row.prompt.text, row.prompt)
    return list(by_text.values())


def leases_for(
    prompts: Sequence[Prompt], to_tokens: PromptTokens, rollout: RolloutSettings, stage: ValueStage
) -> list[Lease]:
    """Return leases (tasks for workers) with which the reference model answers the validation prompts."""
    sampling = Sampling(
        max_tokens=rollout.max_tokens,
        temperature=stage.temperature,
        stop=rollout.stop,
        num_beams=stage.num_beams,
        repetition_penalty=stage.repetition_penalty,
    )
    return evaluation_leases(
        prompts[: stage.num_prompts],
        to_tokens,
        sampling,
        samples=stage.samples_per_prompt,
        seed=stage.seed,
    )


def generate(
    leases: Sequence[Lease],
    write: Write,
    rewards: Sequence[Part],
    execute: Execute,
    files: ValueFiles,
    post_process: PostProcess | None = None,
) -> None:
    """Let the reference model generate; score the texts after `post_process`, and save texts and scores.

    Raises:
        RunError: a reward scored none of the texts; nothing is saved.
    """
    rollouts = {rollout.lease_id: rollout for finished in write(leases) for rollout in finished}
    texts = [rollouts[lease.id].text for lease in leases]
    written = [
        ResponseRow(
            lease.prompt, post_process(text) if post_process else text, lease.group, is_good=True, order=0
        )
        for lease, text in zip(leases, texts, strict=True)
    ]
    scores = _scores(written, rewards, execute)
    write_table(files.generations, [as_table(range(len(written)), written, rewards, scores)])


def num_failed(files: ValueFiles) -> int:
    """Count generations that could not be scored; 0 without generations."""
    if not files.generations.exists():
        return 0
    table = read_table(files.generations, ["error"])
    return int(table.num_rows - table["error"].null_count)


def score_failed(
    prompts: Sequence[Prompt], rewards: Sequence[Part], execute: Execute, files: ValueFiles
) -> None:
    """Score failed generations once more. Delete the values, so that a later stage learns them again.

    Args:
        prompts: prompts that the reference model answered.

    Raises:
        RunError: as in `generate`; saved files stay unchanged.
    """
    table, by_id = read_table(files.generations), {prompt.id: prompt for prompt in prompts}
    columns = ("prompt_id", "response", "group", "order")
    failed = [place for place, error in enumerate(table["error"].to_pylist()) if error is not None]
    if wants_groups(rewards):  # a text can't be scored without the others of its group
        groups = table["group"].to_pylist()
        with_failed = {groups[place] for place in failed}
        failed = [place for place, group in enumerate(groups) if group in with_failed]
    rows = [
        ResponseRow(by_id[name], response, group, is_good=True, order=order)
        for name, response, group, order in zip(
            *(table[column].take(failed).to_pylist() for column in columns), strict=True
        )
    ]
    scored = as_table(failed, rows, rewards, _scores(rows, rewards, execute)).to_pylist()
    kept = table.to_pylist()
    for place, row in zip(failed, scored, strict=True):
        kept[place] = row
    files.values.unlink(missing_ok=True)
    write_table(files.generations, [pa.Table.from_pylist(kept, schema=table.schema)])


def _scores(rows: Sequence[ResponseRow], rewards: Sequence[Part], execute: Execute) -> list[Score]:
    starts = cuts_between([row.group for row in rows], AT_ONCE)
    ends = [*starts[1:], len(rows)]
    # These groups must differ from the data set's, because graders may have seen those.
    apart = [replace(row, group=EVALUATION + row.group) for row in rows]
    jobs = ((start, apart[start:end]) for start, end in zip(starts, ends, strict=True))
    scores = dict(execute(jobs, scores_alone))
    in_order = [score for start in starts for score in scores[start]]
    check_some(rewards, "responses of the reference to validation prompts", in_order)
    return in_order


def train(
    rewards: Sequence[Part],
    to_tokens: PromptTokens,
    reference: "Reference",
    stage: ValueStage,
    files: ValueFiles,
) -> "TrainedValue":
    """Train the value head on the saved generations, and save it.

    Raises:
        InputError: too few prompts have a scored response, or rewards lie outside 0 … `value.max_value`.
    """
    from safetensors.torch import save_file
    from torch import tensor

    from learner.models.value_estimator import train_value

    table = read_table(files.generations)
    targets = _mean_rewards(table, rewards, files.generations)
    columns = (table[name].to_pylist() for name in ("prompt", "meta"))
    by_text = {text: Prompt("", text, meta=json.loads(meta)) for text, meta in zip(*columns, strict=True)}
    prompts = [to_tokens(by_text[text]) for text in targets]
    states = dict(reference.states(prompts))
    try:
        trained = train_value(
            [states[place] for place in range(len(prompts))], tensor(list(targets.values())), stage
        )
    except LearnerError as error:
        raise InputError(f"value: {error}") from None
    weights = {name: weight.cpu().contiguous() for name, weight in trained.head.state_dict().items()}
    with room_for(files.head):
        save_file(weights, files.head)
    errors = {
        "epochs": [asdict(epoch) for epoch in trained.epochs],
        "best": asdict(trained.best),
        "constant_error": trained.constant_error,
        "num_prompts": len(prompts),
        "num_held_out": len(trained.held_out),
    }
    write_atomically(files.errors, json.dumps(without_nan(errors), indent=1) + "\n")
    return trained


def value_all(
    rows: Sequence[ResponseRow],
    trained: "TrainedValue",
    to_tokens: PromptTokens,
    reference: "Reference",
    files: ValueFiles,
    advance: Callable[[int], None],
) -> None:
    """Compute and save the value of every prompt of the data. The saved file marks the stage as done."""
    from learner.models.value_estimator import predict

    by_text: dict[str, float] = {}
    prompts = distinct_prompts(rows)
    for some in _slices(prompts):
        for place, states_LH in reference.states([to_tokens(prompt) for prompt in some]):
            by_text[some[place].text] = float(predict(trained.head, [states_LH])[0])
        advance(len(some))
    values = {row.prompt.id: by_text[row.prompt.text] for row in rows}
    columns = {"prompt_id": list(values), "value": list(values.values())}
    write_table(files.values, [pa.table(columns, schema=VALUES)])


def read_values(files: ValueFiles) -> dict[str, float]:
    """Return each prompt's value, by the prompt's id."""
    table = read_table(files.values)
    return dict(zip(table["prompt_id"].to_pylist(), table["value"].to_pylist(), strict=True))


def _mean_rewards(table: pa.Table, rewards: Sequence[Part], file: Path) -> Mapping[str, float]:
    """Return each prompt text's mean reward over its scored responses."""
    by_text: dict[str, list[float]] = {}
    sums = totals(table, rewards, str(file))
    for text, total in zip(table["prompt"].to_pylist(), sums.tolist(), strict=True):
        if np.isfinite(total):
            by_text.setdefault(text, []).append(total)
    if len(by_text) < 2:
        raise InputError(
            f"value: {len(by_text)} validation prompts have a response that was scored, of "
            f"{table.num_rows} responses; expected at least 2"
        )
    return {text: float(np.mean(of_text)) for text, of_text in by_text.items()}


def _slices(prompts: Sequence[Prompt]) -> Iterator[Sequence[Prompt]]:
    for at in range(0, len(prompts), AT_ONCE):
        yield prompts[at : at + AT_ONCE]
