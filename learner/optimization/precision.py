"""Number formats of the learner's products and parameters, and the loss scale that float16 needs.

float16 has no number below 6e-8, where most gradients of a language model lie. Micikevicius et al., "Mixed
Precision Training" (ICLR 2018), multiply the loss, divide the gradients, and make no step if a gradient is
infinite. They go on with the next batch. Whetstone repeats the minibatch with a smaller scale, because
rollouts are expensive.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from learner.algorithms.base import Algorithm
from learner.optimization.number_formats import autocast_of, keeps_masters
from learner.settings import LearnerSettings, ModelSettings

Norms = TypeVar("Norms")
LEAST_SCALE = 1.0  # at this scale, overflow is no longer the reason for a gradient that is not finite


class Precision:
    """Precision of one learner; `learner.autocast` names it."""

    def __init__(self, settings: LearnerSettings, device: torch.device) -> None:
        wanted = autocast_of(settings, on_gpu=device.type == "cuda")
        self._settings, self._device = settings, device.type
        self._dtype = None if wanted == "none" else getattr(torch, wanted)
        self._scaler = GradScaler(device.type, enabled=wanted == "float16")

    @property
    def rounds(self) -> bool:
        """Return whether products have fewer than 32 bits."""
        return self._dtype is not None

    @property
    def rounds_whole_models(self) -> bool:
        """Return whether products are in bfloat16 and no rank or offloaded layer shares float32 rows."""
        is_alone = self._settings.num_processes == 1 and not self._settings.offload
        return self._dtype == torch.bfloat16 and is_alone

    def keeps_masters(self, model: ModelSettings, algorithm: Algorithm) -> bool:
        """Return whether the policy has bfloat16 parameters with float32 masters; see `keeps_masters`."""
        return keeps_masters(self._settings, model, algorithm, on_gpu=self._device == "cuda")

    @property
    def is_scaled(self) -> bool:
        return bool(self._scaler.is_enabled())

    def autocast(self) -> torch.autocast:
        return torch.autocast(self._device, dtype=self._dtype or torch.bfloat16, enabled=self.rounds)

    def backward(self, loss: Tensor) -> None:
        """Add the loss's gradients, scaled until `step`."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: torch.optim.Optimizer, clip: Callable[[], Norms]) -> Norms | None:
        """Unscale the gradients, clip them and step; return what `clip` returns.

        Return None if a scaled gradient overflowed. Then no weight changes, and the scale halves.

        Raises:
            LearnerError: from `clip`, if a gradient is not finite even at the least scale.
        """
        if not self.is_scaled:
            norms = clip()
            optimizer.step()
            return norms
        self._scaler.unscale_(optimizer)
        gradients = [
            p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None
        ]
        is_finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
        scaled_norms = clip() if is_finite or self._scaler.get_scale() <= LEAST_SCALE else None
        self._scaler.step(optimizer)
        self._scaler.update()
        return scaled_norms

    def metrics(self, num_repeated: int) -> dict[str, float]:
        """Return the scale and the number of repeated minibatches; {} without a scale."""
        if not self.is_scaled:
            return {}
        return {
            "update/loss_scale": self._scaler.get_scale(),
            "update/repeated_minibatches": float(num_repeated),
        }

    def state(self) -> dict[str, Any]:
        return dict(self._scaler.state_dict())

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a saved scale; a checkpoint of another precision has none."""
        if state and self.is_scaled:
            self._scaler.load_state_dict(state)
