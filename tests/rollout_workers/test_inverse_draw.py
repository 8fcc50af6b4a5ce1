"""vLLM's draw on a CPU: the transformers engine's, from a request's own random numbers."""

from collections import Counter
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from contracts.errors import WorkerError
from contracts.rollout import Sampling
from rollout_workers.engines.base import Engine, Request
from rollout_workers.engines.inverse_draw import drawn
from rollout_workers.engines.sampling import draw, sample
from tests.rollout_workers.generation import finish, logits_TV

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
ROWS, WORDS = 6, 700  # more than a block of words, and no multiple of one


def logits_of(seed: int) -> Tensor:
    return 3 * torch.randn(ROWS, WORDS, generator=torch.Generator().manual_seed(seed))


def generators(*seeds: int) -> dict[int, torch.Generator]:
    return {row: torch.Generator().manual_seed(seed) for row, seed in enumerate(seeds)}


def uniforms(*seeds: int) -> list[float]:
    return [
        float(torch.rand((), dtype=torch.float64, generator=generator))
        for generator in generators(*seeds).values()
    ]


def is_clear(logits_BV: Tensor, top_k: int, top_p: float) -> bool:
    """Tell whether no sum of the likeliest probabilities is so near top-p that rounding decides."""
    likeliest_BK = logits_BV.double().topk(top_k or WORDS).values.softmax(-1)
    return bool(((likeliest_BK.cumsum(-1) - top_p).abs() > 1e-5).all())


@given(st.integers(0, 2**30), st.sampled_from([0, 1, 5, 50]), st.sampled_from([1.0, 0.9, 0.3]))
def test_it_draws_what_the_transformers_engine_draws_from_the_same_numbers(
    seed: int, top_k: int, top_p: float
) -> None:
    logits_BV, seeds = logits_of(seed), range(seed, seed + ROWS)
    assume(top_p == 1 or is_clear(logits_BV, top_k, top_p))
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


@pytest.mark.vllm
@pytest.mark.parametrize("kind", ["vllm"])
def test_vllms_engine_draws_so(engine: Engine, lm: Any) -> None:
    prompt = (4, 9, 11)
    generations = finish(engine, [Request(seed, prompt, Sampling(max_tokens=6), seed) for seed in range(20)])
    for seed, generation in generations.items():
        generator = torch.Generator().manual_seed(seed)
        probabilities_TV = logits_TV(lm, prompt, generation.tokens).softmax(-1)
        for token, probabilities_V in zip(generation.tokens, probabilities_TV, strict=True):
            uniform_B = torch.rand(1, dtype=torch.float64, generator=generator)
            assert draw(probabilities_V[None], uniform_B).tolist() == [token]
