"""Operations of an iteration's passes, and their share of a GPU's peak (MFU).

An operation is a multiplication or an addition. A token's forward pass makes two with each weight that
multiplies it, the backward pass four. The head works only at generated tokens. Attention adds the products of
a text's tokens with the tokens before them.

MFU by training counts a forward and a backward pass of each epoch (6·N·T, Chowdhery et al. 2022, arXiv
2204.02311, appendix B). MFU by all passes adds the scoring passes, which the algorithm also needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from learner.algorithms.base import Algorithm
from learner.passes.known_passes import compared_rollouts, loads_reference

BACKWARD = 2.0  # relative to a forward pass


@dataclass(frozen=True, slots=True)
class Products:
    """Sizes of a model's products.

    Example: gpt2: `Products(layers=84_934_656, head=38_597_376, attention=9_216)`
    """

    layers: int  # weights of all layers' matrices
    head: int  # vocabulary × width
    attention: int  # layers × width of the query heads

    def forward(self, num_tokens: float, num_predicted: float, squares: float) -> float:
        """Return the operations of one forward pass.

        Args:
            num_tokens: number of all texts' tokens.
            num_predicted: tokens that the model wrote.
            squares: sum of the texts' squared lengths; causal attention computes half of their pairs.

        >>> Products(layers=10, head=100, attention=1).forward(4, 2, 16)
        512.0
        """
        return 2.0 * (self.layers * num_tokens + self.head * num_predicted + self.attention * squares)


@dataclass(frozen=True, slots=True)
class Passes:
    """Forward passes over a batch, in shares of its rollouts.

    Example: GRPO with a reference in two minibatches: `Passes(scoring=1.0, reference=1.0, training=1.0)`
    """

    scoring: float  # passes of scoring by the policy, before the update
    reference: float
    training: float  # each with a backward pass

    def operations(self, forward: float) -> float:
        """Return the operations of all passes, if one forward pass needs `forward`."""
        return forward * (self.scoring + self.reference) + self.trained(forward)

    def trained(self, forward: float) -> float:
        """Return the operations of forward and backward passes."""
        return forward * (1 + BACKWARD) * self.training


def passes_of(
    algorithm: Algorithm,
    num_rollouts: int,
    scored: float,
    *,
    separate_critic: bool,
    epochs: float | None = None,
) -> Passes:
    """Return the passes that an algorithm makes over a batch.

    Args:
        scored: share of the rollouts that the policy scores before the update.
        separate_critic: whether the critic has a separate trunk, so that its passes count twice.
        epochs: passes of training; None: the algorithm's epochs, if nothing ends them early.
    """
    trunks = 2.0 if separate_critic and algorithm.traits.critic else 1.0
    compared = len(compared_rollouts(algorithm, num_rollouts)) if loads_reference(algorithm) else 0
    return Passes(
        scoring=scored * trunks,
        reference=compared / num_rollouts,
        training=(algorithm.num_epochs if epochs is None else epochs) * trunks,
    )


def products_of(lm: Any) -> Products:
    """Return the products of a transformers language model, from its weights and its configuration."""
    from torch import nn  # imported only here, because a plan must take less than a second

    head = lm.get_output_embeddings().weight
    tables = {id(module.weight) for module in lm.modules() if isinstance(module, nn.Embedding)}
    outside = tables | {id(head)}
    layers = sum(
        weight.numel() for weight in lm.parameters() if weight.ndim == 2 and id(weight) not in outside
    )
    text = lm.config.get_text_config(decoder=True)
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return Products(layers, head.numel(), text.num_hidden_layers * text.num_attention_heads * width)


def squares_of(lengths: Sequence[int]) -> float:
    """Return the sum of squared lengths, exact in a float.

    >>> squares_of([3, 4])
    25.0
    """
    return float(sum(length * length for length in lengths))
