"""The stages `generations` and `value`: what reward the reference earns with a prompt, for every prompt.

    validation prompts ─▶ reference writes ─▶ rewards ─▶ value/generations.parquet
           └─▶ hidden states ─▶ learner/value_estimator.py ─▶ value/head.safetensors, value/errors.json
    all prompts of the data ─▶ hidden states ─▶ head ─▶ value/values.parquet

The head never sees a prompt of the data in training: the advantage reward - value is not fitted to it.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from contracts.disk import room_for
from contracts.errors import InputError, LearnerError
from contracts.rollout import Lease, Prompt, Rollout, Sampling
from contracts.scores import Score
from reward_servers.settings import Part
from rollout_workers.settings import RolloutSettings
from services.annotation import read_table, write_table
from services.annotation_rewards import Execute, as_table, check_some, scores_alone, totals
from services.json_lines import without_nan, write_atomically
from services.leasing import EVALUATION, evaluation_leases
from services.post_processing import PostProcess
from services.prompt_tokens import PromptTokens
from services.tasks.responses import ResponseRow
from services.value_stage import ValueStage

if TYPE_CHECKING:
    from learner.value_estimator import TrainedValue
    from services.annotation_reference import Reference

Write = Callable[[Sequence[Lease]], Iterable[list[Rollout]]]
AT_ONCE = 64  # prompts whose values are made together, texts that are scored together
VALUES = pa.schema([("prompt_id", pa.string()), ("value", pa.float64())])


@dataclass(frozen=True, slots=True)
class ValueFiles:
    """Where the two stages keep what they made."""

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
    """One prompt for each text, in the order of the rows."""
    found: dict[str, Prompt] = {}
    for row in rows:
        found.setdefault(row.prompt.text, row.prompt)
    return list(found.values())


def leases_for(
    prompts: Sequence[Prompt], to_tokens: PromptTokens, rollout: RolloutSettings, stage: ValueStage
) -> list[Lease]:
    """What the reference is asked to write."""
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
    """Let the reference write, score what `post_process` leaves of it, and keep both.

    Raises:
        RunError: a reward scored none of it: something is wrong with it, and nothing is kept.
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
    """How many of the generations could not be scored; 0 where there are none."""
    if not files.generations.exists():
        return 0
    table = read_table(files.generations, ["error"])
    return int(table.num_rows - table["error"].null_count)


def score_failed(
    prompts: Sequence[Prompt], rewards: Sequence[Part], execute: Execute, files: ValueFiles
) -> None:
    """Score once more what could not be scored; the values, which did without it, are then learned anew.

    Args:
        prompts: those that the reference answered.

    Raises:
        RunError: as `generate`; what was kept stays as it is.
    """
    table, by_id = read_table(files.generations), {prompt.id: prompt for prompt in prompts}
    columns = ("prompt_id", "response", "group", "order")
    failed = [place for place, error in enumerate(table["error"].to_pylist()) if error is not None]
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
    starts = range(0, len(rows), AT_ONCE)
    # To graders these are other groups than the data set's, which they may have seen before.
    apart = [replace(row, group=EVALUATION + row.group) for row in rows]
    scores = dict(execute(((start, apart[start : start + AT_ONCE]) for start in starts), scores_alone))
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
    """The head, from the generations that are kept; it is kept, too.

    Raises:
        InputError: too few prompts have a scored response, or rewards are outside of 0 … `value.max_value`.
    """
    from safetensors.torch import save_file
    from torch import tensor

    from learner.value_estimator import train_value

    targets = _mean_rewards(read_table(files.generations), rewards, files.generations)
    prompts = [to_tokens(text) for text in targets]
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
    told = {
        "epochs": [asdict(epoch) for epoch in trained.epochs],
        "best": asdict(trained.best),
        "constant_error": trained.constant_error,
        "num_prompts": len(prompts),
        "num_held_out": len(trained.held_out),
    }
    write_atomically(files.errors, json.dumps(without_nan(told), indent=1) + "\n")
    return trained


def value_all(
    rows: Sequence[ResponseRow],
    trained: "TrainedValue",
    to_tokens: PromptTokens,
    reference: "Reference",
    files: ValueFiles,
    advance: Callable[[int], None],
) -> None:
    """The value of every prompt of the data. Written last: where it is, the stage is done."""
    from learner.value_estimator import predict

    by_text: dict[str, float] = {}
    prompts = distinct_prompts(rows)
    for some in _slices(prompts):
        for place, states_LH in reference.states([to_tokens(prompt.text) for prompt in some]):
            by_text[some[place].text] = float(predict(trained.head, [states_LH])[0])
        advance(len(some))
    values = {row.prompt.id: by_text[row.prompt.text] for row in rows}
    columns = {"prompt_id": list(values), "value": list(values.values())}
    write_table(files.values, [pa.table(columns, schema=VALUES)])


def read_values(files: ValueFiles) -> dict[str, float]:
    """Of each prompt, by its id."""
    table = read_table(files.values)
    return dict(zip(table["prompt_id"].to_pylist(), table["value"].to_pylist(), strict=True))


def _mean_rewards(table: pa.Table, rewards: Sequence[Part], file: Path) -> Mapping[str, float]:
    """By the prompt's text; without responses that could not be scored."""
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
    return {text: float(np.mean(found)) for text, found in by_text.items()}


def _slices(prompts: Sequence[Prompt]) -> Iterator[Sequence[Prompt]]:
    for at in range(0, len(prompts), AT_ONCE):
        yield prompts[at : at + AT_ONCE]
