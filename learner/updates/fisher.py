"""Multiply the Fisher matrix by a vector, in micro-batches and chunks of the vocabulary.

With z(θ) the logits of a token and J their derivative, the KL's second derivative at the old policy is
Jᵀ(diag(p) - ppᵀ)J. The term with z's own second derivative has a factor 0, the KL's gradient there. So the
product with v takes

    forward mode    u = Jv, the change of the logits when the parameters move along v
    by hand         c = p·(u - Σ pu)
    backward mode   Jᵀc

and no graph of a graph. The trunk runs in forward mode without a graph, with plain attention because fused
kernels have no forward mode. It then runs forward and backward as in any update. In between, the head runs
with its share of J and Jᵀ, on the logits of one chunk of rows at a time. The trunk's activations are free by
then.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from contracts.errors import InputError
from learner.batches.batching import MicroBatch
from learner.functional.logprobs import Restriction, row_chunks
from learner.functional.trust_region import softmax_fisher_product
from learner.models.policy import Policy
from learner.updates.context import UpdateContext
from learner.updates.parameter_vector import ParameterVector

CHUNK_ARRAYS = 8  # arrays that a chunk holds at once: logits, tangents, probabilities, gradients


class FisherProduct:
    """Product v ↦ (F + damping)v at the policy's current parameters; F is the mean over all tokens."""

    def __init__(
        self,
        context: UpdateContext,
        parameters: ParameterVector,
        damping: float,
        micro_batches: Callable[[], Iterable[MicroBatch]],
    ) -> None:
        self._context, self._parameters, self._damping = context, parameters, damping
        self._policy, self._micro_batches = context.models.pair.policy, micro_batches

    def __call__(self, vector_P: Tensor) -> Tensor:
        tangents = self._parameters.parts(vector_P)
        for micro in self._micro_batches():
            if micro.weight:
                self._accumulate(micro, tangents)
        product_P = self._parameters.take_gradient()
        self._context.ranks.sum(product_P)
        return product_P / self._context.batch.num_tokens + self._damping * vector_P

    def _accumulate(self, micro: MicroBatch, tangents: dict[str, Tensor]) -> None:
        """Add a micro-batch's Jᵀ(diag(p) - ppᵀ)Jv to the parameters' gradients."""
        context, policy = self._context, self._policy
        restriction = context.scored.restriction(micro)
        hidden_NH, tangent_NH = self._moving_states(micro, tangents)
        hidden_NH.requires_grad_()
        budget = policy.logits_budget // CHUNK_ARRAYS
        for a, b in row_chunks(len(hidden_NH), policy.vocab_size, budget):
            self._head(hidden_NH[a:b], tangent_NH[a:b], restriction.rows(a, b), tangents)
        with context.precision.autocast():
            states_NH = policy.states(micro)
        if states_NH.requires_grad:  # otherwise only the head trains
            states_NH.backward(hidden_NH.grad)

    @torch.no_grad()
    def _moving_states(self, micro: MicroBatch, tangents: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the hidden states (N, H), and their change when the parameters move along v."""
        with (
            self._context.precision.autocast(),
            forward_ad.dual_level(),
            sdpa_kernel(SDPBackend.MATH),
            _padding_held(self._policy),
        ):
            dual_NH = self._parameters.call_with(self._duals(tangents), self._policy.states, micro)
            hidden_NH, tangent_NH = forward_ad.unpack_dual(dual_NH)
        return hidden_NH, torch.zeros_like(hidden_NH) if tangent_NH is None else tangent_NH

    def _head(
        self, hidden_NH: Tensor, tangent_NH: Tensor, restriction: Restriction, tangents: dict[str, Tensor]
    ) -> None:
        """Add a chunk's share to the gradients of the head and of `hidden_NH`."""
        with self._context.precision.autocast(), forward_ad.dual_level():
            dual_NH = forward_ad.make_dual(hidden_NH, tangent_NH)
            logits_NV = restriction(
                self._parameters.call_with(self._duals(tangents), self._policy.logits, dual_NH)
            )
            primal_NV, change_NV = forward_ad.unpack_dual(logits_NV)
            cotangent_NV = softmax_fisher_product(primal_NV.detach(), change_NV.detach())
        # Outside of the level, because the graph's saved tensors have no tangents there.
        primal_NV.backward(cotangent_NV)

    def _duals(self, tangents: dict[str, Tensor]) -> dict[str, Tensor]:
        named = self._parameters.named()
        return {name: forward_ad.make_dual(named[name], tangent) for name, tangent in tangents.items()}


@torch.no_grad()
def check_forward_mode(policy: Policy, device: torch.device) -> None:
    """Refuse a model with an operation that has no forward-mode derivative.

    Raises:
        InputError: the model's type has no forward-mode derivative, or its weights have 4 bits.
    """
    if any(hasattr(parameter, "quant_state") for parameter in policy.parameters()):
        # A product with 4-bit weights raises no error, but its derivative is 0.
        raise InputError(
            "algorithm=trpo needs forward-mode derivatives, and products with 4-bit weights have none: "
            "expected model.adapter.kind=lora, or algorithm=ppo"
        )
    parameters = ParameterVector(policy)
    try:
        with forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
            moved = {
                name: forward_ad.make_dual(p, torch.zeros_like(p)) for name, p in parameters.named().items()
            }
            tokens_L = torch.zeros(3, dtype=torch.long, device=device)
            parameters.call_with(moved, policy.probe_states, tokens_L)
    except (NotImplementedError, RuntimeError) as error:
        if "forward" not in str(error):
            raise
        raise InputError(
            f"algorithm=trpo needs forward-mode derivatives, and model type {policy.lm.config.model_type} "
            f"has an operation without one ({str(error).splitlines()[0]}). Choose algorithm=ppo"
        ) from None


@contextmanager
def _padding_held(module: nn.Module) -> Iterator[None]:
    """Keep the padding's embedding from moving, because it gets no gradient where it is looked up.

    J and Jᵀ must be of the same function, or the product is not symmetric.
    """

    def hold(embedding: nn.Embedding, arguments: tuple[Tensor], dual: Tensor) -> Tensor:
        assert embedding.padding_idx is not None  # only embeddings with padding are hooked
        is_padding = (arguments[0] == embedding.padding_idx)[..., None]
        return forward_ad.unpack_dual(dual).primal.where(is_padding, dual)

    embeddings = [part for part in module.modules() if isinstance(part, nn.Embedding)]
    hooks = [layer.register_forward_hook(hold) for layer in embeddings if layer.padding_idx is not None]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
