"""Language models of a few thousand weights, rollouts for them, and learners on them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from contracts.rollout import FinishReason, Prompt, Rollout, Sampling, Turn
from learner.algorithms.base import Algorithm, OptimizerSettings
from learner.batches.batching import Batch, MicroBatch
from learner.batches.splitting import micro_batches
from learner.learner import ANY_LENGTH, Learner
from learner.models.actor_critic import ActorCritic, load_actor_critic
from learner.settings import LearnerSettings, ModelSettings, ReferenceSettings
from services.models.new_tokenizer import word_tokenizer

VOCAB = 37
WINDOW = 64

# For tests that compare weights after updates. AdamW divides a gradient by its own size, so one that is zero
# but for rounding makes a whole step, on each kind of processor another one. So are those of the biases of
# attention's keys, which add the same to all scores of a softmax. A large ε lets them move nothing.
SMOOTH = OptimizerSettings(eps=1e-4)

# For tests of formulas in the units of the rewards, which defaults count in units of their own deviation.
AS_PAID: dict[str, Any] = {"reward_scale": 1.0}
CRITIC_AS_PAID: dict[str, Any] = AS_PAID | {"normalize_values": False}

# Weights large enough that next-token distributions are far from uniform, and dropout as published.
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": WINDOW,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GPT2: dict[str, Any] = {
    "vocab_size": VOCAB,
    "n_positions": WINDOW,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_OPT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "word_embed_proj_dim": 8,  # the head is narrower than the trunk
    "ffn_dim": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": WINDOW,
    "init_std": 0.3,
    "layerdrop": 0.2,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", _GPT2),
    "llama": ("llama", {**_SIZES, "attention_dropout": 0.1}),
    "llama_tied": ("llama", {**_SIZES, "tie_word_embeddings": True}),
    "opt": ("opt", _OPT),
    # architectures with a scaling between the head and the logits
    "cohere": ("cohere", {**_SIZES, "logit_scale": 0.25}),
    "granite": ("granite", {**_SIZES, "logits_scaling": 4.0}),
    "gemma2": ("gemma2", {**_SIZES, "head_dim": 8, "final_logit_softcapping": 2.0}),
}


def make_model(folder: Path, name: str, **changes: Any) -> Path:
    """A model of `CONFIGS` with random weights, and a tokenizer of the words w0 … w36."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, options = CONFIGS[name]
    torch.manual_seed(7)
    lm = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **(options | changes)))
    with torch.no_grad():
        for parameter in lm.parameters():  # biases and norms begin at 0 and 1, where mistakes don't show
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    lm.save_pretrained(folder)
    word_tokenizer((f"w{i}" for i in range(VOCAB)), "w0", eos_token="w2").save_pretrained(folder)
    return folder


def rollout(
    lease_id: int,
    prompt: Sequence[int],
    answer: Sequence[int],
    reward: float = 0.0,
    *,
    logprobs: Sequence[float] | None = None,
    version: int = 0,
) -> Rollout:
    turn = Turn(
        observation=tuple(prompt),
        tokens=tuple(answer),
        text="",
        behavior_logprobs=tuple(logprobs or [-1.0] * len(answer)),
        weight_versions=(version,) * len(answer),
        reward=reward,
    )
    return Rollout(lease_id, lease_id, Prompt(f"p{lease_id}", ""), (turn,), FinishReason.STOP)


def random_rollouts(num: int, seed: int = 0) -> list[Rollout]:
    """Prompts of 1 … 9 tokens, answers of 1 … 12: very uneven rows, every third with a second turn."""
    rng = np.random.default_rng(seed)

    def draw(longest: int) -> list[int]:
        return rng.integers(0, VOCAB, rng.integers(1, longest + 1)).tolist()

    made = []
    for i in range(num):
        one = rollout(i, draw(9), draw(12), float(rng.normal()))
        if i % 3 == 0:
            second = rollout(i, draw(4), draw(5), float(rng.normal())).turns
            one = Rollout(i, i, one.prompt, one.turns + second, FinishReason.STOP)
        made.append(one)
    return made


def played(*turns: tuple[Sequence[int], Sequence[int], float | None, bool], lease_id: int = 0) -> Rollout:
    """Turns of (observation, answer, reward, whether it begins afresh)."""
    made = [
        replace(rollout(lease_id, seen, answer).turns[0], reward=reward, fresh=fresh)
        for seen, answer, reward, fresh in turns
    ]
    return replace(rollout(lease_id, (1,), (1,)), turns=tuple(made))


def games(num: int, seed: int = 0, *, always_fresh: bool = False) -> list[Rollout]:
    """One to four turns, growing and fresh ones mixed, of 1 … 7 tokens seen and 1 … 5 said; every third is
    cut off.
    """
    rng = np.random.default_rng([seed, 1])

    def draw(longest: int) -> list[int]:
        return rng.integers(0, VOCAB, rng.integers(1, longest + 1)).tolist()

    made = []
    for i in range(num):
        turns = [
            (draw(7), draw(5), float(rng.normal()), always_fresh or k == 0 or bool(rng.integers(2)))
            for k in range(rng.integers(1, 5))
        ]
        one = played(*turns, lease_id=i)
        made.append(replace(one, truncated_context=tuple(draw(9))) if i % 3 == 0 else one)
    return made


def make_pair(path: Path, logits_budget: int = 2**26, *, dropout: bool = False, **model: Any) -> ActorCritic:
    settings = ModelSettings(path=str(path), **model)
    return load_actor_critic(settings, logits_budget, torch.device("cpu"), drops_out=dropout)


def make_learner(
    path: Path,
    algorithm: Algorithm,
    *,
    seed: int = 0,
    iterations: int = 4,
    value_trunk: Literal["shared", "separate"] = "shared",
    gradient_checkpointing: bool = False,
    dropout: bool | None = False,
    sampling: Sampling = ANY_LENGTH,
    reference: Path | None = None,
    shares_gpu: bool = False,
    **settings: Any,
) -> Learner:
    return Learner(
        ModelSettings(
            path=str(path),
            reference=ReferenceSettings(path=None if reference is None else str(reference)),
            value_trunk=value_trunk,
            gradient_checkpointing=gradient_checkpointing,
            dropout=dropout,
        ),
        algorithm,
        LearnerSettings(**{"device": "cpu", **settings}),
        seed=seed,
        iterations=iterations,
        sampling=sampling,
        shares_gpu=shares_gpu,
    )


def whole(batch: Batch) -> MicroBatch:
    """All sequences of a batch as one micro-batch, in their own order."""
    return batch.part(range(batch.num_sequences))


def parts(batch: Batch, token_budget: int) -> Iterator[MicroBatch]:
    return micro_batches(batch, torch.arange(batch.num_rollouts), token_budget)


def plain_logits(lm: Any, one: Rollout) -> torch.Tensor:
    """Logits (N, V) before each of the model's tokens, by the model's own forward of this row alone."""
    logits_LV = lm(input_ids=torch.tensor([one.tokens]), use_cache=False).logits[0]
    return logits_LV[:-1][torch.tensor(one.loss_mask[1:], dtype=torch.bool)].float()


def plain_logprobs(lm: Any, one: Rollout) -> torch.Tensor:
    chosen = torch.tensor([token for turn in one.turns for token in turn.tokens])
    return plain_logits(lm, one).log_softmax(-1).gather(-1, chosen[:, None]).squeeze(-1)


def snapshot(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def perturb(module: nn.Module, size: float = 0.05, seed: int = 3) -> None:
    """Move every parameter a little, always by the same amount."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise.to(parameter.device), alpha=size)


def without_times(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}
