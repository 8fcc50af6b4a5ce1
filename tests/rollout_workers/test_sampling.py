"""Warpers, NLPO's mask and the draw, by hand."""

import random
from collections import Counter
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import WorkerError
from contracts.rollout import MaskRule, Sampling
from contracts.token_sets import mask_set
from rollout_workers.engines.sampling import (
    draw,
    forbid_,
    sample,
    warp,
    with_special_tokens,
)

# Probabilities 0.4, 0.3, 0.2, 0.1.
LOGITS_BV = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()


def probabilities(**options: float) -> list[float]:
    sampling = Sampling(max_tokens=1, **options)  # type: ignore[arg-type]
    return [round(p, 4) for p in warp(LOGITS_BV, sampling)[0].tolist()]


def test_unwarped_is_the_softmax() -> None:
    assert probabilities() == [0.4, 0.3, 0.2, 0.1]


def test_top_k_keeps_the_k_most_likely() -> None:
    assert probabilities(top_k=2) == [0.5714, 0.4286, 0, 0]  # 4/7 and 3/7


def test_top_p_keeps_the_token_that_crosses_p() -> None:
    assert probabilities(top_p=0.5) == [0.5714, 0.4286, 0, 0]  # 0.4 is less than 0.5, 0.7 is more
    assert probabilities(top_p=0.39) == [1, 0, 0, 0]


def test_a_temperature_of_one_half_squares_the_odds() -> None:
    assert probabilities(temperature=0.5) == [0.5333, 0.3, 0.1333, 0.0333]  # 16, 9, 4, 1 of 30


def test_at_temperature_zero_nothing_is_warped() -> None:
    assert probabilities(temperature=0.0, top_k=1, top_p=0.1) == [0.4, 0.3, 0.2, 0.1]


def test_tokens_are_forbidden_in_the_marked_rows_only() -> None:
    logits_BV = forbid_(LOGITS_BV.repeat(2, 1), [True, False], (0, 3))
    sampling = Sampling(max_tokens=1)

    warped = warp(logits_BV, sampling)
    assert [[round(p, 4) for p in row] for row in warped.tolist()] == [[0, 0.6, 0.4, 0], [0.4, 0.3, 0.2, 0.1]]


@given(
    st.lists(st.integers(-32, 32).map(lambda n: n / 4), min_size=2, max_size=12, unique=True),
    st.floats(0.2, 3.0),
    st.integers(0, 12),
    st.floats(0.05, 1.0),
)
def test_what_is_left_sums_to_one_and_keeps_its_order(
    logits: list[float], temperature: float, top_k: int, top_p: float
) -> None:
    sampling = Sampling(max_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p)
    kept_V = warp(torch.tensor([logits]), sampling)[0]

    assert abs(float(kept_V.sum()) - 1) < 1e-4
    assert int(kept_V.argmax()) == logits.index(max(logits))
    assert 1 <= int((kept_V > 0).sum()) <= (top_k or len(logits))


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 8.0])  # nearly all tokens are needed, many, a few
def test_a_nucleus_in_a_large_vocabulary_is_the_sorted_one(sharpness: float) -> None:
    logits_BV = sharpness * torch.randn(3, 2048, generator=torch.Generator().manual_seed(0))
    kept_BV = warp(logits_BV, Sampling(max_tokens=1, top_p=0.9)) > 0

    for kept_V, p_V in zip(kept_BV, logits_BV.double().softmax(-1), strict=True):
        order = p_V.argsort(descending=True)
        needed = 1 + int((p_V[order].cumsum(-1) < 0.9).sum())
        assert abs(int(kept_V.sum()) - needed) <= 1  # float32 sums may cross 0.9 a token apart
        assert bool(kept_V[order[: int(kept_V.sum())]].all())


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (MaskRule(top_p=0.65), [True, True, False, False]),  # 0.4, then 0.7
        (MaskRule(top_p=0.75), [True, True, True, False]),
        (MaskRule(top_k=1), [True, False, False, False]),
        (MaskRule(top_p=0.1, min_tokens_to_keep=3), [True, True, True, False]),
        (MaskRule(top_k=1, min_tokens_to_keep=2), [True, True, False, False]),
        (MaskRule(top_k=9), [True, True, True, True]),
        (MaskRule(top_p=0.1, min_tokens_to_keep=9), [True, True, True, True]),
    ],
    ids=str,
)
def test_the_mask_allows_the_likeliest_tokens(rule: MaskRule, expected: list[bool]) -> None:
    assert mask_set(LOGITS_BV, rule)[0].tolist() == expected


def test_a_draw_is_where_the_probabilities_add_up_to_more_than_the_random_number() -> None:
    rows_BV = torch.tensor([[0.25, 0.25, 0.0, 0.5]]).repeat(6, 1)
    numbers = torch.tensor([0.0, 0.2499, 0.25, 0.4999, 0.5, 1 - 2**-53], dtype=torch.float64)

    assert draw(rows_BV, numbers).tolist() == [0, 0, 1, 1, 3, 3]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40).filter(any), st.floats(0, 1, exclude_max=True))
def test_no_token_without_a_probability_is_drawn(weights: list[int], number: float) -> None:
    rows_BV = torch.tensor([weights], dtype=torch.float32)
    rows_BV /= rows_BV.sum()  # adds up to a little more or less than 1

    token = int(draw(rows_BV, torch.tensor([number], dtype=torch.float64)))
    assert weights[token] > 0


@given(st.integers(1, 900), st.integers(0, 2**20 - 1))
def test_in_a_large_vocabulary_a_draw_is_where_the_sum_passes_it(vocab_size: int, number: int) -> None:
    weights_V = torch.randint(0, 3, (vocab_size,), generator=torch.Generator().manual_seed(vocab_size))
    weights_V[-1] = 2**20 - int(weights_V[:-1].sum())  # sums of these over 2^20 are exact in float32
    expected = int((weights_V.cumsum(-1) <= number).sum())

    numbers = torch.tensor([number / 2**20], dtype=torch.float64)
    assert draw(weights_V[None] / 2**20, numbers).tolist() == [expected]


@pytest.mark.parametrize("top_k", [0, 2])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_refused(bad: float, top_k: int) -> None:
    with pytest.raises(WorkerError, match="weights have diverged"):
        sample(torch.tensor([[0.0, bad, 1.0]]), [Sampling(max_tokens=1, top_k=top_k)], [0.5])


def test_tokens_come_as_often_as_their_probabilities_say() -> None:
    numbers = random.Random(1)
    rows = 2000
    tokens_B, logprobs_B = sample(
        LOGITS_BV.repeat(rows, 1), [Sampling(max_tokens=1)] * rows, [numbers.random() for _ in range(rows)]
    )

    for token, p in enumerate((0.4, 0.3, 0.2, 0.1)):
        standard_deviation = (rows * p * (1 - p)) ** 0.5
        assert abs(Counter(tokens_B.tolist())[token] - rows * p) < 4 * standard_deviation
    assert torch.allclose(logprobs_B, LOGITS_BV[0, tokens_B])


def test_rows_of_different_samplings_are_drawn_as_each_would_be_alone() -> None:
    generator, numbers = torch.Generator().manual_seed(0), random.Random(0)
    kinds = [
        Sampling(max_tokens=1),
        Sampling(max_tokens=9, temperature=0.5, top_k=4),
        Sampling(max_tokens=1, temperature=0.0),
        Sampling(max_tokens=1, top_p=0.5),
    ]
    logits_BV = torch.randn(20, 12, generator=generator)
    samplings = [kinds[row % 4] for row in range(20)]
    uniforms = [numbers.random() for _ in range(20)]

    tokens_B, logprobs_B = sample(logits_BV, samplings, uniforms)
    for row in range(20):
        token, logprob = sample(logits_BV[row : row + 1], [samplings[row]], [uniforms[row]])
        assert int(token) == int(tokens_B[row])
        assert float(logprob) == pytest.approx(float(logprobs_B[row]), abs=1e-6)
    assert all(int(tokens_B[row]) == int(logits_BV[row].argmax()) for row in range(2, 20, 4))


def test_special_tokens_get_through_a_mask_that_keeps_them() -> None:
    class Tokenizer:
        all_special_ids: ClassVar[list[int]] = [3]

    logits_BV = torch.tensor([[2.0, 1.0, 0.0, -9.0]])
    rule = MaskRule(top_k=1, keep_special=True)
    assert mask_set(logits_BV, rule).tolist() == [[True, False, False, False]]
    kept = with_special_tokens(rule, Tokenizer())
    assert mask_set(logits_BV, kept).tolist() == [[True, False, False, True]]
    assert with_special_tokens(MaskRule(top_k=1), Tokenizer()).always == ()
