"""Build the trained pair, a policy and its critic, and load the reference and NLPO's mask model."""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from contracts.components import find
from contracts.errors import InputError
from contracts.signatures import check_function, check_methods
from learner.batches.batching import MicroBatch
from learner.distributed.sharding import own_rows
from learner.distributed.stored_weights import StoredWeights, standing_in
from learner.functional.logprobs import WHOLE, Restriction
from learner.models.adapter_settings import AdapterSettings
from learner.models.adapters import Adapter, WithoutAdapter
from learner.models.critic import CRITICS, RunningNorm
from learner.models.language_models import load_for_ranks, load_language_model
from learner.models.named_adapters import Role, RoleAdapter
from learner.models.policy import CausalPolicy, Policy, check_head, family
from learner.models.shared_prompts import can_share
from learner.models.shared_trunk import SharedTrunk, copy_sharing_frozen
from learner.settings import ModelSettings


@dataclass(frozen=True, slots=True)
class PolicyOutput:
    """Numbers for each generated token of a micro-batch, flat, row by row."""

    hidden_NH: Tensor
    logprobs_N: Tensor
    entropies_N: Tensor | None
    values_N: Tensor | None


class ActorCritic(nn.Module):
    """Policy with a critic. `shared_trunk` or `adapter` is set if only a part of the model trains."""

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
        """Run the policy on a micro-batch, and the critic if `with_values`.

        Values are in the units of the rewards, or in the units of `value_norm` if it is set.
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
        """Return the parameters that no learner trains."""
        if self.adapter is not None:
            others = self.adapter.others()
            return [p for p in self.policy.parameters() if not (p.requires_grad or id(p) in others)]
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
    role: Role | None = None,
) -> ActorCritic:
    """Load the policy and its critic. For a role with its own adapter, the adapter is then in use.

    Args:
        drops_out: as in `load_language_model`.
        shards: whether ranks will share the weights. Then all ranks make equally many passes of the trunk,
            and
            usually the pair has no weights yet: `policy.stored` says where they are.
    """
    stored: StoredWeights | None = None
    if role is not None and role.adapters is not None:
        lm = role.adapters.lm
    elif shards and is_plain(settings):
        lm, stored = load_for_ranks(settings, drops_out=drops_out)
    else:
        lm = load_language_model(settings, device, drops_out=drops_out)
    with standing_in(lm):
        adapter = _beside(lm, settings.adapter, role) if settings.adapter.trains else None
    if settings.gradient_checkpointing:
        # before the copy, so that the critic's trunk recomputes, too
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = make_policy(settings, lm, logits_budget)
    policy.stored = stored
    if adapter is not None:
        adapter.check_trains_alone(policy)
    # before the critic, so that a separate trunk gets the same frozen layers
    trunk = SharedTrunk(policy, settings) if settings.trainable_layers else None
    critic = make_critic(settings, policy)
    norm = RunningNorm() if normalize_values else None
    pair = ActorCritic(policy, critic, norm, trunk, adapter)
    if stored is None:
        check_head(pair.to(device).policy)
    alone = trunk is None and not (shards or drops_out or settings.adapter.drops_out)
    policy.shares_prompts = alone and type(policy) is CausalPolicy and can_share(lm)
    policy.packs_rows = policy.shares_prompts
    return pair


def _beside(lm: Any, settings: AdapterSettings, role: Role | None) -> Adapter:
    if role is None:
        return Adapter(lm, settings)
    adapter = RoleAdapter(lm, settings, role)
    torch.manual_seed(role.seed)  # the critic begins alike, whether or not a model was loaded before it
    return adapter


def frozen_copy(policy: Policy) -> Policy:
    """Return a frozen copy of the current policy, for the reference or NLPO's mask model."""
    return copy_sharing_frozen(policy).requires_grad_(False)


def reference_of(pair: ActorCritic) -> Policy:
    """Return the policy as it was before any training."""
    return frozen_copy(pair.policy) if pair.adapter is None else WithoutAdapter(pair.policy, pair.adapter)


def is_plain(settings: ModelSettings) -> bool:
    """Return whether nothing reads a parameter before sharding, so that its values may come later."""
    has_own_classes = settings.policy != "auto" or settings.critic not in CRITICS
    return not (has_own_classes or settings.trainable_layers)


@torch.no_grad()
def read_stored(module: ActorCritic | Policy) -> None:
    """Read this rank's rows of a sharded module whose weights are still in the model's files."""
    policy = module.policy if isinstance(module, ActorCritic) else module
    if policy.stored is None:
        return
    policy.stored.read(policy.lm)
    own_trunk = getattr(module.critic, "trunk", None) if isinstance(module, ActorCritic) else None
    if own_trunk is not None:  # made as a copy of the policy's trunk
        for copied, parameter in zip(own_trunk.parameters(), policy.trunk.parameters(), strict=True):
            own_rows(copied)[0].copy_(own_rows(parameter)[0])
    policy.stored = None


def load_reference(
    settings: ModelSettings, policy: Policy, device: torch.device, *, shards: bool = False
) -> Policy:
    """Load the model of `model.reference.path`, frozen.

    Args:
        policy: the trained policy, which the reference must resemble.
        shards: as in `load_actor_critic`.

    Raises:
        InputError: the reference can't be loaded, or only one of the two models is an encoder-decoder.
    """
    path = settings.reference.path
    assert path is not None, "without a path, the reference is a copy"
    other = ModelSettings(path=path, revision=settings.reference.revision)
    lm, stored = load_for_ranks(other) if shards else (load_language_model(other, device), None)
    kinds = {True: "an encoder-decoder", False: "a causal model"}
    got, expected = (kinds[bool(model.config.is_encoder_decoder)] for model in (lm, policy.lm))
    if got != expected:
        raise InputError(
            f"model.reference.path={path}: got {got}; expected {expected}, as model.path={settings.path} is"
        )
    reference = family(lm)(lm, policy.logits_budget).requires_grad_(False)
    reference.stored = stored
    if stored is None:
        check_head(reference.to(device))
    reference.shares_prompts = reference.packs_rows = policy.shares_prompts and can_share(lm)
    return reference.eval()


@torch.no_grad()
def copy_trained(policy: Policy, to: Policy) -> None:
    """Copy the trained weights into a frozen copy; both already share the frozen weights."""
    for parameter, copied in zip(policy.parameters(), to.parameters(), strict=True):
        if parameter.requires_grad:
            copied.copy_(parameter)
    for buffer, kept in zip(policy.buffers(), to.buffers(), strict=True):
        kept.copy_(buffer)


@torch.no_grad()
def average_trained(policy: Policy, into: Policy, rate: float) -> None:
    """Move a frozen copy's trained weights towards the policy's: (1 - rate) · copy + rate · policy."""
    for parameter, copied in zip(policy.parameters(), into.parameters(), strict=True):
        if parameter.requires_grad:
            copied.lerp_(parameter, rate)


def make_policy(settings: ModelSettings, lm: Any, logits_budget: int) -> Policy:
    """Make the policy from the class for the model's family, or from the user's class."""
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
            f"{where}: {kind.__name__} is not a policy; expected auto, or a subclass of whetstone.Policy"
        )
    check_function(where, kind, ("lm", "logits_budget"))
    check_methods(where, "policy", kind, Policy)
    return kind


def make_critic(settings: ModelSettings, policy: Policy) -> nn.Module:
    """Make the critic: a built-in one or the user's.

    Raises:
        InputError: the class is not a `learner.models.critic.Critic`.
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
            f"model.critic={settings.critic}: {kind.__name__} is not a critic ({error}); expected a torch "
            f"module made from (policy, separate_trunk) whose forward takes (policy, micro, hidden_NH), as "
            f"whetstone.LinearCritic"
        ) from None
    return kind
