"""AdamW with the rates given at each step, and its state in files."""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from learner.distributed.ranks import ALONE
from learner.tensor_files import TensorFiles, write
from learner.training_service.spec import AdamParams

NAME = "optimizer"  # the file's name
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class Adam:
    """Optimiser of one model's parameters, by name."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self._torch = self._new()

    def _new(self) -> torch.optim.AdamW:
        fused = all(parameter.is_contiguous() for parameter in self._parameters.values())
        return torch.optim.AdamW(list(self._parameters.values()), lr=0.0, fused=fused)

    def step(self, params: AdamParams) -> float:
        """Move the parameters and clear the gradients; return the gradients' norm before clipping.

        If the norm is not finite, move nothing.
        """
        trained = [p for p in self._parameters.values() if p.grad is not None]
        most = params.grad_clip_norm if params.grad_clip_norm > 0 else math.inf
        norm = float(nn.utils.clip_grad_norm_(trained, most)) if trained else 0.0
        if math.isfinite(norm):
            for group in self._torch.param_groups:
                group["lr"], group["eps"] = params.learning_rate, params.eps
                group["betas"], group["weight_decay"] = (params.beta1, params.beta2), params.weight_decay
            self._torch.step()
        self.forget_gradients()
        return norm

    def forget_gradients(self) -> None:
        self._torch.zero_grad(set_to_none=True)

    def reset(self) -> None:
        """Start again without moments."""
        self._torch = self._new()

    def save(self, folder: Path) -> None:
        moments: dict[str, Tensor] = {
            f"{name}.{key}": self._torch.state[parameter][key]
            for name, parameter in self._parameters.items()
            if parameter in self._torch.state
            for key in MOMENTS
        }
        write(moments, folder, NAME, ALONE)

    def load(self, folder: Path) -> None:
        """Read the moments that `save` wrote."""
        files = TensorFiles.written(folder, NAME)
        self.reset()
        for name, parameter in self._parameters.items():
            if f"{name}.{MOMENTS[0]}" in files.shapes:
                read = {key: files.whole(f"{name}.{key}") for key in MOMENTS}
                self._torch.state[parameter] = {
                    key: tensor.to(parameter.device) for key, tensor in read.items()
                }
