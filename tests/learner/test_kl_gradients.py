"""The direction of each KL term: expectations over every action of a small softmax, summed and not sampled,
against autograd of the KL itself.
"""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from learner.functional.distribution_kl import categorical_kl, distribution_kl
from learner.functional.kl import exact_gradient_k3, exact_gradient_kl, forward_kl, k1, k2, k3
from learner.functional.logprobs import Restriction
from learner.functional.support import pack_bits

NUM_ACTIONS = 6

logits = st.lists(st.floats(-3, 3), min_size=NUM_ACTIONS, max_size=NUM_ACTIONS).map(
    lambda drawn: torch.tensor(drawn, dtype=torch.float64)
)


def gradient(value: Tensor, logits_A: Tensor) -> Tensor:
    return torch.autograd.grad(value, logits_A, retain_graph=True)[0]


def reverse(logits_A: Tensor, ref_A: Tensor) -> Tensor:
    """KL(π‖π_ref) by its definition."""
    return (logits_A.softmax(-1) * (logits_A.log_softmax(-1) - ref_A)).sum()


def forward(logits_A: Tensor, ref_A: Tensor) -> Tensor:
    """KL(π_ref‖π) by its definition."""
    return (ref_A.exp() * (ref_A - logits_A.log_softmax(-1))).sum()


# In the loss: a ~ π_old, the estimate is differentiated


@pytest.mark.parametrize("exact", [exact_gradient_kl, exact_gradient_k3])
@given(now=logits, old=logits, ref=logits)
def test_with_the_ratio_in_the_graph_k1_and_k3_are_the_kl_and_have_its_gradient(
    exact: Callable[[Tensor, Tensor, Tensor], Tensor], now: Tensor, old: Tensor, ref: Tensor
) -> None:
    """However far π has gone from π_old."""
    now.requires_grad_()
    old_A, ref_A = old.log_softmax(-1), ref.log_softmax(-1)
    expectation = (old_A.exp() * exact(now.log_softmax(-1), old_A, ref_A)).sum()
    kl = reverse(now, ref_A)
    torch.testing.assert_close(expectation, kl)
    torch.testing.assert_close(gradient(expectation, now), gradient(kl, now))


@given(logits, logits)
def test_k1_without_the_ratio_in_the_graph_is_no_force_at_all(now: Tensor, ref: Tensor) -> None:
    now.requires_grad_()
    logprobs_A, ref_A = now.log_softmax(-1), ref.log_softmax(-1)
    old_A = logprobs_A.detach()
    plain = (old_A.exp() * k1(logprobs_A, ref_A)).sum()
    detached = (old_A.exp() * (logprobs_A - old_A).exp().detach() * k1(logprobs_A, ref_A)).sum()
    for expectation in (plain, detached):
        torch.testing.assert_close(gradient(expectation, now), torch.zeros_like(now), atol=1e-12, rtol=0)


@given(logits, logits)
def test_on_policy_k2_has_the_gradient_of_the_kl(now: Tensor, ref: Tensor) -> None:
    """Not its value: ½ (log π/π_ref)² is another divergence."""
    now.requires_grad_()
    ref_A = ref.log_softmax(-1)
    expectation = (now.softmax(-1).detach() * k2(now.log_softmax(-1), ref_A)).sum()
    torch.testing.assert_close(gradient(expectation, now), gradient(reverse(now, ref_A), now))


@given(logits, logits)
def test_on_policy_k3_has_the_gradient_of_the_forward_kl(now: Tensor, ref: Tensor) -> None:
    """Its value is KL(π‖π_ref), and GRPO's pull is that of KL(π_ref‖π)."""
    now.requires_grad_()
    ref_A = ref.log_softmax(-1)
    expectation = (now.softmax(-1).detach() * k3(now.log_softmax(-1), ref_A)).sum()
    torch.testing.assert_close(expectation, reverse(now, ref_A))
    torch.testing.assert_close(gradient(expectation, now), gradient(forward(now, ref_A), now))


@given(logits, logits, logits)
def test_the_sampled_forward_kl_has_its_value_and_its_gradient(now: Tensor, old: Tensor, ref: Tensor) -> None:
    now.requires_grad_()
    old_A, ref_A = old.log_softmax(-1), ref.log_softmax(-1)
    expectation = (old_A.exp() * forward_kl(now.log_softmax(-1), old_A, ref_A)).sum()
    kl = forward(now, ref_A)
    torch.testing.assert_close(expectation, kl)
    torch.testing.assert_close(gradient(expectation, now), gradient(kl, now))


# In the reward: a ~ π, the estimate is a number that the score function ∇log π carries


def carried(now: Tensor, penalty_A: Tensor) -> Tensor:
    """E[∇log π(a) · penalty(a)]: what a penalty in the reward of a token does to that token."""
    return gradient((now.softmax(-1).detach() * penalty_A.detach() * now.log_softmax(-1)).sum(), now)


@given(logits, logits)
def test_in_the_reward_k1_has_the_gradient_of_the_kl(now: Tensor, ref: Tensor) -> None:
    now.requires_grad_()
    ref_A = ref.log_softmax(-1)
    got = carried(now, k1(now.log_softmax(-1), ref_A))
    torch.testing.assert_close(got, gradient(reverse(now, ref_A), now))


@given(logits, logits)
def test_in_the_reward_k3_is_the_difference_of_both_kls(now: Tensor, ref: Tensor) -> None:
    """So near the reference, where both are alike, it hardly pulls."""
    now.requires_grad_()
    ref_A = ref.log_softmax(-1)
    got = carried(now, k3(now.log_softmax(-1), ref_A))
    torch.testing.assert_close(got, gradient(reverse(now, ref_A), now) - gradient(forward(now, ref_A), now))


def test_near_the_reference_only_k1_pulls_a_token_through_its_reward() -> None:
    """ε away k1's force is of order ε, k2's and k3's of order ε²; `full` is the same for every token of a
    state: it charges the tokens before, never the token itself.
    """
    generator = torch.Generator().manual_seed(0)
    ref, push = (torch.randn(NUM_ACTIONS, generator=generator, dtype=torch.float64) for _ in range(2))
    forces = []
    for size in (1e-2, 1e-3):
        now = (ref + size * push).requires_grad_()
        logprobs_A, ref_A = now.log_softmax(-1), ref.log_softmax(-1)
        full_A = reverse(now, ref_A).expand(NUM_ACTIONS)
        penalties = [*(estimate(logprobs_A, ref_A) for estimate in (k1, k2, k3)), full_A]
        forces.append([float(carried(now, penalty_A).norm()) for penalty_A in penalties])
    shrunk = [near / far for far, near in zip(*forces, strict=True)]
    assert shrunk[:3] == pytest.approx([1e-1, 1e-2, 1e-2], rel=0.1)
    assert max(force[3] for force in forces) < 1e-12


# Over the vocabulary


@given(logits, logits, st.booleans())
def test_the_categorical_kl_is_torchs(one: Tensor, other: Tensor, backwards: bool) -> None:
    p, q = (torch.distributions.Categorical(logits=logits_NV) for logits_NV in (one, other))
    got = categorical_kl(one.log_softmax(-1)[None], other.log_softmax(-1)[None])
    torch.testing.assert_close(got[0], torch.distributions.kl_divergence(p, q))


@pytest.mark.parametrize("forwards", [False, True])
@pytest.mark.parametrize("budget", [10_000, 30])  # all tokens at once, and two rows at a time
@pytest.mark.parametrize("restricted", [False, True])
def test_the_kl_of_two_heads_and_its_gradient(forwards: bool, budget: int, restricted: bool) -> None:
    """Against plain torch on the whole N × V; a token outside the support gets no gradient, and no NaN."""
    generator = torch.Generator().manual_seed(1)
    num_tokens, width, vocab = 7, 4, 12
    hidden_NH, other_NH = (torch.randn(num_tokens, width, generator=generator) for _ in range(2))
    weight_VH, other_VH = (torch.randn(vocab, width, generator=generator) for _ in range(2))
    hidden_NH.requires_grad_()
    weight_VH.requires_grad_()
    allowed_NV = torch.rand(num_tokens, vocab, generator=generator) < 0.5
    allowed_NV[:, 0], allowed_NV[:, 3] = True, False
    restriction = Restriction(0.7, pack_bits(allowed_NV)) if restricted else Restriction(0.7)
    outside_NV = ~allowed_NV if restricted else torch.zeros_like(allowed_NV)

    def logprobs(hidden_NH: Tensor, weight_VH: Tensor) -> Tensor:
        return (hidden_NH @ weight_VH.T / 0.7).masked_fill(outside_NV, -1e9).log_softmax(-1)

    got_N = distribution_kl(
        hidden_NH,
        lambda rows: rows @ weight_VH.T,
        other_NH,
        lambda rows: rows @ other_VH.T,
        vocab_size=vocab,
        logits_budget=budget,
        forward=forwards,
        restriction=restriction,
    )
    log_p, log_q = logprobs(hidden_NH, weight_VH), logprobs(other_NH, other_VH)
    if forwards:
        log_p, log_q = log_q, log_p
    expected_N = torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1)
    torch.testing.assert_close(got_N, expected_N)
    weights_N = torch.rand(num_tokens, generator=generator)
    got = torch.autograd.grad((weights_N * got_N).sum(), (hidden_NH, weight_VH))
    expected = torch.autograd.grad((weights_N * expected_N).sum(), (hidden_NH, weight_VH))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert restricted is not bool(got[1][3].any())
