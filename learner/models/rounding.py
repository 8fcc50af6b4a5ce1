"""Hold a learner's models in bfloat16 if its products are in bfloat16 anyway.

matrices of products     bfloat16, to which autocast rounds them in each pass otherwise
hidden states            bfloat16 from the embeddings on, as in engines, instead of float32
embeddings, norms        float32: PyTorch adds up a bfloat16 table's gradient in bfloat16 on a CPU, and
                         of 800 addends to a row a seventh is lost
heads of values          float32, because advantages are differences of values
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from learner.algorithms.base import Algorithm
from learner.models.actor_critic import ActorCritic
from learner.models.policy import Policy
from learner.optimization.master_weights import MasterWeights
from learner.optimization.precision import Precision
from learner.settings import ModelSettings


def round_models(
    pair: ActorCritic,
    reference: Policy | None,
    precision: Precision,
    model: ModelSettings,
    algorithm: Algorithm,
) -> MasterWeights:
    """Round the models as `learner.param_dtype` says, and the reference; return the policy's masters.

    If only the reference is rounded, there are no masters, and all numbers stay the same bit for bit.

    Raises:
        InputError: the settings require bfloat16 where it is impossible.
    """
    keeps_masters = precision.keeps_masters(model, algorithm)
    if reference is not None and precision.rounds_whole_models and not shares_memory(reference, pair):
        round_frozen(reference)
        if keeps_masters:  # before training, both models then compute the same
            round_states(reference, reference.lm)
    return round_policy(pair) if keeps_masters else MasterWeights()


def shares_memory(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two models share a parameter, such as frozen layers of policy and reference."""
    places = {parameter.data_ptr() for parameter in other.parameters()}
    return any(parameter.data_ptr() in places for parameter in one.parameters())


def round_policy(pair: ActorCritic) -> MasterWeights:
    """Round the policy and the critic's separate trunk; return their masters."""
    separate = getattr(pair.critic, "trunk", None)
    trunks = [pair.policy] if separate is None else [pair.policy, separate]
    for trunk in trunks:
        round_states(trunk, pair.lm)
    return MasterWeights(matrix for trunk in trunks for matrix in matrices(trunk))


def round_frozen(policy: Policy) -> None:
    """Round the matrices of a frozen policy, which must share none with the trained policy."""
    for matrix in matrices(policy):
        matrix.data = matrix.data.bfloat16()


def matrices(module: nn.Module) -> list[nn.Parameter]:
    """Return the matrices that autocast rounds in each pass, without a head tied to an embedding."""
    modules: list[Any] = list(module.modules())
    looked_up = {id(layer.weight) for layer in modules if isinstance(layer, nn.Embedding)}
    weights = {id(layer.weight): layer.weight for layer in modules if type(layer) in (nn.Linear, Conv1D)}
    return [weight for key, weight in weights.items() if key not in looked_up]


def round_states(module: nn.Module, lm: Any) -> None:
    """Let hidden states be bfloat16 under autocast: embeddings' sums, and so all that layers add.

    Other tables, such as T5's biases of attention by distance, do not change.
    """
    width = lm.get_input_embeddings().embedding_dim
    for layer in module.modules():
        if isinstance(layer, nn.Embedding) and layer.embedding_dim == width:
            layer.register_forward_hook(_rounded)
        if isinstance(layer, nn.LayerNorm):
            layer.register_forward_pre_hook(_exact_on_cpu, with_kwargs=True)


def _rounded(module: nn.Module, inputs: Any, states: Tensor) -> Tensor:
    return states.bfloat16() if torch.is_autocast_enabled(states.device.type) else states


def _exact_on_cpu(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return a norm's inputs in float32 on a CPU, as autocast does on a GPU.

    The CPU's kernel for bfloat16 also adds up the gradients of scale and shift in bfloat16.
    """

    def exact(states: Any) -> Any:
        return states.float() if isinstance(states, Tensor) and states.device.type == "cpu" else states

    return tuple(map(exact, inputs)), {name: exact(states) for name, states in named.items()}
