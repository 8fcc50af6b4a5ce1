"""Supervised fine-tuning and rejection sampling: the likelihood's loss, and which rollouts it is taken of."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import LearnerError
from contracts.rollout import Rollout
from learner.algorithms.rejection import RejectionSampling
from learner.algorithms.supervised import Supervised
from tests.learner.inputs import loss_inputs
from tests.learner.tiny import make_learner, plain_logprobs, rollout, without_times


def rewarded(*rewards: float, first: int = 0) -> list[Rollout]:
    return [rollout(first + i, (3,), (4, 5), reward) for i, reward in enumerate(rewards)]


def leases(rollouts: Sequence[Rollout]) -> list[int]:
    return [one.lease_id for one in rollouts]


# The loss


@pytest.mark.parametrize("algorithm", [Supervised(entropy_coef=0.1), RejectionSampling(entropy_coef=0.1)])
def test_the_loss_by_hand(algorithm: Supervised | RejectionSampling) -> None:
    # -(-1 - 2 - 6) / 3 = 3 a token, whatever its response; entropy mean 2, times .1; KL mean .4, times .5
    inputs = loss_inputs(
        [0, 0, 1],
        logprobs_N=[-1.0, -2.0, -6.0],
        advantages_N=[9.0, -9.0, 9.0],  # plays no part
        entropies_N=[1.0, 2.0, 3.0],
        kl_N=[0.2, 0.4, 0.6],
        kl_coefficient=0.5,
    )
    output = algorithm.loss(inputs)
    assert float(output.metrics["loss/policy"]) == pytest.approx(3)
    assert float(output.metrics["loss/kl"]) == pytest.approx(0.4)
    assert float(output.loss) == pytest.approx(3 - 0.2 + 0.2)


def test_the_gradient_is_that_of_transformers_own_loss(models: dict[str, Path]) -> None:
    """Compare with a label of -100 for ignored tokens, here the prompt."""
    learner = make_learner(models["llama"], Supervised(num_epochs=1, max_grad_norm=None))
    one = rollout(0, (3, 4, 5), (6, 7, 2))
    labels = torch.tensor([[-100, -100, -100, 6, 7, 2]])
    theirs = learner.pair.lm(input_ids=torch.tensor([one.tokens]), labels=labels).loss
    theirs.backward()
    norm = float(torch.cat([p.grad.flatten() for p in learner.pair.lm.parameters()]).norm())
    metrics = learner.update([one])
    assert metrics["loss/policy"] == pytest.approx(theirs.item(), abs=1e-5)
    assert metrics["gradient_norm/policy"] == pytest.approx(norm, rel=1e-4)


# Whole rollouts


def test_the_top_share_by_hand() -> None:
    rollouts = rewarded(0.1, 0.9, 0.5, 0.7)
    kept, elite = RejectionSampling(top_share=0.5).select(rollouts, [])
    assert (leases(kept), elite) == ([1, 3], [])


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_share": 0.01}, [1]),  # never none
        ({"top_share": 1.0}, [1, 3, 2, 0]),
        ({"top_share": None, "top_n": 3}, [1, 3, 2]),
        ({"top_share": None, "top_n": 9}, [1, 3, 2, 0]),
    ],
)
def test_how_many_are_kept(options: dict[str, float | None], kept: list[int]) -> None:
    chosen, _ = RejectionSampling(**options).select(rewarded(0.1, 0.9, 0.5, 0.7), [])  # type: ignore[arg-type]
    assert leases(chosen) == kept


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=20), st.integers(1, 25))
def test_nothing_that_is_left_out_is_better_than_what_is_kept(rewards: list[float], count: int) -> None:
    kept, _ = RejectionSampling(top_share=None, top_n=count).select(rewarded(*rewards), [])
    left = set(range(len(rewards))) - set(leases(kept))
    assert len(kept) == min(count, len(rewards))
    assert max([rewards[i] for i in left], default=-10) <= min(one.total_reward for one in kept)


def test_a_reward_that_is_no_number_is_refused() -> None:
    with pytest.raises(
        LearnerError, match=r"lease 1 \(prompt p1\) has the reward nan, which can't be ranked"
    ):
        RejectionSampling().select(rewarded(0.0, float("nan"), 1.0), [])


# Turns


def game(*turns: tuple[float | None, int]) -> Rollout:
    """Turn i shows (10 + i), is answered by so many tokens (20 + i), and earns so much."""
    made = [
        replace(rollout(7, (10 + i,), (20 + i,) * num_tokens).turns[0], reward=reward)
        for i, (reward, num_tokens) in enumerate(turns)
    ]
    return replace(rollout(7, (1,), (1,)), turns=tuple(made))


def test_turns_are_ranked_by_what_came_after_them() -> None:
    # γ = ½: returns-to-go 1 + ½ · (0 + ½ · 8) = 3, 4 and 8
    rejection = RejectionSampling(unit="turn", top_share=1.0, gamma=0.5)
    kept, _ = rejection.select([game((1.0, 2), (None, 1), (8.0, 1))], [])
    assert [one.total_reward for one in kept] == [8.0, 4.0, 3.0]
    assert [one.turns[0].tokens for one in kept] == [(22,), (21,), (20, 20)]
    # what came before is the prompt, and does not train
    assert kept[0].tokens == (10, 20, 20, 11, 21, 12, 22)
    assert kept[0].loss_mask == (0, 0, 0, 0, 0, 0, 1)
    assert kept[2].tokens == (10, 20, 20) and kept[2].loss_mask == (0, 1, 1)


def test_a_turn_without_an_answer_is_none_to_imitate() -> None:
    kept, _ = RejectionSampling(unit="turn", top_share=1.0).select([game((0.0, 1), (5.0, 0))], [])
    assert [one.turns[0].tokens for one in kept] == [(20,)]
    assert kept[0].total_reward == 5.0


def test_a_pairs_likelihood_is_the_same_as_in_its_rollout(models: dict[str, Path]) -> None:
    lm = make_learner(models["gpt2"], RejectionSampling()).pair.lm
    whole = game((1.0, 2), (0.0, 3))
    pairs, _ = RejectionSampling(unit="turn", top_share=1.0).select([whole], [])
    with torch.no_grad():
        expected_N = plain_logprobs(lm, whole)
        got_N = torch.cat([plain_logprobs(lm, pair) for pair in pairs])
    torch.testing.assert_close(got_N, expected_N)


# The elite


def test_the_elite_lasts_and_is_only_replaced_by_better_ones() -> None:
    rejection = RejectionSampling(top_share=1.0, elite_size=3)
    kept, elite = rejection.select(rewarded(0.1, 0.9), [])
    assert leases(kept) == leases(elite) == [1, 0]  # not yet full
    kept, elite = rejection.select(rewarded(0.5, 0.2, first=10), elite)
    assert leases(kept) == leases(elite) == [1, 10, 11]
    kept, elite = rejection.select(rewarded(0.0, 0.0, first=20), elite)
    assert leases(elite) == [1, 10, 11]


def test_of_equally_good_ones_the_newer_last() -> None:
    """Rewards of 0 and 1 would otherwise train on the first successes for ever."""
    rejection = RejectionSampling(top_share=1.0, elite_size=2)
    _, elite = rejection.select(rewarded(1.0, 1.0), [])
    _, elite = rejection.select(rewarded(1.0, 0.0, first=10), elite)
    assert leases(elite) == [10, 0]


def test_a_learner_trains_on_its_elite_again_and_saves_it(models: dict[str, Path], tmp_path: Path) -> None:
    rejection = RejectionSampling(top_share=0.5, elite_size=4, learning_rate=1e-2)
    learner = make_learner(models["gpt2"], rejection)
    best = [rollout(i, (3, 4), (7, 8), 1.0) for i in range(4)]
    learner.update([*best, *(rollout(10 + i, (3, 4), (9, 6), 0.0) for i in range(4))])
    assert learner.elite == best
    learner.save(str(tmp_path))
    other = make_learner(models["gpt2"], rejection)
    other.load(str(tmp_path))
    assert other.elite == best
    worse = [rollout(20 + i, (3, 4), (5,), 0.5) for i in range(4)]
    assert without_times(other.update(worse)) == without_times(learner.update(worse))
    assert leases(other.elite) == leases(best)
    # eight tokens an iteration: the elite's, not the four of the worse ones
    assert without_times(learner.update(worse))["tokens/trained"] == 8
