"""A repetition penalty in the learner: what counts as seen, and plain torch's numbers and gradients."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contracts.rollout import Sampling
from learner.algorithms.base import Algorithm
from learner.algorithms.grpo import GRPO
from learner.algorithms.supervised import Supervised
from learner.functional.distribution_kl import distribution_kl
from learner.functional.linear_logprobs import LinearHead, linear_logprobs
from learner.functional.logprobs import Restriction, token_logprobs
from learner.functional.repetition import RepetitionPenalty, RepetitionRule, repetition_penalty
from learner.functional.support import pack_bits
from tests.learner.tiny import make_learner, random_rollouts

H, V, PENALTY = 6, 37, 1.3
UNLIMITED, SMALL = 2**20, 40  # SMALL: tiles of 5 rows and 8 words
TOKENS_SL = torch.tensor([[3, 1, 3, 2, 5], [4, 4, 6, 0, 0]])
MASK_SL = torch.tensor([[False, True, True, False, True], [False, False, True, False, False]])
SEEN = [{3}, {3, 1}, {3, 1, 2}, {4}]  # before each of the model's tokens: an observation counts, too


def seen(penalty: RepetitionPenalty, vocab_size: int = V) -> list[set[int]]:
    rows = torch.arange(len(penalty.columns_N))
    factors_NV = penalty.factors(torch.ones(len(rows), vocab_size))
    return [set(row.nonzero().flatten().tolist()) for row in factors_NV != 1]


def test_what_was_read_or_written_before_a_token_counts() -> None:
    assert seen(repetition_penalty(RepetitionRule(2.0), TOKENS_SL, MASK_SL)) == SEEN
    # BART's prompt is no part of what its decoder has read
    single_SL = torch.tensor([[False, True, True, False, False], [False, False, True, True, False]])
    counted = seen(repetition_penalty(RepetitionRule(2.0, decoder_start=2), TOKENS_SL, single_SL))
    assert counted == [{2}, {2, 1}, {2}, {2, 6}]


def test_factors_by_hand() -> None:
    penalty = repetition_penalty(RepetitionRule(2.0), TOKENS_SL, MASK_SL)
    logits_NV = torch.tensor([[1.0, -1.0, 0.5, -3.0]]).expand(4, -1)
    expected = [
        [1.0, -1.0, 0.5, -6.0],
        [1.0, -2.0, 0.5, -6.0],
        [1.0, -2.0, 0.25, -6.0],
        [1.0, -1.0, 0.5, -3.0],
    ]
    assert (logits_NV * penalty.factors(logits_NV)).tolist() == expected
    later = penalty.rows(1, 3)
    assert (logits_NV[1:3] * later.factors(logits_NV[1:3])).tolist() == expected[1:3]


def case(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows that repeat some words, heads with logits of both signs."""
    torch.manual_seed(3)
    tokens_SL = torch.randint(0, V, (3, 9))
    tokens_SL[:, 5] = tokens_SL[:, 2]  # a word is repeated
    mask_SL = torch.zeros(3, 9, dtype=torch.bool)
    mask_SL[0, 2:], mask_SL[1, 5:8], mask_SL[2, 4:6] = True, True, True
    return tokens_SL, mask_SL, torch.randn(12, H, dtype=dtype), torch.randn(V, H, dtype=dtype)


def plainly(logits_NV: Tensor, tokens_SL: Tensor, mask_SL: Tensor, allowed_NV: Tensor | None) -> Tensor:
    """Log-probabilities (N, V), row by row, in the words of the paper."""
    rows = []
    for row, (sequence, column) in enumerate(mask_SL.nonzero().tolist()):
        z_V = logits_NV[row].clone()
        for word in set(tokens_SL[sequence, :column].tolist()):
            z = logits_NV[row, word]
            z_V[word] = z / PENALTY if z > 0 else z * PENALTY
        z_V = z_V / 0.7
        rows.append(z_V if allowed_NV is None else z_V.masked_fill(~allowed_NV[row], -torch.inf))
    return torch.stack(rows).log_softmax(-1)


@pytest.mark.parametrize("budget", [UNLIMITED, SMALL])
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_numbers_and_gradients_are_plain_torchs(budget: int, cut: bool, fused: bool) -> None:
    dtype = torch.float64 if fused else torch.float32  # all logits at once are float32
    tokens_SL, mask_SL, hidden_NH, weight_VH = case(dtype)
    targets_N = tokens_SL[mask_SL]
    allowed_NV = (torch.rand(12, V) < 0.4).scatter(-1, targets_N[:, None], True) if cut else None
    penalty = repetition_penalty(RepetitionRule(PENALTY), tokens_SL, mask_SL)
    restriction = Restriction(0.7, None if allowed_NV is None else pack_bits(allowed_NV), penalty)
    results = []
    for ours in (True, False):
        leaves = [hidden_NH.clone().requires_grad_(), weight_VH.clone().requires_grad_()]
        options: dict[str, Any] = {"logits_budget": budget, "with_entropy": True, "restriction": restriction}
        if ours and fused:
            logprobs_N, entropies_N = linear_logprobs(leaves[0], targets_N, LinearHead(leaves[1]), **options)
        elif ours:
            logprobs_N, entropies_N = token_logprobs(
                leaves[0],
                targets_N,
                lambda x: x @ leaves[1].T,  # noqa: B023
                vocab_size=V,
                **options,
            )
        else:
            logprobs_NV = plainly(leaves[0] @ leaves[1].T, tokens_SL, mask_SL, allowed_NV)
            logprobs_N = logprobs_NV.gather(-1, targets_N[:, None])[:, 0]
            finite_NV = logprobs_NV.masked_fill(logprobs_NV.isneginf(), 0.0)
            entropies_N = -(finite_NV.exp() * finite_NV * logprobs_NV.isfinite()).sum(-1)
        assert entropies_N is not None
        (torch.linspace(-1, 2, 12).to(dtype) @ logprobs_N + entropies_N.sum() / 3).backward()
        results.append([logprobs_N.detach(), entropies_N.detach(), *(leaf.grad for leaf in leaves)])
    tolerance = 1e-12 if fused else 2e-5
    torch.testing.assert_close(results[0], results[1], atol=tolerance, rtol=tolerance)


def test_a_kl_is_that_of_the_penalised_distributions() -> None:
    tokens_SL, mask_SL, hidden_NH, weight_VH = case(torch.float32)
    restriction = Restriction(0.7, None, repetition_penalty(RepetitionRule(PENALTY), tokens_SL, mask_SL))
    other_NH = hidden_NH.roll(1, 0)
    head = nn.Linear(H, V, bias=False)
    head.weight = nn.Parameter(weight_VH)
    budgets = {"vocab_size": V, "logits_budget": 3 * V, "restriction": restriction}
    found_N = distribution_kl(hidden_NH, head, other_NH, head, **budgets)  # type: ignore[arg-type]
    one_NV, other_NV = (plainly(x @ weight_VH.T, tokens_SL, mask_SL, None) for x in (hidden_NH, other_NH))
    torch.testing.assert_close(found_N, (one_NV.exp() * (one_NV - other_NV)).sum(-1), atol=1e-5, rtol=1e-5)


def test_the_reference_is_penalised_as_the_policy_is(models: dict[str, Path]) -> None:
    """Before the first update both are one model, so the KL is 0 and no token is off."""
    sampling = Sampling(max_tokens=20, repetition_penalty=PENALTY)
    learner = make_learner(models["gpt2"], GRPO(num_epochs=2), sampling=sampling)
    metrics = learner.update(random_rollouts(8))
    assert metrics["kl/mean"] == 0.0


@pytest.mark.parametrize(
    ("algorithm", "penalty"), [(GRPO(), 1.0), (Supervised(), PENALTY)], ids=["none", "imitation"]
)
def test_without_a_penalty_and_in_imitation_there_is_none(
    models: dict[str, Path], algorithm: Algorithm, penalty: float
) -> None:
    sampling = Sampling(max_tokens=20, repetition_penalty=penalty)
    learner = make_learner(models["gpt2"], algorithm, sampling=sampling)
    assert learner.sampling_distribution.repetition is None
