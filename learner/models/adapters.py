"""Train low-rank adapters beside a model's frozen weights; the model without them is the reference.

    W x  +  (lora_alpha / r) · B (A x)        W frozen; A (r × in) and B (out × r) train; B is 0 at first

peft puts A and B into the model's layers, so the model keeps its transformers class. The reference policy is
the same model with the adapter switched off. If an adapter is trained further, the reference has a frozen
copy of its first matrices.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from contracts.errors import InputError
from learner.batches.batching import MicroBatch
from learner.distributed.sharding import whole
from learner.functional.logprobs import WHOLE, Restriction
from learner.models.adapter_settings import AdapterSettings
from learner.models.dropout import evaluating
from learner.models.merged_weights import ADAPTER, matrices_of
from learner.models.policy import Policy

START = "start"  # peft's name of the frozen copy of an adapter that is trained further


class Adapter:
    """Adapter of one language model: the matrices beside its layers.

    Raises:
        InputError: peft is not installed; a named layer does not exist, is not linear, or is the head; or the
            adapter to train further belongs to another model.
    """

    def __init__(self, lm: Any, settings: AdapterSettings) -> None:
        settings.check_installed()
        self._goes_on = settings.path is not None
        self._model: Any = _continued(lm, settings) if self._goes_on else _new(lm, settings)
        self._layers = _layers(lm, settings)

    def off(self) -> AbstractContextManager[None]:
        """Restore the start inside the context; graphs built before can still run backward."""
        return self._off()

    @contextmanager
    def _off(self) -> Iterator[None]:
        self._switch(on=False)
        try:
            yield
        finally:
            self._switch(on=True)

    def _switch(self, *, on: bool) -> None:
        for layer in self._layers:
            if self._goes_on:
                layer.set_adapter([ADAPTER if on else START], inference_mode=not on)
            else:
                layer.enable_adapters(on)

    def published(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return two values by peft's names: the server's configuration, and the matrices.

        The matrices have the shapes (rank, inputs) and (outputs, rank).
        """
        from peft import get_peft_model_state_dict

        config = served_config(self._model.peft_config[ADAPTER])
        return config, get_peft_model_state_dict(self._model, save_embedding_layers=False)

    def save(self, folder: Path, *, writes: bool = True) -> None:
        """Save the adapter in peft's format: adapter_config.json and adapter_model.safetensors.

        Args:
            writes: whether this rank writes; others only take part.
        """
        ids = matrices_of(self._model)
        matrices = {name: whole(p.detach()) for name, p in self._model.named_parameters() if id(p) in ids}
        if writes:
            options = {"save_embedding_layers": False, "selected_adapters": [ADAPTER]}
            self._model.save_pretrained(folder, state_dict=matrices, **options)

    def own(self) -> set[int]:
        """Return the `id()`s of the parameters in this adapter's layers."""
        return {id(parameter) for layer in self._layers for parameter in layer.parameters()}

    def others(self) -> set[int]:
        """Return the `id()`s of other adapters' matrices, which train separately."""
        return set()

    def check_trains_alone(self, policy: Policy) -> None:
        """Refuse a policy that trains more than the adapter; without the adapter it is no reference.

        Raises:
            InputError: other parameters train; the message names one.
        """
        matrices = self.own()
        others = [name for name, p in policy.named_parameters() if p.requires_grad and id(p) not in matrices]
        if others:
            raise InputError(
                f"model.adapter trains the adapter alone, and {type(policy).__name__} has parameters of its "
                f"own that train ({others[0]}): leave out model.adapter.kind, or freeze them"
            )


class WithoutAdapter(Policy):
    """Policy with its adapter switched off, as a reference without a second model in memory.

    The reference has no dropout, even while the policy trains with it.
    """

    def __init__(self, policy: Policy, adapter: Adapter) -> None:
        super().__init__(policy.lm, policy.logits_budget)
        self.policy, self._adapter = policy, adapter

    def states(self, micro: MicroBatch, trunk: nn.Module | None = None) -> Tensor:
        with self._adapter.off(), evaluating(self.policy):
            return self.policy.states(micro, trunk)

    def probe_inputs(self, tokens_L: Tensor) -> dict[str, Any]:
        return self.policy.probe_inputs(tokens_L)

    def probe_states(self, tokens_L: Tensor) -> Tensor:
        with self._adapter.off(), evaluating(self.policy):
            return self.policy.probe_states(tokens_L)

    def logits(self, hidden_NH: Tensor) -> Tensor:
        with self._adapter.off():
            return self.policy.logits(hidden_NH)

    def evaluate(
        self, hidden_NH: Tensor, micro: MicroBatch, with_entropy: bool, restriction: Restriction = WHOLE
    ) -> tuple[Tensor, Tensor | None]:
        with self._adapter.off():
            return self.policy.evaluate(hidden_NH, micro, with_entropy, restriction)


def served_config(config: Any) -> dict[str, Any]:
    """Return the part of peft's configuration that a server reads."""
    modules = config.target_modules
    named = modules if isinstance(modules, str) else sorted(modules)
    config_served = {
        "peft_type": "LORA",
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "target_modules": named,
    }
    return config_served | ({"use_rslora": True} if config.use_rslora else {})


def lora_config(lm: Any, settings: AdapterSettings) -> Any:
    """Return peft's configuration of a new adapter for a model."""
    from peft import LoraConfig

    return LoraConfig(
        r=settings.r,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules=_named(settings),
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in lm.modules()),  # in GPT-2
        task_type="SEQ_2_SEQ_LM" if lm.config.is_encoder_decoder else "CAUSAL_LM",
    )


def _new(lm: Any, settings: AdapterSettings) -> Any:
    from peft import get_peft_model

    config = lora_config(lm, settings)
    try:
        return get_peft_model(lm, config)
    except ValueError as error:
        raise InputError(f"model.adapter.target_modules={settings.target_modules}: {error}") from None


def _continued(lm: Any, settings: AdapterSettings) -> Any:
    """Return peft's model with two copies of the adapter of `settings.path`: one to train, one frozen."""
    from peft import PeftConfig

    from contracts.adapters.applied import embedding_rows, put_on

    assert settings.path is not None, "only an existing adapter can train further"
    folder, origin = Path(settings.path), f"model.adapter.path={settings.path}"
    if embedding_rows(lm, folder) is not None:
        raise InputError(
            f"{origin} has embeddings, which can't be trained further. model.merge=true with "
            f"model.path={settings.path} merges it first"
        )
    config = PeftConfig.from_pretrained(settings.path)
    config.lora_dropout, config.inference_mode = settings.lora_dropout, False
    model = put_on(lm, folder, origin, config=config, is_trainable=True)
    model.load_adapter(settings.path, START, is_trainable=False)
    config.base_model_name_or_path = lm.name_or_path
    return model


def _named(settings: AdapterSettings) -> str | list[str]:
    named = settings.target_modules
    return named if isinstance(named, str) else list(named)


def _layers(lm: Any, settings: AdapterSettings) -> list[Any]:
    """Return the layers that have an adapter now.

    Raises:
        InputError: a layer is not linear, or is the head or the embedding, which may share one weight.
    """
    from peft.tuners.lora import LoraLayer

    named_layers = [(name, module) for name, module in lm.named_modules() if isinstance(module, LoraLayer)]
    check_layers(lm, settings, named_layers)
    return [layer for _, layer in named_layers]


def check_layers(lm: Any, settings: AdapterSettings, named_layers: Iterable[tuple[str, Any]]) -> None:
    """Refuse an adapter of a layer that is not linear, or is the head or the embedding."""
    ends = (lm.get_output_embeddings(), lm.get_input_embeddings())
    for name, layer in named_layers:
        if layer in ends or type(layer).__name__ not in ("Linear", "Linear4bit"):
            raise InputError(
                f"model.adapter.target_modules={settings.target_modules} names {name}, "
                f"a {type(layer.get_base_layer()).__name__}; expected linear layers between embedding "
                "and head"
            )
