"""The possible tokens of a sample: by hand, in the rollout engines, and in transformers' warpers."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as warpers

from contracts.rollout import MaskRule, Sampling
from contracts.token_sets import mask_set, top_k_set, top_p_set
from learner.functional.support import (
    SamplingDistribution,
    allowed_tokens,
    pack_bits,
    unpack_bits,
)
from rollout_workers.engines.sampling import forbid_, warp

# Probabilities 0.4, 0.3, 0.2, 0.1; the second row the other way round.
LOGITS_NV = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]]).log()

V = 12
logit_rows = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=V, max_size=V, unique=True)
rows_with_ties = st.lists(st.integers(-3, 3).map(float), min_size=V, max_size=V)
masks = st.one_of(
    st.none(),
    st.builds(MaskRule, top_p=st.floats(0.05, 1.0), min_tokens_to_keep=st.integers(1, 4)),
    st.builds(MaskRule, top_k=st.integers(1, V + 2), min_tokens_to_keep=st.integers(1, 4)),
)
samplings = st.builds(
    Sampling,
    max_tokens=st.just(9),
    min_tokens=st.integers(0, 4),
    temperature=st.floats(0.3, 3.0),
    top_k=st.integers(0, V + 2),
    top_p=st.floats(0.05, 1.0),
)


def support(logits_NV: Tensor, positions: list[int], **options: object) -> list[list[bool]]:
    sampling = Sampling(max_tokens=9, **options)  # type: ignore[arg-type]
    distribution = SamplingDistribution(sampling, end_tokens=(0, 3))
    return allowed_tokens(logits_NV, torch.tensor(positions), distribution, None)[0].tolist()


def test_by_hand() -> None:
    first, second = [True, True, False, False], [False, False, True, True]
    assert support(LOGITS_NV, [0, 0], top_k=2) == [first, second]
    assert support(LOGITS_NV, [0, 0], top_p=0.5) == [first, second]  # 0.4 is less than 0.5, 0.7 is more
    # temperature ½ squares the odds: 16, 9, 4, 1 of 30; 16/30 reaches 0.5
    assert support(LOGITS_NV, [0, 0], top_p=0.5, temperature=0.5) == [
        [True, False, False, False],
        [False, False, False, True],
    ]
    # tokens 0 and 3 end a text: out before the third token, and top-k counts what is left
    assert support(LOGITS_NV, [1, 2], min_tokens=2, top_k=1) == [
        [False, True, False, False],
        [False, False, False, True],
    ]
    assert support(LOGITS_NV, [0, 0]) == [[True] * 4] * 2


def test_top_k_comes_before_top_p() -> None:
    # of 0.4 and 0.3 the first alone holds 4/7 = 0.57; of all four it holds 0.4
    assert support(LOGITS_NV[:1], [0], top_k=2, top_p=0.55) == [[True, False, False, False]]
    assert support(LOGITS_NV[:1], [0], top_p=0.55) == [[True, True, False, False]]


def test_the_mask_comes_before_the_warpers_and_after_the_minimum_length() -> None:
    rule = MaskRule(top_k=2)
    distribution = SamplingDistribution(Sampling(max_tokens=9, min_tokens=1, top_k=1), (0,), rule)
    # the mask model likes tokens 3 and 2, the policy 0 and 1: of what the mask leaves, 2 is the likeliest
    allowed_NV, by_mask = allowed_tokens(LOGITS_NV[:1], torch.tensor([0]), distribution, LOGITS_NV[1:])
    assert allowed_NV.tolist() == [[False, False, True, False]]
    assert by_mask is not None
    # what the minimum length keeps out is not the mask's doing
    assert by_mask.tolist() == [[True, False, True, True]]


@pytest.mark.parametrize(
    "distribution",
    [
        SamplingDistribution(Sampling(max_tokens=9, top_k=3)),
        SamplingDistribution(Sampling(max_tokens=9, top_p=0.9)),
        SamplingDistribution(Sampling(max_tokens=9, min_tokens=1)),
        SamplingDistribution(Sampling(max_tokens=9), mask=MaskRule(top_p=1.0)),
    ],
)
def test_what_can_keep_a_token_out_restricts(distribution: SamplingDistribution) -> None:
    assert distribution.restricts


def test_a_temperature_keeps_no_token_out() -> None:
    assert not SamplingDistribution(Sampling(max_tokens=9, temperature=0.5), end_tokens=(1,)).restricts


def as_an_engine_draws(
    logits_NV: Tensor, positions: list[int], distribution: SamplingDistribution, mask_logits_NV: Tensor
) -> Tensor:
    """The engines' own functions in their own order (`sampled_batch.py`)."""
    early = [position < distribution.sampling.min_tokens for position in positions]
    logits_NV = forbid_(logits_NV.clone(), early, distribution.end_tokens)
    if distribution.mask is not None:
        mask_NV = forbid_(mask_logits_NV.clone(), early, distribution.end_tokens)
        logits_NV = logits_NV.masked_fill(~mask_set(mask_NV, distribution.mask), -torch.inf)
    return warp(logits_NV, distribution.sampling) > 0


@given(
    st.lists(st.tuples(logit_rows, logit_rows, st.integers(0, 5)), min_size=1, max_size=5), samplings, masks
)
def test_the_engines_draw_from_the_same_set(
    rows: list[tuple[list[float], list[float], int]], sampling: Sampling, mask: MaskRule | None
) -> None:
    logits_NV, mask_NV = torch.tensor([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
    positions = [row[2] for row in rows]
    distribution = SamplingDistribution(sampling, (1, 4), mask)
    allowed_NV, _ = allowed_tokens(logits_NV, torch.tensor(positions), distribution, mask_NV)
    assert torch.equal(allowed_NV, as_an_engine_draws(logits_NV, positions, distribution, mask_NV))
    assert bool(allowed_NV.any(-1).all())


@given(logit_rows, samplings)
def test_transformers_warpers_leave_the_same_set(row: list[float], sampling: Sampling) -> None:
    scores = torch.tensor([row])
    ids = torch.zeros(1, 2, dtype=torch.long)  # two tokens written so far
    length = warpers.MinNewTokensLengthLogitsProcessor(0, sampling.min_tokens, eos_token_id=[1, 4])
    scores = warpers.TemperatureLogitsWarper(sampling.temperature)(ids, length(ids, scores))
    if sampling.top_k:
        scores = warpers.TopKLogitsWarper(sampling.top_k)(ids, scores)
    sums = scores.softmax(-1).sort(descending=True).values.cumsum(-1)
    assume(float((sums - sampling.top_p).abs().min()) > 1e-5)  # they add up from the other end
    if sampling.top_p < 1:
        scores = warpers.TopPLogitsWarper(sampling.top_p)(ids, scores)
    allowed_NV, _ = allowed_tokens(
        torch.tensor([row]), torch.tensor([2]), SamplingDistribution(sampling, (1, 4)), None
    )
    assert torch.equal(allowed_NV, scores.isfinite())


@given(rows_with_ties, st.integers(1, V), st.floats(0.05, 0.999))
def test_of_equal_tokens_all_are_in_or_none(row: list[float], k: int, p: float) -> None:
    scores = torch.tensor([row])
    ids = torch.zeros(1, 1, dtype=torch.long)
    assert torch.equal(top_k_set(scores, k), warpers.TopKLogitsWarper(k)(ids, scores).isfinite())
    sampling = Sampling(max_tokens=1, top_p=p)
    nucleus, drawn = top_p_set(scores.softmax(-1), p), warp(scores, sampling) > 0
    assert torch.equal(nucleus, drawn)
    assert all(bool(nucleus[scores == score].all()) for score in scores[nucleus])


@pytest.mark.parametrize("sharpness", [0.01, 1.0, 4.0])  # all tokens needed, many, a few
def test_in_a_large_vocabulary_the_set_is_that_of_sorting_it(sharpness: float) -> None:
    logits_NV = sharpness * torch.randn(7, 5000, generator=torch.Generator().manual_seed(1))
    logits_NV[3] *= 9  # a row that needs few among rows that need many
    for p in (0.3, 0.9, 0.999):
        sorted_NV, order_NV = logits_NV.softmax(-1).sort(descending=True, stable=True)
        inside_NV = sorted_NV.cumsum(-1) - sorted_NV < p
        expected = torch.zeros_like(inside_NV).scatter(-1, order_NV, inside_NV)
        assert torch.equal(top_p_set(logits_NV.softmax(-1), p), expected)


@given(logit_rows, masks.filter(bool))
def test_the_mask_is_its_rule(row: list[float], rule: MaskRule) -> None:
    logits_NV = torch.tensor([row])
    chosen = mask_set(logits_NV, rule)[0]
    p_V = logits_NV.softmax(-1)[0].double()
    num = int(chosen.sum())
    likeliest = p_V.argsort(descending=True)
    assert bool(chosen[likeliest[:num]].all())  # the likeliest, without a gap
    assert num >= min(V, rule.min_tokens_to_keep)
    if rule.top_k is not None:
        assert num == min(V, max(rule.top_k, rule.min_tokens_to_keep))
    elif rule.top_p is not None and num > rule.min_tokens_to_keep:
        assert float(p_V[likeliest[: num - 1]].sum()) < rule.top_p + 1e-6  # one fewer would not reach p
    if rule.top_p is not None:
        assert float(p_V[chosen].sum()) > rule.top_p - 1e-6


@pytest.mark.parametrize("vocab_size", [5, 50_000])
def test_a_mask_of_probability_one_allows_every_token(vocab_size: int) -> None:
    """Whatever rounding does to the sum of so many."""
    logits_NV = torch.randn(2, vocab_size, generator=torch.Generator().manual_seed(0)) * 3
    assert bool(mask_set(logits_NV, MaskRule(top_p=1.0)).all())


@pytest.mark.parametrize("rule", [MaskRule(top_p=0.5), MaskRule(top_k=1), MaskRule(top_p=0.1, top_k=None)])
@pytest.mark.parametrize("sampling", [{}, {"top_k": 1}, {"top_p": 0.1}])
def test_a_mask_that_wants_only_the_end_still_leaves_a_token_before_the_minimum_length(
    rule: MaskRule, sampling: dict[str, float]
) -> None:
    """All of the mask model's probability is on end tokens, which may not come yet."""
    mask_NV = torch.full((1, 6), -20.0)
    mask_NV[0, [1, 4]] = 20.0
    distribution = SamplingDistribution(Sampling(max_tokens=9, min_tokens=3, **sampling), (1, 4), rule)  # type: ignore[arg-type]
    for position, at_end in ((0, False), (2, False), (3, True)):
        allowed_NV, _ = allowed_tokens(torch.zeros(1, 6), torch.tensor([position]), distribution, mask_NV)
        assert bool(allowed_NV.any())
        assert bool(allowed_NV[0, [1, 4]].any()) == at_end


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_bits_come_back_as_they_were(vocab_size: int, rows: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    allowed_NV = torch.rand(rows, vocab_size, generator=generator) < 0.5
    bits_NW = pack_bits(allowed_NV)
    assert (bits_NW.dtype, tuple(bits_NW.shape)) == (torch.uint8, (rows, -(-vocab_size // 8)))
    assert torch.equal(unpack_bits(bits_NW, vocab_size), allowed_NV)


def test_of_no_rows_there_are_no_bits() -> None:
    assert unpack_bits(pack_bits(torch.zeros(0, 9, dtype=torch.bool)), 9).shape == (0, 9)


def test_bits_by_hand() -> None:
    # token 8 is the first bit of the second byte; token 7 the last of the first
    bits_NW = pack_bits(torch.tensor([[token in (0, 7, 8) for token in range(10)]]))
    assert bits_NW.tolist() == [[0b1000_0001, 0b1]]
