"""Train models by name, one call after another: gradients add up until `optim_step`.

    create ─▶ forward_backward ─▶ forward_backward ─▶ … ─▶ optim_step ─▶ save | export

Only an adapter's start is random, and its spec has the seed. So on a CPU the same calls give the same bits,
even in a new process.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from contracts.errors import InputError
from learner.distributed.device import enter, pick_device
from learner.distributed.ranks import ALONE
from learner.models.language_models import load_language_model
from learner.models.policy import CausalPolicy, check_head, family
from learner.optimization.precision import Precision
from learner.settings import LearnerSettings, ModelSettings
from learner.tensor_files import TensorFiles, write
from learner.training_service.adam import Adam
from learner.training_service.data import Datum
from learner.training_service.holdings import Adapters, Copies, Holding
from learner.training_service.losses import Config, Limits
from learner.training_service.passes import Result, run_loss
from learner.training_service.spec import AdamParams, ModelSpec, StepReport

WEIGHTS = "weights"  # name of the file


class Trainer:
    """Trainer of models on one base.

    Args:
        path: the base: a folder in Hugging Face format, or a hub name.
        trains_whole: whether each model is a whole copy of the base; otherwise it is an adapter.

    Raises:
        InputError: the base is an encoder-decoder, or its head is not supported.
    """

    def __init__(self, path: str, *, trains_whole: bool) -> None:
        settings = LearnerSettings()
        device = pick_device(settings)
        enter(device)
        lm: Any = load_language_model(ModelSettings(path=path), device).to(device)
        if family(lm) is not CausalPolicy:
            raise InputError(
                f"{path}: a training service trains causal models, and this is an encoder-decoder"
            )
        policy = CausalPolicy(lm, 1)
        check_head(policy)
        self._limits = Limits(policy.vocab_size, getattr(lm.config, "max_position_embeddings", None))
        self._precision, self._budget = Precision(settings, device), settings.token_budget
        self._holding: Holding = Copies(lm, _tokenizer(path)) if trains_whole else Adapters(lm)
        self._optimizers: dict[str, Adam] = {}

    def read_limits(self) -> Limits:
        return self._limits

    def create(self, name: str, spec: ModelSpec) -> None:
        """Add a model that starts as the base, or start it again.

        Raises:
            InputError: the adapter can't be made.
        """
        self.forget(name)
        self._holding.add(name, spec)
        self._optimizers[name] = Adam(self._holding.parameters(name))

    def forget(self, name: str) -> None:
        if self._optimizers.pop(name, None) is not None:
            self._holding.remove(name)

    def forward_backward(
        self, name: str, data: Sequence[Datum], loss: str, config: Config, *, backward: bool
    ) -> Result:
        """Return the targets' log-probabilities and the summed loss; add its gradients if asked."""
        with self._holding.use(name) as policy:
            return run_loss(
                policy,
                data,
                loss,
                config,
                backward=backward,
                precision=self._precision,
                token_budget=self._budget,
            )

    def optim_step(self, name: str, params: AdamParams) -> StepReport:
        return StepReport(self._optimizers[name].step(params))

    def save(self, name: str, folder: Path) -> None:
        """Write weights and moments, but no gradients, into an existing folder."""
        write(self._parameters(name), folder, WEIGHTS, ALONE)
        self._optimizers[name].save(folder)

    def load(self, name: str, folder: Path, *, with_optimizer: bool) -> None:
        """Read weights and, if asked, moments; clear the gradients.

        Raises:
            InputError: the files belong to another model or rank.
        """
        files = TensorFiles.written(folder, WEIGHTS)
        self._holding.load(name, {key: files.whole(key) for key in files.shapes})
        optimizer = self._optimizers[name]
        optimizer.forget_gradients()
        if with_optimizer:
            optimizer.load(folder)
        else:
            optimizer.reset()

    def export(self, name: str, folder: Path) -> None:
        """Write what an engine reads into an existing folder."""
        self._holding.export(name, folder)

    def _parameters(self, name: str) -> Mapping[str, torch.Tensor]:
        return self._holding.parameters(name)


def _tokenizer(path: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
