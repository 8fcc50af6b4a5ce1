"""Warpers and the draw, by hand."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.rollout import Sampling
from rollout_workers.engines.sampling import draw, warp

# Probabilities 0.4, 0.3, 0.2, 0.1.
LOGITS_V = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()


def probabilities(forbidden: tuple[int, ...] = (), **options: float) -> list[float]:
    sampling = Sampling(max_tokens=1, **options)  # type: ignore[arg-type]
    return [round(p, 4) for p in warp(LOGITS_V, sampling, forbidden).exp().tolist()]


def test_unwarped_is_the_softmax() -> None:
    assert probabilities() == [0.4, 0.3, 0.2, 0.1]


def test_top_k_keeps_the_k_most_likely() -> None:
    assert probabilities(top_k=2) == [0.5714, 0.4286, 0, 0]  # 4/7 and 3/7


def test_top_p_keeps_the_token_that_crosses_p() -> None:
    assert probabilities(top_p=0.5) == [0.5714, 0.4286, 0, 0]  # 0.4 is less than 0.5, 0.7 is more
    assert probabilities(top_p=0.39) == [1, 0, 0, 0]


def test_a_temperature_of_one_half_squares_the_odds() -> None:
    assert probabilities(temperature=0.5) == [0.5333, 0.3, 0.1333, 0.0333]  # 16, 9, 4, 1 of 30


def test_forbidden_tokens_leave_before_the_others_are_counted() -> None:
    assert probabilities(forbidden=(0,), top_k=2) == [0, 0.6, 0.4, 0]
    assert LOGITS_V.exp()[0] > 0.39  # the caller's logits are as they were


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
    kept_V = warp(torch.tensor(logits), sampling, ()).exp()

    assert abs(float(kept_V.sum()) - 1) < 1e-4
    assert int(kept_V.argmax()) == logits.index(max(logits))
    assert 1 <= int((kept_V > 0).sum()) <= (top_k or len(logits))


def test_a_draw_follows_its_generator_and_its_probabilities() -> None:
    logprobs_V, sampling = LOGITS_V.log_softmax(-1), Sampling(max_tokens=1)

    def draws(seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return [draw(logprobs_V, sampling, generator) for _ in range(2000)]

    first = draws(1)
    assert first == draws(1) != draws(2)
    # 2000 draws of p = 0.4: 800, with a standard deviation of 22
    assert abs(first.count(0) - 800) < 4 * 22
