"""Compile the blocks of a learner's models at its start, on a batch of three short sequences."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from contracts.processes import timeline
from contracts.rollout import FinishReason, Prompt, Rollout, Turn
from learner.algorithms.base import Algorithm
from learner.batches.batching import collate
from learner.models.actor_critic import ActorCritic
from learner.models.compiled_blocks import Backend, CompiledBlocks, blocks_of, reason
from learner.optimization.precision import Precision
from learner.passes.scoring import Models
from learner.settings import LearnerSettings, ModelSettings

# Tokens of prompt and response. All widths differ, or a graph would confuse two sizes. A batch of one
# sequence would have another graph.
LENGTHS = ((5, 3), (6, 2), (3, 4))
# Largest difference from the plain blocks, as a share of the numbers' norm. Fused kernels round less often.
TOLERANCE, ROUNDED_TOLERANCE = 1e-3, 5e-2


def why_plain(model: ModelSettings, settings: LearnerSettings, algorithm: Algorithm) -> str | None:
    """Return why blocks run uncompiled; None: blocks of known model types are compiled."""
    reasons = (
        (model.policy != "auto", f"model.policy={model.policy} may call blocks differently"),
        (model.gradient_checkpointing, "model.gradient_checkpointing=true computes activations again"),
        (bool(model.adapter.roles), "each role computes with other matrices"),
        (model.adapter.kind == "qlora", "weights of 4 bits have special kernels"),
        (settings.num_processes > 1 or settings.offload, "each block gets its rows of weights as it runs"),
        (algorithm.traits.update == "trust_region", "a trust region differentiates forward"),
    )
    return next((why for is_so, why in reasons if is_so), None)


def compile_models(
    models: Models,
    model: ModelSettings,
    algorithm: Algorithm,
    settings: LearnerSettings,
    precision: Precision,
    device: torch.device,
    backend: Backend = "inductor",
) -> CompiledBlocks:
    """Compile the blocks if `learner.compile` is set; its `failure` says why they stay plain.

    Compare the policy's graphs with its plain blocks, without and with gradients.
    """
    compiled, pair = CompiledBlocks(backend), models.pair
    if not settings.compile:
        return compiled
    if (why := why_plain(model, settings, algorithm)) is not None:
        compiled.give_up(why)
        return compiled
    policies = (pair.policy, models.reference, models.mask)
    for lm in (getattr(pair.critic, "trunk", None), *(policy and policy.lm for policy in policies)):
        if lm is not None:
            compiled.add(lm)
    if not compiled.num_blocks:
        compiled.give_up(f"blocks of model type {pair.lm.config.model_type} are unknown")
        return compiled
    micro = collate(_rollouts(pair.policy.vocab_size), device).part(range(len(LENGTHS)))

    def states() -> Tensor:
        with precision.autocast():
            return pair.policy.states(micro)

    with timeline.span("compiles blocks"):
        # in training mode, like updates, unless dropout prevents a comparison
        _check(compiled, pair, states, not model.any_dropout(algorithm), precision.rounds)
    return compiled


def _check(
    compiled: CompiledBlocks, pair: ActorCritic, states: Callable[[], Tensor], trains: bool, rounds: bool
) -> None:
    """Compile on small inputs; give up if that fails or the numbers differ."""
    try:
        got = _numbers(pair, states, trains)
    except Exception as error:  # compilers raise errors of any kind
        compiled.give_up(reason(error))
    if compiled.failure is not None:
        return
    compiled.failure = "compares"
    expected = _numbers(pair, states, trains)
    compiled.failure = None
    tolerance = ROUNDED_TOLERANCE if rounds else TOLERANCE
    for a, b in zip(got, expected, strict=True):
        difference = float((a - b).norm() / b.norm())
        if not difference <= tolerance:  # also true for NaN
            compiled.give_up(f"numbers differ by {difference:.2g} of their norm, more than {tolerance:g}")


def _numbers(pair: ActorCritic, states: Callable[[], Tensor], trains: bool) -> Sequence[Tensor]:
    """Return states without gradients and with them, and gradients of the first block that trains."""
    with torch.no_grad():
        scored_NH = states().float()
    pair.train(trains)
    hidden_NH = states().float()
    pair.eval()
    numbers = [scored_NH, hidden_NH.detach()]
    if parameters := next(filter(None, map(_trained, blocks_of(pair.lm))), None):
        gradients = torch.autograd.grad(hidden_NH.square().sum(), parameters, allow_unused=True)
        numbers.append(
            torch.cat([gradient.float().flatten() for gradient in gradients if gradient is not None])
        )
    return numbers


def _trained(block: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in block.parameters() if parameter.requires_grad]


def _rollouts(vocab_size: int) -> list[Rollout]:
    made = []
    for row, (num_seen, num_written) in enumerate(LENGTHS):
        tokens = [(7 * row + 3 * place + 1) % vocab_size for place in range(num_seen + num_written)]
        turn = Turn(
            observation=tuple(tokens[:num_seen]),
            tokens=tuple(tokens[num_seen:]),
            text="",
            behavior_logprobs=(-1.0,) * num_written,
            weight_versions=(0,) * num_written,
            reward=0.0,
        )
        made.append(Rollout(row, row, Prompt(f"probe/{row}", ""), (turn,), FinishReason.STOP))
    return made
