"""An actor-critic on any causal language model of transformers, and its frozen reference.

Logits are made only for the tokens that the model itself chose: never for the prompt, never for
padding, and in chunks where the vocabulary is large.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from contracts.errors import InputError
from learner.batching import MicroBatch
from learner.functional.logprobs import token_logprobs
from learner.settings import ModelSettings


@dataclass(frozen=True, slots=True)
class PolicyOutput:
    """For the model's tokens of a micro-batch, flat, row by row."""

    logprobs_N: Tensor
    entropies_N: Tensor | None
    values_N: Tensor | None


class CausalPolicy(nn.Module):
    """A causal language model seen as a policy over its next token."""

    def __init__(self, lm: nn.Module, logits_budget: int) -> None:
        super().__init__()
        self.lm = lm
        self.logits_budget = logits_budget
        self.vocab_size = lm.get_output_embeddings().weight.shape[0]

    def states(self, micro: MicroBatch, trunk: nn.Module | None = None) -> Tensor:
        """Hidden states (N, H) at the token before each of the model's tokens: the states it acted in."""
        trunk = trunk or self.lm.base_model
        hidden_BLH = trunk(input_ids=micro.tokens_BL, use_cache=False).last_hidden_state
        return hidden_BLH[:, :-1][micro.loss_mask_BL[:, 1:]]

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """The model's own head, with the scalings that some architectures put around it."""
        config = self.lm.config
        logits_NV = self.lm.get_output_embeddings()(hidden_NH)
        logits_NV = logits_NV * (getattr(config, "logit_scale", None) or 1.0)
        logits_NV = logits_NV / (getattr(config, "logits_scaling", None) or 1.0)
        softcap = getattr(config, "final_logit_softcapping", None)
        return softcap * torch.tanh(logits_NV / softcap) if softcap else logits_NV

    def evaluate(
        self, hidden_NH: Tensor, micro: MicroBatch, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        return token_logprobs(
            hidden_NH,
            micro.tokens_BL[:, 1:][micro.loss_mask_BL[:, 1:]],
            self.logits,
            vocab_size=self.vocab_size,
            logits_budget=self.logits_budget,
            with_entropy=with_entropy,
        )

    def forward(self, micro: MicroBatch) -> Tensor:
        """Log-probabilities (N,) of the model's tokens."""
        return self.evaluate(self.states(micro), micro, with_entropy=False)[0]


class ActorCritic(CausalPolicy):
    """A policy with a value for each state: a linear head on the policy's trunk, or on a trunk of its own."""

    def __init__(self, lm: nn.Module, logits_budget: int, value_trunk: nn.Module | None) -> None:
        super().__init__(lm, logits_budget)
        self.value_trunk = value_trunk
        width = self.lm.get_output_embeddings().weight.shape[1]
        self.value_head = nn.Linear(width, 1)
        # Every state begins with value 0, so the first advantages are the rewards themselves.
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(
        self, micro: MicroBatch, with_entropy: bool = False, with_values: bool = True
    ) -> PolicyOutput:
        hidden_NH = self.states(micro)
        logprobs_N, entropies_N = self.evaluate(hidden_NH, micro, with_entropy)
        values_N = None
        if with_values:
            value_hidden_NH = self.states(micro, self.value_trunk) if self.value_trunk else hidden_NH
            values_N = self.value_head(value_hidden_NH).squeeze(-1).float()
        return PolicyOutput(logprobs_N, entropies_N, values_N)

    def actor_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.lm.named_parameters())

    def critic_parameters(self) -> list[tuple[str, nn.Parameter]]:
        trunk = [] if self.value_trunk is None else list(self.value_trunk.named_parameters())
        return [*trunk, *self.value_head.named_parameters()]


def load_actor_critic(settings: ModelSettings, logits_budget: int, device: torch.device) -> ActorCritic:
    lm = load_language_model(settings)
    if settings.gradient_checkpointing:
        # before the copy, so that the critic's trunk recomputes too
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        lm.train()  # transformers checkpoints in training mode only; dropout is off by configuration
    trunk = copy.deepcopy(lm.base_model) if settings.value_trunk == "separate" else None
    policy = ActorCritic(lm, logits_budget, trunk).to(device)
    check_head(policy)
    return policy


def load_reference(settings: ModelSettings, logits_budget: int, device: torch.device) -> CausalPolicy:
    """The initial model, frozen."""
    return CausalPolicy(load_language_model(settings), logits_budget).to(device).requires_grad_(False)


def load_language_model(settings: ModelSettings) -> Any:
    """A causal model in float32, every dropout at 0: dropout destabilises RL and makes ratios noisy."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(settings.path, revision=settings.revision)
    if config.is_encoder_decoder:
        raise InputError(
            f"model.path={settings.path}: {config.model_type} is an encoder-decoder; "
            "a causal model is expected"
        )
    for name, value in config.to_dict().items():
        if ("drop" in name) and isinstance(value, float):
            setattr(config, name, 0.0)
    lm = AutoModelForCausalLM.from_pretrained(
        settings.path, revision=settings.revision, config=config, dtype=torch.float32
    )
    return lm.eval()


@torch.no_grad()
def check_head(policy: CausalPolicy) -> None:
    """Refuse an architecture whose logits are more than its head on its last hidden state."""
    tokens = torch.arange(4, device=next(policy.parameters()).device)[None] % policy.vocab_size
    expected = policy.lm(input_ids=tokens, use_cache=False).logits
    got = policy.logits(policy.lm.base_model(input_ids=tokens, use_cache=False).last_hidden_state)
    if not torch.allclose(got, expected, atol=1e-3, rtol=1e-3):
        raise InputError(
            f"model type {policy.lm.config.model_type}: its logits differ by "
            f"{float((got - expected).abs().max()):.3g} from its output embedding on its last hidden state; "
            "such a head is not supported"
        )
