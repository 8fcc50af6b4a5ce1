"""Train a reward model on labelled texts or pairs, by epochs of steps over micro-batches."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from contracts.errors import LearnerError
from learner.optimization.optimizer import build_optimizer, set_learning_rate
from learner.optimization.rate_schedule import schedule_factor
from learner.reward_models.batches import Example, RewardMicroBatch
from learner.reward_models.losses import balanced_weights, bradley_terry, cross_entropy
from learner.reward_models.model import RewardModel
from learner.reward_models.settings import RewardTraining


class RewardTrainer:
    """Owner of the optimiser and the count of steps; an epoch's order depends only on seed and epoch."""

    def __init__(self, model: RewardModel, examples: Sequence[Example], settings: RewardTraining) -> None:
        self.model, self.examples, self.settings = model, examples, settings
        self.is_pairwise = len(examples[0].sequences) == 2
        self.num_steps = settings.num_epochs * math.ceil(len(examples) / settings.batch_size)
        self.step = 0
        # Body and head take the places of policy and critic, each with a learning rate.
        self._optimizer = build_optimizer(_Roles(model.lm, settings), _Rates(settings))  # type: ignore[arg-type]
        self._weights_K: Tensor | None = None
        if settings.class_weights == "balanced" and not self.is_pairwise:
            labels_B = torch.tensor([int(example.target) for example in examples])
            self._weights_K = balanced_weights(labels_B, model.num_outputs).to(model.device)

    def epoch(self, number: int, advance: Callable[[int], None] = lambda n: None) -> dict[str, float]:
        """Train on all examples once; return the means over the steps of loss and gradient norm.

        Raises:
            LearnerError: the loss or a gradient is no longer finite.
        """
        self.model.lm.train()
        order = np.random.default_rng([self.settings.seed, number]).permutation(len(self.examples))
        losses, norms = [], []
        for start in range(0, len(order), self.settings.batch_size):
            batch = [self.examples[place] for place in order[start : start + self.settings.batch_size]]
            self.step += 1
            losses.append(self.accumulate(batch, advance))
            norms.append(self._apply())
        self.model.lm.eval()
        return {"loss": sum(losses) / len(losses), "gradient_norm": sum(norms) / len(norms)}

    def accumulate(self, batch: Sequence[Example], advance: Callable[[int], None] = lambda n: None) -> float:
        """Add up the gradients of one batch, however it is split into micro-batches; return its loss."""
        self._optimizer.zero_grad(set_to_none=True)
        divisor, total = self._divisor(batch), 0.0
        for micro in self.model.micro_batches(batch):
            with self._autocast():
                logits_NK = self.model.logits(micro.tokens_NL, micro.mask_NL)
            loss = self._loss(logits_NK, micro, divisor)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
            advance(len(micro.places))
        return total

    def _loss(self, logits_NK: Tensor, micro: RewardMicroBatch, divisor: float) -> Tensor:
        if not self.is_pairwise:
            return cross_entropy(
                logits_NK, micro.targets_B.long(), divisor=divisor, weights_K=self._weights_K
            )
        rewards_B2 = logits_NK.reshape(-1, 2)
        return bradley_terry(
            rewards_B2[:, 0],
            rewards_B2[:, 1],
            divisor=divisor,
            margins_B=micro.targets_B,
            centering=self.settings.centering,
        )

    def _divisor(self, batch: Sequence[Example]) -> float:
        if self._weights_K is None:
            return float(len(batch))
        return sum(float(self._weights_K[int(example.target)]) for example in batch)

    def _apply(self) -> float:
        """Clip the gradients and step; return the norm before clipping."""
        settings = self.settings
        norm = float(nn.utils.clip_grad_norm_(self.model.lm.parameters(), settings.max_grad_norm or math.inf))
        if not math.isfinite(norm):
            raise LearnerError(
                f"step {self.step}: the gradient is not finite (norm {norm}), so the step was not made. Try "
                f"a learning_rate= lower than {settings.learning_rate:g}"
            )
        warmup = round(settings.warmup_share * self.num_steps)
        factor = schedule_factor(settings.lr_schedule, self.step, self.num_steps, warmup)
        set_learning_rate(self._optimizer, factor)
        self._optimizer.step()
        return norm

    def _autocast(self) -> torch.autocast:
        wanted, device = self.settings.autocast, self.model.device.type
        enabled = wanted == "bfloat16" or (wanted == "auto" and device == "cuda")
        return torch.autocast(device, dtype=torch.bfloat16, enabled=enabled)


class _Roles:
    """View of a reward model for `build_optimizer`: its body is the policy, its head the critic."""

    def __init__(self, lm: Any, settings: RewardTraining) -> None:
        body = f"{lm.base_model_prefix}."
        self._named = list(lm.named_parameters())
        self._is_body = [name.startswith(body) for name, _ in self._named]

    def actor_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [pair for pair, is_body in zip(self._named, self._is_body, strict=True) if is_body]

    def critic_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [pair for pair, is_body in zip(self._named, self._is_body, strict=True) if not is_body]


class _Rates:
    """Adapter for `build_optimizer`: shows the reward model's settings as an algorithm's."""

    def __init__(self, settings: RewardTraining) -> None:
        self.optimizer = settings.optimizer
        self.learning_rate, self.critic_learning_rate = settings.learning_rate, settings.head_learning_rate
