"""Hold several LoRA adapters beside one frozen model: one for each role, session or seed.

    adapters = NamedAdapters(lm)
    adapters.add("solver", settings, seed=0)          # with separate A, B (which is 0), dropout and rank
    with adapters.use("solver"):                      # the model computes with it, and only it trains
        loss(lm(…)).backward()
    with adapters.use(None): …                        # the base, as reference

A name changes only its matrices. An adapter starts from its seed, whichever adapters exist. Outside of `use`
the model is its base. Only one thread at a time may use a model.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from contracts.errors import InputError
from learner.models.adapter_settings import AdapterSettings
from learner.models.adapters import Adapter, check_layers, lora_config, served_config

PREFIX = "base_model.model."  # stands before the names of peft's files
MATRICES = ("lora_A", "lora_B")


class NamedAdapters:
    """Named adapters of one language model, whose weights are frozen.

    Args:
        lm: a transformers model. Layers with an adapter are wrapped in place; it keeps its class.
    """

    def __init__(self, lm: Any) -> None:
        self.lm = lm.requires_grad_(False)
        self._model: Any = None  # peft's model, from the first adapter on
        self._inner: dict[str, str] = {}  # peft's names, which may hold no dot and be no method of a dict
        self._count = 0
        self._used: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._inner)

    @property
    def used(self) -> str | None:
        """Return the name of the adapter in use; None: the model computes as its base."""
        return self._used

    def add(self, name: str, settings: AdapterSettings, seed: int) -> None:
        """Add a new adapter, which changes nothing at first.

        Raises:
            InputError: the name is taken, peft is not installed, or a named layer can't have an adapter.
        """
        if name in self._inner:
            raise InputError(f"adapter {name!r} exists; expected a new name beside {self._listed()}")
        if settings.kind != "lora" or settings.path is not None:
            raise InputError(
                f"adapter {name!r}: got kind={settings.kind}, path={settings.path}; expected kind=lora "
                "and no path"
            )
        settings.check_installed()
        inner = f"named{self._count}_"
        self._count += 1
        with torch.random.fork_rng():  # peft draws A from torch's generators
            torch.manual_seed(seed)
            try:
                self._put_on(inner, lora_config(self.lm, settings))
                check_layers(self.lm, settings, self._layers(inner).items())
            except BaseException as error:  # such as lack of memory; remove what is half made
                self._take_off(inner)
                self.switch(self._used)
                if not isinstance(error, ValueError) or isinstance(error, InputError):
                    raise
                raise InputError(f"model.adapter.target_modules={settings.target_modules}: {error}") from None
        self._inner[name] = inner
        self.switch(self._used)

    def remove(self, name: str) -> None:
        """Remove an adapter and its memory; layers without an adapter are again the base's layers.

        Raises:
            InputError: there is no such adapter, or it is in use.
        """
        self._named(name)
        if self._used == name:
            raise InputError(f"adapter {name!r} is in use; remove it outside of `use`")
        self._take_off(self._inner.pop(name))
        self.switch(self._used)

    @contextmanager
    def use(self, name: str | None) -> Iterator[None]:
        """Compute with the named adapter inside the context; None: with the base.

        Gradients go only to that adapter's matrices, and stay there while another is used.

        Raises:
            InputError: there is no such adapter.
        """
        before = self._used
        self.switch(name)
        try:
            yield
        finally:
            self.switch(before)

    def parameters(self, name: str) -> list[nn.Parameter]:
        """Return the adapter's matrices, layer by layer: A (rank, inputs), then B (outputs, rank)."""
        return list(self.named_parameters(name).values())

    def named_parameters(self, name: str) -> dict[str, nn.Parameter]:
        """Return the adapter's matrices by their names in peft's files.

        Raises:
            InputError: there is no such adapter.
        """
        inner = self._named(name)
        return {
            f"{PREFIX}{path}.{kind}.weight": getattr(layer, kind)[inner].weight
            for path, layer in self._layers(inner).items()
            for kind in MATRICES
        }

    def state(self, name: str) -> dict[str, Tensor]:
        """Return copies of the adapter's matrices."""
        return {key: p.detach().clone() for key, p in self.named_parameters(name).items()}

    @torch.no_grad()
    def load(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Fill the adapter's matrices; an optimiser keeps the same parameters.

        Raises:
            InputError: there is no such adapter, or the matrices belong to another; then none has changed.
        """
        parameters = self.named_parameters(name)
        expected = {key: tuple(p.shape) for key, p in parameters.items()}
        got = {key: tuple(tensor.shape) for key, tensor in state.items()}
        odd = sorted(key for key in expected.keys() | got.keys() if expected.get(key) != got.get(key))
        if odd:
            raise InputError(
                f"adapter {name!r}: {odd[0]} has shape {got.get(odd[0])}; expected {expected.get(odd[0])}"
                f"{f', and {len(odd) - 1} more differ' if odd[1:] else ''}. It has another rank or model"
            )
        for key, parameter in parameters.items():
            parameter.copy_(state[key])

    def config(self, name: str) -> dict[str, Any]:
        """Return the part of the adapter's configuration that a server reads."""
        return served_config(self._model.peft_config[self._named(name)])

    def save(self, name: str, folder: Path) -> None:
        """Save the adapter in peft's format: adapter_config.json and adapter_model.safetensors."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        state = {key: tensor.contiguous().cpu() for key, tensor in self.state(name).items()}
        save_file(state, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        self._model.peft_config[self._named(name)].save_pretrained(folder)

    def _named(self, name: str) -> str:
        if name not in self._inner:
            raise InputError(f"there is no adapter {name!r}; expected one of {self._listed()}")
        return self._inner[name]

    def _listed(self) -> str:
        return ", ".join(sorted(self._inner)) or "none, because none was added"

    def switch(self, name: str | None) -> None:
        """Compute with the named adapter from now on; None: with the base.

        Raises:
            InputError: there is no such adapter.
        """
        inner = None if name is None else self._named(name)
        for layer in self._layers(None).values():
            layer.enable_adapters(inner is not None)
            layer.set_adapter([] if inner is None else [inner])
        self._used = name

    def _put_on(self, inner: str, config: Any) -> None:
        from peft import get_peft_model

        config.base_model_name_or_path = self.lm.name_or_path  # where a server finds the base
        if self._model is None:
            self._model = get_peft_model(self.lm, config, adapter_name=inner)
        else:
            self._model.add_adapter(inner, config)

    def _take_off(self, inner: str) -> None:
        for path, layer in self._layers(None).items():
            layer.set_adapter([])
            layer.delete_adapter(inner)
            if not layer.lora_A:
                self.lm.set_submodule(path, layer.get_base_layer())
        if self._model is None:
            vars(self.lm).pop("peft_config", None)  # left by the first adapter, which could not be made
        else:
            self._model.peft_config.pop(inner, None)
            self._model.base_model.active_adapter = []  # as peft does; `switch` sets the adapter in use

    def _layers(self, inner: str | None) -> dict[str, Any]:
        """Return, by path, the layers with this adapter; None: the layers with any adapter."""
        from peft.tuners.lora import LoraLayer

        return {
            path: module
            for path, module in self.lm.named_modules()
            if isinstance(module, LoraLayer) and (inner is None or inner in module.lora_A)
        }


@dataclass(frozen=True, slots=True)
class Role:
    """Role that a learner trains, and objects shared with other roles' learners; None: make new ones.

    Example, the second of two: `Role("con", seed=7, adapters=first.adapters, ranks=first.ranks)`
    """

    name: str
    seed: int  # draws the first weights of its adapter and its critic
    adapters: NamedAdapters | None = None
    ranks: Any = None  # learner.distributed.ranks.Ranks


class RoleAdapter(Adapter):
    """Adapter of one role, instead of a model's only adapter. Its learner works while it is in use."""

    def __init__(self, lm: Any, settings: AdapterSettings, role: Role) -> None:
        self.name = role.name
        self.adapters = role.adapters or NamedAdapters(lm)
        self.adapters.add(role.name, settings, role.seed)
        self.adapters.switch(role.name)

    def off(self) -> AbstractContextManager[None]:
        return self.adapters.use(None)

    def published(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return self.adapters.config(self.name), dict(self.adapters.named_parameters(self.name))

    def save(self, folder: Path, *, writes: bool = True) -> None:
        """Save the adapter in peft's format in a subfolder of `folder` with its name."""
        if writes:
            self.adapters.save(self.name, folder / self.name)

    def own(self) -> set[int]:
        return set(map(id, self.adapters.parameters(self.name)))

    def others(self) -> set[int]:
        names = set(self.adapters.names) - {self.name}
        return {id(parameter) for name in names for parameter in self.adapters.parameters(name)}
