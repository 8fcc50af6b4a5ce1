"""The reference's value: what heads look at, what they learn, which epoch is kept, what is refused."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contracts.errors import InputError, LearnerError
from learner.models import value_estimator
from learner.models.value_estimator import ValueSettings, make_head, pad, predict, train_value
from learner.models.value_heads import VALUE_HEADS, AttentionValueHead, MeanValueHead, MLPValueHead

WIDTH = 16
HEADS: list[Literal["attention", "mean", "mlp"]] = ["attention", "mean", "mlp"]


def states_of(lengths: list[int], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(length, WIDTH, generator=generator) for length in lengths]


def head_of(name: str, seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    return VALUE_HEADS[name](WIDTH, **options).eval()


# What a value depends on


@pytest.mark.parametrize("name", HEADS)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    filler=st.sampled_from([0.0, 100.0, math.nan, math.inf]),
    left=st.booleans(),
)
def test_a_value_depends_on_the_prompts_own_tokens_alone(
    name: str, lengths: list[int], filler: float, left: bool
) -> None:
    """Neither on what it is batched with, nor on what stands at its padding, nor on which side that is."""
    head, states = head_of(name), states_of(lengths)
    hidden_BLH = torch.full((len(lengths), 12, WIDTH), filler)
    mask_BL = torch.zeros(len(lengths), 12)
    for place, rows in enumerate(states):
        at = slice(12 - len(rows), 12) if left else slice(0, len(rows))
        hidden_BLH[place, at], mask_BL[place, at] = rows, 1
    alone_B = torch.cat([head(rows[None], torch.ones(1, len(rows))) for rows in states])
    torch.testing.assert_close(head(hidden_BLH, mask_BL), alone_B)


@pytest.mark.parametrize("name", HEADS)
def test_padding_gets_no_gradient(name: str) -> None:
    hidden_BLH, mask_BL = pad(states_of([2, 5]))
    hidden_BLH.requires_grad_()
    (got_BLH,) = torch.autograd.grad(head_of(name)(hidden_BLH, mask_BL).sum(), hidden_BLH)
    assert (got_BLH[~mask_BL] == 0).all() and (got_BLH[mask_BL] != 0).any(-1).all()


@pytest.mark.parametrize("name", HEADS)
def test_other_prompts_have_other_values(name: str) -> None:
    assert predict(head_of(name), states_of([3, 7, 1, 5, 2])).std() > 1e-3


def test_padding_of_states_by_hand() -> None:
    one, two = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0]])
    hidden_BLH, mask_BL = pad([one, two])
    assert hidden_BLH.squeeze(-1).tolist() == [[1.0, 2.0], [3.0, 0.0]]
    assert mask_BL.tolist() == [[True, True], [True, False]]


# Heads by hand


def test_the_mean_head_by_hand() -> None:
    # mean (2, 1), weights (1, -1), bias .5: 1.5; σ(1.5) · 4
    hidden_BLH, mask_BL = torch.tensor([[[1.0, 0.0], [3.0, 2.0], [9.0, 9.0]]]), torch.tensor([[1, 1, 0]])
    for max_value, expected in ((None, 1.5), (4.0, 4 / (1 + math.exp(-1.5)))):
        head = MeanValueHead(2, max_value=max_value).eval()
        head.load_state_dict(
            {"output.weight": torch.tensor([[1.0, -1.0]]), "output.bias": torch.tensor([0.5])}
        )
        assert head(hidden_BLH, mask_BL).tolist() == pytest.approx([expected])


def test_the_mlp_head_by_hand() -> None:
    # mean (2, 1), turned to (1, 2) less 1.5: relu (-.5, .5) = (0, .5); · (3, 4) = 2
    head = MLPValueHead(2, max_value=None).eval()
    head.load_state_dict(
        {
            "hidden.weight": torch.tensor([[0.0, 1.0], [1.0, 0.0]]),
            "hidden.bias": torch.tensor([-1.5, -1.5]),
            "output.weight": torch.tensor([[3.0, 4.0]]),
            "output.bias": torch.tensor([0.0]),
        }
    )
    assert head(torch.tensor([[[2.0, 1.0]]]), torch.ones(1, 1)).tolist() == [2.0]


def test_the_attention_head_by_hand() -> None:
    """One head of width 2 without projections: softmax(q · k / √2) over two states, and their sum."""
    head = AttentionValueHead(2, max_value=None, num_heads=1).eval()
    eye = torch.eye(2)
    head.load_state_dict(
        {
            "query_H": torch.tensor([math.sqrt(2), 0.0]),
            "attention.in_proj_weight": torch.cat([eye, eye, eye]),
            "attention.in_proj_bias": torch.zeros(6),
            "attention.out_proj.weight": eye,
            "attention.out_proj.bias": torch.zeros(2),
            "output.weight": torch.tensor([[1.0, 1.0]]),
            "output.bias": torch.tensor([0.0]),
        }
    )
    # scores 1 and 0, so weights e / (e + 1) and 1 / (e + 1); sums of the states: 1 and 3
    hidden_BLH = torch.tensor([[[1.0, 0.0], [0.0, 3.0], [50.0, 50.0]]])
    got_B = head(hidden_BLH, torch.tensor([[1, 1, 0]]))
    assert got_B.tolist() == pytest.approx([(math.e + 3) / (math.e + 1)])


def test_the_attention_head_has_eight_heads_and_four_square_matrices() -> None:
    head = head_of("attention")
    assert head.attention.num_heads == 8
    assert sum(weight.numel() for weight in head.parameters()) == 4 * WIDTH**2 + 6 * WIDTH + 1
    with pytest.raises(InputError, match="width 12 can't be shared by the value's 8 attention heads"):
        AttentionValueHead(12)


@pytest.mark.parametrize("name", HEADS)
def test_values_stay_between_zero_and_the_highest_reward(name: str) -> None:
    hidden_BLH = 1000 * torch.randn(20, 3, WIDTH, generator=torch.Generator().manual_seed(0))
    values_B = head_of(name, max_value=4.0)(hidden_BLH, torch.ones(20, 3))
    assert values_B.min() >= 0 and values_B.max() <= 4 and values_B.max() > 1


@pytest.mark.parametrize("name", HEADS)
def test_heads_compute_in_float32_without_dropout_unless_training(name: str) -> None:
    head = head_of(name, dropout=0.5)
    hidden_BLH, mask_BL = pad([rows.bfloat16() for rows in states_of([4, 6])])
    first_B = head(hidden_BLH, mask_BL)
    assert first_B.dtype == torch.float32 and torch.equal(first_B, head(hidden_BLH, mask_BL))
    head.train()
    assert not torch.equal(head(hidden_BLH, mask_BL), head(hidden_BLH, mask_BL))


# Training


def planted(num: int, seed: int = 0) -> tuple[list[Tensor], Tensor]:
    """Prompts of 1 … 7 tokens whose reward is a function of their mean state, between 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 8, (num,), generator=generator).tolist()
    wanted_H = torch.zeros(WIDTH)
    wanted_H[0] = 3.0
    states = [torch.randn(length, WIDTH, generator=generator) for length in lengths]
    return states, torch.stack([(rows.mean(0) @ wanted_H).sigmoid() for rows in states])


@pytest.mark.parametrize("head", HEADS)
def test_a_planted_function_is_learned(head: Literal["attention", "mean", "mlp"]) -> None:
    """Errors on prompts that were never seen are a small part of those of a constant."""
    settings = ValueSettings(head=head, learning_rate=1e-2, num_epochs=15, dropout=0.0)
    trained = train_value(*planted(400), settings)
    states, rewards_P = planted(100, seed=1)
    error = float((predict(trained.head, states) - rewards_P).square().mean())
    constant = float(rewards_P.var())
    assert error < 0.2 * constant and trained.best.held_out < 0.2 * trained.constant_error
    assert trained.constant_error == pytest.approx(constant, rel=0.5)


def test_the_kept_epoch_is_the_best_on_held_out_prompts() -> None:
    """Rewards are noise, so training goes on to fit what the held-out prompts deny."""
    states, _ = planted(30)
    rewards_P = torch.rand(30, generator=torch.Generator().manual_seed(5))
    settings = ValueSettings(learning_rate=1e-2, num_epochs=12, dropout=0.0, held_out_share=0.3)
    trained = train_value(states, rewards_P, settings)
    errors = [epoch.held_out for epoch in trained.epochs]
    assert [epoch.epoch for epoch in trained.epochs] == list(range(1, 13))
    assert trained.best.held_out == min(errors) < errors[-1]
    assert min(trained.epochs, key=lambda epoch: epoch.train).epoch == 12 > trained.best.epoch
    held_out = list(trained.held_out)
    values_P = predict(trained.head, [states[place] for place in held_out])
    assert float((values_P - rewards_P[held_out]).square().mean()) == pytest.approx(trained.best.held_out)
    assert len(held_out) == 9 and not trained.head.training
    others = [place for place in range(30) if place not in held_out]
    constant = (rewards_P[held_out] - rewards_P[others].mean()).square().mean()
    assert trained.constant_error == pytest.approx(float(constant))


def test_with_no_prompt_held_out_the_training_error_chooses_as_published() -> None:
    states, rewards_P = planted(24)
    settings = ValueSettings(learning_rate=1e-2, num_epochs=6, held_out_share=0.0, shuffle=False)
    trained = train_value(states, rewards_P, settings)
    assert trained.held_out == () and {epoch.held_out for epoch in trained.epochs} == {None}
    assert trained.best.train == trained.best.decisive == min(epoch.train for epoch in trained.epochs)
    assert trained.constant_error == pytest.approx(float(rewards_P.var(correction=0)))


def test_prompts_are_shuffled_for_each_epoch_or_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    states, rewards_P = planted(8)
    seen: list[list[float]] = []
    pad = value_estimator.pad

    def recorded(some: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        seen.append([float(rows.sum()) for rows in some])
        return pad(some)

    monkeypatch.setattr(value_estimator, "pad", recorded)
    own_order = [float(rows.sum()) for rows in states]
    for shuffle in (False, True):
        seen.clear()
        settings = ValueSettings(num_epochs=2, batch_size=8, held_out_share=0.0, shuffle=shuffle)
        train_value(states, rewards_P, settings)
        assert len(seen) == 2 and all(sorted(order) == sorted(own_order) for order in seen)
        assert ([order == own_order for order in seen] == [True, True]) is not shuffle


@pytest.mark.parametrize("head", HEADS)
def test_the_same_seed_gives_the_same_head(head: Literal["attention", "mean", "mlp"]) -> None:
    """Whatever was drawn elsewhere before, and nothing that is drawn elsewhere afterwards changes."""
    data = planted(20)

    def once(seed: int, before: int) -> tuple[dict[str, Tensor], Tensor, tuple[int, ...]]:
        torch.manual_seed(before)
        trained = train_value(*data, ValueSettings(head=head, seed=seed, num_epochs=2))
        return trained.head.state_dict(), torch.rand(1), trained.held_out

    torch.manual_seed(1)
    undisturbed = torch.rand(1)
    first, second, other = once(0, 1), once(0, 2), once(3, 1)
    assert all(torch.equal(weight, second[0][name]) for name, weight in first[0].items())
    assert first[1] == undisturbed and first[2] == second[2] != other[2]
    assert not torch.equal(first[0]["output.weight"], other[0]["output.weight"])


def test_hidden_states_are_left_alone() -> None:
    states, rewards_P = planted(10)
    before = [rows.clone() for rows in states]
    train_value(states, rewards_P, ValueSettings(num_epochs=1))
    assert all(torch.equal(rows, same) for rows, same in zip(states, before, strict=True))


def test_any_number_can_be_learned_where_there_is_no_highest_reward() -> None:
    states, rewards_P = planted(200)
    settings = ValueSettings(head="mean", max_value=None, learning_rate=0.05, num_epochs=20, dropout=0.0)
    trained = train_value(states, 10 * rewards_P - 8, settings)
    assert trained.best.held_out < 0.3 * trained.constant_error
    values_P = predict(trained.head, states)
    assert values_P.min() < -4 and values_P.max() > -1


def test_batches_change_no_prediction() -> None:
    states, head = states_of([3, 7, 1, 5, 2]), head_of("attention")
    head.train()
    torch.testing.assert_close(predict(head, states, 2), predict(head, states, 5))
    assert head.training


# What is refused


@pytest.mark.parametrize(
    ("rewards", "options", "message"),
    [
        ([0.1, math.nan, math.inf, 0.2], {}, "2 of 4 rewards are NaN or infinite"),
        ([0.1, 3.5, -1.0, 0.2], {}, r"2 of 4 rewards are outside of 0 … max_value=1: they go from -1 to 3.5"),
        ([0.1, 3.5, 4.5, 0.2], {"max_value": 4.0}, "1 of 4 rewards are outside of 0 … max_value=4"),
        ([0.1, 0.2], {}, "got 4 prompts and 2 rewards"),
    ],
)
def test_rewards_that_teach_nothing_are_refused(
    rewards: list[float], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(LearnerError, match=message):
        train_value(states_of([1, 2, 3, 4]), torch.tensor(rewards), ValueSettings(**options))


def test_prompts_that_teach_nothing_are_refused() -> None:
    with pytest.raises(LearnerError, match="got 1 prompts with rewards"):
        train_value(states_of([3]), torch.tensor([0.5]), ValueSettings())
    with pytest.raises(LearnerError, match="2 of 4 prompts have no tokens, the first is 1"):
        train_value(states_of([3, 0, 2, 0]), torch.full((4,), 0.5), ValueSettings())


def test_an_error_that_is_no_number_is_told() -> None:
    states = [*states_of([3, 2, 4]), torch.full((2, WIDTH), math.nan)]
    with pytest.raises(LearnerError, match=r"epoch 1: the value's error is .*nan"):
        train_value(states, torch.full((4,), 0.5), ValueSettings())


def test_two_prompts_are_enough() -> None:
    trained = train_value(states_of([3, 2]), torch.tensor([0.2, 0.8]), ValueSettings(num_epochs=1))
    assert len(trained.held_out) == 1 and trained.constant_error == pytest.approx(0.36)


def test_the_heads_settings_reach_it() -> None:
    head = make_head(WIDTH, ValueSettings(head="mlp", max_value=5.0, dropout=0.25))
    assert (type(head), head.max_value, head.dropout.p) == (MLPValueHead, 5.0, 0.25)
