"""vLLM's draw on a CPU: the transformers engine's, from a request's own random numbers."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contracts.errors import WorkerError
from contracts.rollout import Sampling
from rollout_workers.engines.inverse_draw import drawn
from rollout_workers.engines.sampling import sample

pytest.importorskip("vllm")
ROWS, WORDS = 6, 700  # more than a block of words, and no multiple of one


def logits_of(seed: int) -> Tensor:
    return 3 * torch.randn(ROWS, WORDS, generator=torch.Generator().manual_seed(seed))


def generators(*seeds: int) -> dict[int, torch.Generator]:
    return {row: torch.Generator().manual_seed(seed) for row, seed in enumerate(seeds)}


def uniforms(*seeds: int) -> list[float]:
    return [
        float(torch.rand((), dtype=torch.float64, generator=each)) for each in generators(*seeds).values()
    ]


@given(st.integers(0, 2**30), st.sampled_from([0, 1, 5, 50]), st.sampled_from([1.0, 0.9, 0.3]))
def test_it_draws_what_the_transformers_engine_draws_from_the_same_numbers(
    seed: int, top_k: int, top_p: float
) -> None:
    logits_BV, seeds = logits_of(seed), range(seed, seed + ROWS)
    k = torch.full((ROWS,), top_k) if top_k else None
    p = torch.full((ROWS,), top_p) if top_p < 1 else None
    sampling = Sampling(max_tokens=1, top_k=top_k, top_p=top_p)

    expected_B, expected_logprobs_B = sample(logits_BV.clone(), [sampling] * ROWS, uniforms(*seeds))
    tokens_B, logprobs_BV = drawn(logits_BV, generators(*seeds), k, p)

    assert tokens_B.tolist() == expected_B.tolist()
    logprobs_B = logprobs_BV.gather(-1, tokens_B[:, None]).squeeze(-1)
    torch.testing.assert_close(logprobs_B, expected_logprobs_B, atol=1e-5, rtol=0)


def test_a_row_draws_the_same_in_any_batch() -> None:
    logits_BV, seeds = logits_of(0), range(ROWS)
    together, _ = drawn(logits_BV.clone(), generators(*seeds), None, None)
    alone = [
        int(drawn(logits_BV[row : row + 1].clone(), generators(row), None, None)[0]) for row in range(ROWS)
    ]
    assert together.tolist() == alone


def test_tokens_come_as_often_as_their_probabilities_say() -> None:
    logits_BV = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().repeat(4000, 1)
    torch.manual_seed(0)
    seeded = generators(*range(2000))  # the other half has no seeds
    counts = Counter(drawn(logits_BV, seeded, None, None)[0].tolist())
    for token, share in enumerate((0.4, 0.3, 0.2, 0.1)):
        assert abs(counts[token] - 4000 * share) < 4 * (4000 * share * (1 - share)) ** 0.5


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(WorkerError, match="weights have diverged"):
        drawn(torch.tensor([[0.0, bad, 1.0]]), {}, None, None)
