"""Models that a trainer holds on one base: named adapters, or whole copies."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from contracts.errors import InputError
from learner.models.merged_weights import save_merged
from learner.models.named_adapters import NamedAdapters
from learner.models.policy import Policy, family
from learner.training_service.adapter_layers import adapter_settings, linear_layers
from learner.training_service.spec import ModelSpec

BUDGET = 2**24  # logits held at once


class Holding(Protocol):
    """Models by name, on one base."""

    def add(self, name: str, spec: ModelSpec) -> None: ...

    def remove(self, name: str) -> None: ...

    def parameters(self, name: str) -> Mapping[str, nn.Parameter]: ...

    def use(self, name: str) -> Any:
        """Return a context in which the model computes; its value is the model's policy."""
        ...

    def load(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Fill the parameters.

        Raises:
            InputError: the state belongs to another model or rank.
        """
        ...

    def export(self, name: str, folder: Path) -> None:
        """Write what an engine reads: an adapter in peft's format, or a model in Hugging Face's."""
        ...


class Adapters:
    """Adapters of one frozen model."""

    def __init__(self, lm: Any) -> None:
        self._layers = linear_layers(lm)
        self._policy = family(lm)(lm, BUDGET)
        self._adapters = NamedAdapters(lm)

    def add(self, name: str, spec: ModelSpec) -> None:
        self._adapters.add(name, adapter_settings(spec, self._layers), spec.seed)

    def remove(self, name: str) -> None:
        self._adapters.remove(name)

    def parameters(self, name: str) -> Mapping[str, nn.Parameter]:
        return self._adapters.named_parameters(name)

    @contextmanager
    def use(self, name: str) -> Iterator[Policy]:
        with self._adapters.use(name):
            yield self._policy

    def load(self, name: str, state: Mapping[str, Tensor]) -> None:
        self._adapters.load(name, state)

    def export(self, name: str, folder: Path) -> None:
        self._adapters.save(name, folder)


class Copies:
    """Copies of one model; each trains all its weights."""

    def __init__(self, lm: Any, tokenizer: Any) -> None:
        self._base, self._tokenizer = lm.requires_grad_(False), tokenizer
        self._policies: dict[str, Policy] = {}

    def add(self, name: str, spec: ModelSpec) -> None:
        lm = copy.deepcopy(self._base).requires_grad_(True)
        self._policies[name] = family(lm)(lm, BUDGET)

    def remove(self, name: str) -> None:
        del self._policies[name]

    def parameters(self, name: str) -> Mapping[str, nn.Parameter]:
        return dict(self._policies[name].lm.named_parameters())

    @contextmanager
    def use(self, name: str) -> Iterator[Policy]:
        yield self._policies[name]

    @torch.no_grad()
    def load(self, name: str, state: Mapping[str, Tensor]) -> None:
        parameters = self.parameters(name)
        odd = sorted(
            key
            for key in parameters.keys() | state.keys()
            if key not in state or key not in parameters or state[key].shape != parameters[key].shape
        )
        if odd:
            raise InputError(
                f"the checkpoint does not fit the model: {odd[0]} differs, and {len(odd) - 1} more. It is of "
                "another base, or of an adapter"
            )
        for key, parameter in parameters.items():
            parameter.copy_(state[key])

    def export(self, name: str, folder: Path) -> None:
        lm = self._policies[name].lm
        lm.config.save_pretrained(folder)
        lm.generation_config.save_pretrained(folder)
        self._tokenizer.save_pretrained(folder)
        save_merged(lm, folder)
