"""Build the trained pair, a policy and its critic, and load the reference and NLPO's mask model."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from contracts.activations import fuse_activations
from contracts.components import find
from contracts.errors import InputError
from contracts.loading import ONE_MODEL_AT_A_TIME
from contracts.signatures import check_function, check_methods
from learner import dropout
from learner.adapters import Adapter, WithoutAdapter
from learner.batching import MicroBatch
from learner.critic import CRITICS, RunningNorm
from learner.functional.logprobs import WHOLE, Restriction
from learner.policy import CausalPolicy, Policy, check_head, family
from learner.quantization import compute_in_float32, quantized_loading
from learner.settings import ModelSettings
from learner.shared_prompts import can_share
from learner.shared_trunk import SharedTrunk, copy_sharing_frozen

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class PolicyOutput:
    """Numbers for each token that the model generated in a micro-batch, flat, row by row."""

    hidden_NH: Tensor
    logprobs_N: Tensor
    entropies_N: Tensor | None
    values_N: Tensor | None


class ActorCritic(nn.Module):
    """Policy with a critic. `shared_trunk` or `adapter` is set where only a part of the model trains."""

    def __init__(
        self,
        policy: Policy,
        critic: nn.Module,
        value_norm: RunningNorm | None = None,
        shared_trunk: SharedTrunk | None = None,
        adapter: Adapter | None = None,
    ) -> None:
        super().__init__()
        self.policy, self.critic, self.value_norm = policy, critic, value_norm
        self.shared_trunk, self.adapter = shared_trunk, adapter

    def forward(
        self,
        micro: MicroBatch,
        restriction: Restriction = WHOLE,
        *,
        with_entropy: bool = False,
        with_values: bool = True,
    ) -> PolicyOutput:
        """Run the policy on a micro-batch, and the critic where `with_values` asks for it.

        Values are in the units of the rewards, or in those of `value_norm` if it is set.
        """
        hidden_NH = self.policy.states(micro)
        logprobs_N, entropies_N = self.policy.evaluate(hidden_NH, micro, with_entropy, restriction)
        values_N = self.critic(self.policy, micro, hidden_NH) if with_values else None
        return PolicyOutput(hidden_NH, logprobs_N, entropies_N, values_N)

    @property
    def lm(self) -> Any:
        return self.policy.lm

    @property
    def frozen(self) -> list[nn.Parameter]:
        """Return the parameters that do not train."""
        if self.adapter is not None:
            return [parameter for parameter in self.policy.parameters() if not parameter.requires_grad]
        return [] if self.shared_trunk is None else self.shared_trunk.parameters

    def actor_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.policy.named_parameters())

    def critic_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.critic.named_parameters())


def load_actor_critic(
    settings: ModelSettings,
    logits_budget: int,
    device: torch.device,
    *,
    normalize_values: bool = False,
    drops_out: bool = False,
    shards: bool = False,
) -> ActorCritic:
    """Load the policy and its critic.

    Args:
        drops_out: as for `load_language_model`.
        shards: whether ranks will share the weights. Then all ranks make equally many passes of the trunk.
    """
    lm = load_language_model(settings, device, drops_out=drops_out)
    adapter = Adapter(lm, settings.adapter) if settings.adapter.trains else None
    if settings.gradient_checkpointing:
        # before the copy: the critic's trunk recomputes too
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = make_policy(settings, lm, logits_budget)
    if adapter is not None:
        adapter.check_trains_alone(policy)
    # before the critic: a trunk of its own gets the same frozen layers
    trunk = SharedTrunk(policy, settings) if settings.trainable_layers else None
    critic = make_critic(settings, policy)
    norm = RunningNorm() if normalize_values else None
    pair = ActorCritic(policy, critic, norm, trunk, adapter).to(device)
    check_head(pair.policy)
    alone = trunk is None and not (shards or drops_out or settings.adapter.drops_out)
    policy.shares_prompts = alone and type(policy) is CausalPolicy and can_share(lm)
    return pair


def frozen_copy(policy: Policy) -> Policy:
    """Return a frozen copy of the policy as it is now, for the reference or NLPO's mask model."""
    return copy_sharing_frozen(policy).requires_grad_(False)


def reference_of(pair: ActorCritic) -> Policy:
    """Return the policy as it was before any training."""
    return frozen_copy(pair.policy) if pair.adapter is None else WithoutAdapter(pair.policy, pair.adapter)


def load_reference(settings: ModelSettings, policy: Policy, device: torch.device) -> Policy:
    """Load the model of `model.reference.path`, frozen.

    Args:
        policy: the trained one, which it must resemble.

    Raises:
        InputError: it can't be loaded, or one of the two is an encoder-decoder and the other is not.
    """
    path = settings.reference.path
    assert path is not None, "without a path the reference is a copy"
    lm = load_language_model(ModelSettings(path=path, revision=settings.reference.revision), device)
    kinds = {True: "an encoder-decoder", False: "a causal model"}
    got, expected = (kinds[bool(each.config.is_encoder_decoder)] for each in (lm, policy.lm))
    if got != expected:
        raise InputError(
            f"model.reference.path={path}: got {got}; expected {expected}, as model.path={settings.path} is"
        )
    reference = family(lm)(lm, policy.logits_budget).to(device).requires_grad_(False)
    check_head(reference)
    reference.shares_prompts = policy.shares_prompts and can_share(lm)
    return reference.eval()


@torch.no_grad()
def copy_trained(policy: Policy, to: Policy) -> None:
    """Copy the trained weights into a frozen copy; both already use the same frozen weights."""
    for parameter, copied in zip(policy.parameters(), to.parameters(), strict=True):
        if parameter.requires_grad:
            copied.copy_(parameter)
    for buffer, kept in zip(policy.buffers(), to.buffers(), strict=True):
        kept.copy_(buffer)


def make_policy(settings: ModelSettings, lm: Any, logits_budget: int) -> Policy:
    """Make the policy of the class that fits the model's family, or of the user's own class."""
    kind = family(lm) if settings.policy == "auto" else own_policy(settings)
    return kind(lm, logits_budget)


def own_policy(settings: ModelSettings) -> type[Policy]:
    """Return the class that `model.policy` names.

    Raises:
        InputError: the class is not a policy, or can't be made or called as one.
    """
    kind, where = find("model.policy", settings.policy, {}), f"model.policy={settings.policy}"
    if not issubclass(kind, Policy):
        raise InputError(
            f"{where}: {kind.__name__} is no policy; expected auto, or a subclass of learner.policy.Policy"
        )
    check_function(where, kind, ("lm", "logits_budget"))
    check_methods(where, "policy", kind, Policy)
    return kind


def make_critic(settings: ModelSettings, policy: Policy) -> nn.Module:
    """Make the critic: a built-in one or the user's own.

    Raises:
        InputError: the class is not a `learner.critic.Critic`.
    """
    critic: nn.Module = critic_class(settings)(policy, settings.value_trunk == "separate")
    return critic


def critic_class(settings: ModelSettings) -> Any:
    """Return the class that `model.critic` names.

    Raises:
        InputError: the class is not a critic, or can't be made or called as one.
    """
    kind: Any = find("model.critic", settings.critic, CRITICS)
    try:
        inspect.signature(kind).bind(None, True)
        inspect.signature(kind.forward).bind(None, None, None, None)
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(
            f"model.critic={settings.critic}: {kind.__name__} is no critic ({error}); expected a torch "
            f"module made from (policy, separate_trunk) whose forward takes (policy, micro, hidden_NH), as "
            f"learner.critic.LinearCritic"
        ) from None
    return kind


def load_language_model(
    settings: ModelSettings, device: torch.device = CPU, *, drops_out: bool = False
) -> Any:
    """Load a model in float32; an adapter's 4-bit base is made on `device`.

    Args:
        drops_out: if True, training mode uses the model's own dropout. False: every rate is 0, since dropout
            makes ratios noisy and destabilises reinforcement learning.

    Raises:
        InputError: the model is neither causal nor an encoder-decoder.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    config = AutoConfig.from_pretrained(settings.path, revision=settings.revision)
    if not drops_out:
        dropout.switch_off(config)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    try:
        with ONE_MODEL_AT_A_TIME:
            lm = kind.from_pretrained(
                settings.path,
                revision=settings.revision,
                config=config,
                dtype=torch.float32,
                **quantized_loading(settings.adapter, device),
            )
    except ValueError as error:
        raise InputError(f"model.path={settings.path}: {error}") from None
    compute_in_float32(lm)
    fuse_activations(lm)
    return lm.eval()
