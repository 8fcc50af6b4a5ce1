"""Annotated rows as rollouts: what they hold, which are drawn, how a run goes on, what is refused."""

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from contracts.errors import InputError
from contracts.rollout import FinishReason, Prompt, Rollout
from contracts.scores import Score
from learner.algorithms.a_lol import ALoL
from learner.algorithms.dpo import DPO
from learner.algorithms.pro import PRO
from learner.algorithms.wbc import WBC
from learner.batches.batching import collate
from reward_servers.settings import Part, parts
from services.commands.annotate import run as annotate
from services.data.annotated.parts import Parts, settle_manifest
from services.data.annotated.rows import AnnotatedRows, merge, read_annotated, weights_of
from services.data.tasks.responses import ResponseRow
from services.data.tokens.response_tokens import Tokens
from services.training.sources import row_rewards as annotation_rewards
from services.training.sources.offline import OFFLINE, OfflineSource
from services.training.sources.reference import SCHEMA

REWARDS = parts([{"name": "length"}, {"name": "exact_match", "weight": 0.5}])
LENGTH = Part(name="length")


def annotated(
    folder: Path,
    lengths: list[float | None],
    *,
    silent: Collection[int] = (),
    groups: list[int] | None = None,
    good: list[bool] | None = None,
    texts: list[str] | None = None,
    values: list[float] | None = None,
    tokens: list[list[int]] | None = None,
    has_reference: bool = True,
) -> Path:
    """One row a length; the second reward is always 1, so that a row's reward is its length + 0.5.

    Args:
        silent: rows about which the second reward says nothing.
    """
    num = len(lengths)
    groups, texts = groups or list(range(num)), texts or [f"text {row}" for row in range(num)]
    rows = [
        ResponseRow(
            Prompt(f"p/{group}", f"prompt {group}", ("a reference",), {"kind": group}),
            texts[row],
            group,
            is_good=True if good is None else good[row],
            order=sum(other == group for other in groups[:row]),
        )
        for row, group in enumerate(groups)
    ]
    scores = [
        Score(None, {}, "no length")
        if length is None
        else Score(0.0, {"length": length, **({} if row in silent else {"exact_match": 1.0})})
        for row, length in enumerate(lengths)
    ]
    all_parts = Parts(folder / "rewards", num, 3)
    for start in all_parts.starts:
        of_part = all_parts.rows(start)
        table = annotation_rewards.as_table(
            of_part, [rows[row] for row in of_part], REWARDS, [scores[row] for row in of_part]
        )
        all_parts.write(start, table)
    reference = replace(all_parts, folder=folder / "reference")
    tokens = tokens or [[10 + row, 1] for row in range(num)]
    for start in reference.starts:
        columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
        for row in reference.rows(start):
            columns["row"].append(row)
            columns["prompt_tokens"].append([5, 6])
            columns["tokens"].append(tokens[row])
            columns["ref_logprobs"].append([-0.5 * (place + 1) for place in range(len(tokens[row]))])
            columns["cut"].append(row == 1)
        reference.write(start, pa.table(columns, schema=SCHEMA))
    by_id = (
        None if values is None else {row.prompt.id: value for row, value in zip(rows, values, strict=True)}
    )
    manifest: dict[str, Any] = {"rewards": {"parts": {}, "told": weights_of(REWARDS)}}
    if values is not None:
        manifest["value"] = {"rewards": weights_of(REWARDS)}
    settle_manifest(folder, manifest, overwrite=False)
    merge(folder, all_parts, reference if has_reference else None, by_id)
    return folder


def rewards_of(rollouts: list[Rollout]) -> list[float]:
    return [rollout.total_reward for rollout in rollouts]


# What a row becomes


def test_a_row_is_a_rollout_of_the_reference(tmp_path: Path) -> None:
    annotated(tmp_path, [3.0, 4.0], values=[2.0, 1.0])
    rows = read_annotated(tmp_path, needs_reference=True, needs_values=True)
    rollouts = sorted(OfflineSource(rows, WBC(), seed=0).next(2), key=lambda rollout: rollout.total_reward)
    assert [rollout.total_reward for rollout in rollouts] == [3.5, 4.5]
    last = rollouts[1]
    assert last.prompt == Prompt("p/1", "prompt 1", ("a reference",), {"kind": 1})
    (turn,) = last.turns
    assert (turn.observation, turn.tokens, turn.text) == ((5, 6), (11, 1), "text 1")
    assert (turn.behavior_logprobs, turn.weight_versions) == ((-0.5, -1.0), (0, 0))
    assert (last.baseline, last.reward_parts) == (1.0, {"length": 4.0, "exact_match": 1.0})
    assert [rollout.finish_reason for rollout in rollouts] == [FinishReason.STOP, FinishReason.LENGTH]
    collate(rollouts)


def test_a_reward_that_says_nothing_about_a_row_is_none_of_its_parts(tmp_path: Path) -> None:
    """Otherwise the mean over a batch's parts would add up None."""
    rows = read_annotated(annotated(tmp_path, [3.0, 4.0], silent=[1]))
    assert [rows.reward_parts(row) for row in (0, 1)] == [
        {"length": 3.0, "exact_match": 1.0},
        {"length": 4.0},
    ]
    rollouts = sorted(OfflineSource(rows, WBC(), seed=0).next(2), key=lambda rollout: rollout.total_reward)
    assert [dict(rollout.reward_parts) for rollout in rollouts] == [
        rows.reward_parts(0),
        rows.reward_parts(1),
    ]


def test_rewards_are_weighed_anew_without_being_scored_anew(tmp_path: Path) -> None:
    annotated(tmp_path, [3.0, 4.0])
    other = parts([{"name": "length", "weight": 2.0, "clip": [0.0, 3.5]}])
    rows = read_annotated(tmp_path, other)
    assert rows.rewards_M is not None and rows.rewards_M.tolist() == [6.0, 7.0]
    assert rows.reward_parts(1) == {"length": 4.0}
    with pytest.raises(InputError, match="no column of 'rouge'; there are: exact_match, length"):
        read_annotated(tmp_path, parts("rouge"))


def test_values_of_another_sum_are_refused(tmp_path: Path) -> None:
    annotated(tmp_path, [3.0, 4.0], values=[2.0, 1.0])
    with pytest.raises(InputError, match="its values were learned for the rewards"):
        read_annotated(tmp_path, [LENGTH], needs_values=True)
    assert read_annotated(tmp_path, [LENGTH]).values_M is None


def test_without_a_reference_the_tokens_are_made(tmp_path: Path) -> None:
    annotated(tmp_path, [3.0, 4.0], has_reference=False)
    rows = read_annotated(tmp_path)

    def to_tokens(prompt: str, response: str) -> Tokens:
        return Tokens((7,), () if response == "text 0" else (8, 9), cut=False)

    source = OfflineSource(rows, WBC(), seed=0, to_tokens=to_tokens)
    (rollout,) = source.next(5)
    assert rollout.turns[0].tokens == (8, 9) and rollout.turns[0].behavior_logprobs == (0.0, 0.0)
    assert source.left_out == {"cut to nothing": 1}


# What is left out and refused


def test_rows_of_no_use_are_left_out_and_counted(tmp_path: Path) -> None:
    annotated(tmp_path, [None, 4.0, 5.0, None], tokens=[[9, 1], [9, 1], [], []])
    rows = read_annotated(tmp_path)
    assert rows.column("row") == [1] and rows.left_out == {"not scored": 2, "cut to nothing": 1}


def test_nothing_to_learn_from_is_refused_with_counts(tmp_path: Path) -> None:
    annotated(tmp_path, [None, 4.0], tokens=[[9, 1], []])
    with pytest.raises(InputError, match=r"none of 2 responses .*: 1 not scored, 1 cut to nothing"):
        read_annotated(tmp_path)


def test_no_positive_advantage_is_refused_with_counts(tmp_path: Path) -> None:
    annotated(tmp_path, [3.0, 4.0], values=[9.0, 9.0])
    rows = read_annotated(tmp_path, needs_values=True)
    with pytest.raises(InputError, match=r"0 of 2 advantages .*are above 0, the highest is -4.5"):
        OfflineSource(rows, ALoL(sampling_strategy="good_priority"), seed=0)


def test_what_an_algorithm_needs_is_asked_for(tmp_path: Path) -> None:
    annotated(tmp_path, [3.0, 4.0], has_reference=False)
    with pytest.raises(InputError, match=r"no log-probabilities of a reference, .* with reference=MODEL"):
        read_annotated(tmp_path, needs_reference=True)
    with pytest.raises(InputError, match=r"no values of its prompts, .* with reference=MODEL value=true"):
        read_annotated(tmp_path, needs_values=True)


def test_an_annotation_that_is_not_there_or_not_finished_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no annotation"):
        read_annotated(tmp_path)
    settle_manifest(tmp_path, {"rewards": {}}, overwrite=False)
    with pytest.raises(InputError, match="is not finished"):
        read_annotated(tmp_path)


# Which are drawn, in which order


def test_an_epoch_takes_every_good_response_once(tmp_path: Path) -> None:
    annotated(tmp_path, [1.0, 2.0, 3.0, 4.0, 5.0], good=[True, False, True, True, True])
    source = OfflineSource(read_annotated(tmp_path), WBC(), seed=3)
    batches = [source.next(3) for _ in range(4)]
    assert [len(batch) for batch in batches] == [3, 1, 3, 1]  # a batch ends with its epoch
    first, second = rewards_of(batches[0] + batches[1]), rewards_of(batches[2] + batches[3])
    assert sorted(first) == sorted(second) == [1.5, 3.5, 4.5, 5.5] and first != second
    assert source.num_batches(num_epochs=2, num_examples=3) == 4 and source.epoch == 2
    ids = [rollout.lease_id - OFFLINE for batch in batches for rollout in batch]
    assert ids == list(range(8))


def test_positive_advantages_are_drawn_in_proportion(tmp_path: Path) -> None:
    """Advantages .5, 1.5, -.5, 1: half of the rows' draws are the second's, a sixth the first's."""
    annotated(tmp_path, [1.0, 2.0, 3.0, 4.0], values=[1.0, 1.0, 4.0, 3.5])
    rows = read_annotated(tmp_path, needs_values=True)
    source = OfflineSource(rows, ALoL(sampling_strategy="good_priority"), seed=0)
    assert source.num_kept == 3 and source.share_dropped == 0.25
    drawn = Counter(reward for _ in range(1000) for reward in rewards_of(source.next(3)))
    assert {reward: times / 3000 for reward, times in drawn.items()} == pytest.approx(
        {1.5: 1 / 6, 2.5: 1 / 2, 4.5: 1 / 3}, abs=0.03
    )


@pytest.mark.parametrize("before", [0, 1, 2, 3, 5])
def test_a_resumed_run_gets_exactly_the_rest(tmp_path: Path, before: int) -> None:
    annotated(tmp_path, [1.0, 2.0, 3.0, 4.0, 5.0])
    rows = read_annotated(tmp_path)

    def batches(source: OfflineSource, count: int) -> list[list[Rollout]]:
        return [source.next(2) for _ in range(count)]

    whole = OfflineSource(rows, WBC(), seed=1)
    killed = OfflineSource(rows, WBC(), seed=1)
    expected = batches(whole, 8)
    assert batches(killed, before) == expected[:before]
    resumed = OfflineSource(rows, WBC(), seed=1)
    resumed.restore(killed.state())
    assert batches(resumed, 8 - before) == expected[before:]


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    annotated(tmp_path / "a", [1.0, 2.0])
    annotated(tmp_path / "b", [1.0, 2.0, 3.0])
    source = OfflineSource(read_annotated(tmp_path / "b"), WBC(), seed=1)
    with pytest.raises(InputError, match="got 3 examples, but this run began with 2"):
        source.restore(OfflineSource(read_annotated(tmp_path / "a"), WBC(), seed=1).state())


def test_a_run_does_not_go_on_with_as_many_examples_that_are_others(tmp_path: Path) -> None:
    annotated(tmp_path / "a", [1.0, 2.0], values=[0.0, 0.0])
    rows = read_annotated(tmp_path / "a", needs_values=True)
    state = OfflineSource(rows, WBC(), seed=1).state()
    for name, changed in (
        ("rewards", {"lengths": [1.0, 3.0]}),
        ("texts", {"lengths": [1.0, 2.0], "texts": ["text 0", "other"]}),
        ("tokens", {"lengths": [1.0, 2.0], "tokens": [[10, 1], [12, 1]]}),
        ("values", {"lengths": [1.0, 2.0], "values": [0.0, 0.5]}),
    ):
        other: dict[str, Any] = {"values": [0.0, 0.0], **changed}
        annotated(tmp_path / name, **other)
        source = OfflineSource(read_annotated(tmp_path / name, needs_values=True), WBC(), seed=1)
        with pytest.raises(InputError, match="the 2 examples differ from those"):
            source.restore(state)
        source.restore({key: value for key, value in state.items() if key != "sha256"})  # an older state
    annotated(tmp_path / "again", [1.0, 2.0], values=[0.0, 0.0])
    OfflineSource(read_annotated(tmp_path / "again", needs_values=True), WBC(), seed=1).restore(state)


# Ranked responses


def ranked(rows: AnnotatedRows, **options: Any) -> OfflineSource:
    return OfflineSource(rows, DPO(), seed=0, **options)


def test_responses_of_a_prompt_come_best_first(tmp_path: Path) -> None:
    annotated(tmp_path, [1.0, 2.0, 4.0, 3.0], groups=[0, 0, 1, 1], good=[True, False, True, False])
    rollouts = ranked(read_annotated(tmp_path), num_responses=2).next(2)
    first, second = rollouts[:2], rollouts[2:]
    assert first[0].group == first[1].group != second[0].group == second[1].group
    assert sorted([rewards_of(first), rewards_of(second)]) == [[2.5, 1.5], [4.5, 3.5]]
    assert [rollout.lease_id - OFFLINE for rollout in rollouts] == [0, 1, 2, 3]
    DPO().check(rollouts)


def test_people_may_have_ranked_them(tmp_path: Path) -> None:
    annotated(tmp_path, [1.0, 2.0], groups=[0, 0])
    chosen, rejected = ranked(read_annotated(tmp_path), num_responses=2, rank_by="order").next(1)
    assert (chosen.text, rejected.text) == ("text 0", "text 1")
    unscored = ranked(read_annotated(tmp_path, ()), num_responses=2).next(1)
    assert [rollout.text for rollout in unscored] == ["text 0", "text 1"] and rewards_of(unscored) == [
        1.0,
        0.0,
    ]


def test_each_pair_of_a_prompt_is_an_example_by_the_order(tmp_path: Path) -> None:
    """Pairs stay apart; rows of one response each are ranked together, 5 before 6."""
    rows = [
        {"prompt": "a", "chosen": "1", "rejected": "2"},
        {"prompt": "a", "chosen": "3", "rejected": "4"},
        {"prompt": "b", "response": "5"},
        {"prompt": "b", "response": "6"},
    ]
    file, out = tmp_path / "rows.jsonl", tmp_path / "out"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert annotate([f"data.files={file}", "reward=length", f"output={out}", "executor=here"]) == 0

    def to_tokens(prompt: Prompt, response: str) -> Tokens:
        return Tokens((7,), (int(response),), cut=False)

    source = ranked(read_annotated(out, ()), num_responses=2, rank_by="order", to_tokens=to_tokens)
    texts = [rollout.text for rollout in source.next(3)]
    pairs = {(texts[place], texts[place + 1]) for place in (0, 2, 4)}
    assert pairs == {("1", "2"), ("3", "4"), ("5", "6")} and not source.left_out


def test_pros_temperatures_are_ranks_where_the_order_ranks(tmp_path: Path) -> None:
    """The rewards 1 and 2 rise in people's order; a temperature of 1 - 2 would train the worse one."""
    annotated(tmp_path, [1.0, 2.0], groups=[0, 0])
    source = OfflineSource(read_annotated(tmp_path), PRO(), seed=0, num_responses=2, rank_by="order")
    rollouts = source.next(1)
    assert [rollout.text for rollout in rollouts] == ["text 0", "text 1"] and rewards_of(rollouts) == [
        1.0,
        0.0,
    ]
    PRO().check(rollouts)


def test_long_lists_keep_the_best_the_worst_and_what_is_between(tmp_path: Path) -> None:
    annotated(tmp_path, [2.0, 5.0, 1.0, 4.0, 3.0], groups=[0] * 5)
    assert rewards_of(ranked(read_annotated(tmp_path), num_responses=3).next(1)) == [5.5, 3.5, 1.5]


def test_prompts_that_cannot_be_ranked_are_left_out_and_counted(tmp_path: Path) -> None:
    """One response alone; equal texts; equal rewards; and one pair that can be."""
    annotated(
        tmp_path,
        [1.0, 2.0, 3.0, 2.0, 2.0, 1.0, 2.0],
        groups=[0, 1, 1, 2, 2, 3, 3],
        texts=["a", "b", "b", "c", "d", "e", "f"],
        tokens=[[1], [2], [2], [3], [4], [5], [6]],
    )
    source = ranked(read_annotated(tmp_path), num_responses=2)
    assert source.num_kept == 1 and rewards_of(source.next(1)) == [2.5, 1.5]
    assert source.left_out == {
        "prompts with fewer than 2 responses": 1,
        "prompts with fewer than 2 different responses or rewards": 2,
    }
    with pytest.raises(InputError, match="none of 4 prompts has 3 responses to be ranked: 4 prompts with"):
        ranked(read_annotated(tmp_path), num_responses=3)


def test_pairs_whose_tokens_are_equal_are_left_out_whatever_their_texts(tmp_path: Path) -> None:
    """As DPO would refuse them in the middle of a run."""
    annotated(tmp_path, [1.0, 2.0, 1.0, 2.0], groups=[0, 0, 1, 1], tokens=[[9], [9], [9], [8]])
    source = ranked(read_annotated(tmp_path), num_responses=2, rank_by="order")
    assert source.num_kept == 1
    assert source.left_out == {"prompts with fewer than 2 different responses or rewards": 1}
    DPO().check(source.next(1))


def test_rewards_that_the_learner_sees_as_equal_are_no_ranking(tmp_path: Path) -> None:
    """1 and 1 + 1e-9 are one number in float32; 1 and 1 + 1e-6 are two."""
    annotated(tmp_path, [1.0, 1.0 + 1e-9, 1.0, 1.0 + 1e-6], groups=[0, 0, 1, 1])
    source = OfflineSource(read_annotated(tmp_path), PRO(), seed=0, num_responses=2)
    assert source.num_kept == 1 and sum(source.left_out.values()) == 1
    PRO().check(source.next(1))
