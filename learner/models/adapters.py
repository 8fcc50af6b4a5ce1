"""Train low-rank adapters beside a model's frozen weights; the same model without them is the reference.

    W x  +  (lora_alpha / r) · B (A x)        W frozen; A (r × in) and B (out × r) train; B is 0 at first

peft puts A and B into the model's own layers, so the model keeps its transformers class. The reference
policy is the same model with the adapter switched off; where an adapter is trained further, with a frozen
copy of the matrices with which it started.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from contracts.errors import InputError
from learner.batching import MicroBatch
from learner.functional.logprobs import WHOLE, Restriction
from learner.models.adapter_settings import AdapterSettings
from learner.models.dropout import evaluating
from learner.models.merged_weights import ADAPTER
from learner.models.policy import Policy

START = "start"  # peft's name of the frozen copy of an adapter that is trained further


class Adapter:
    """Adapter of one language model: the matrices beside its layers.

    Raises:
        InputError: peft is not installed, or a named layer does not exist, is not linear, or is the head; or
            the adapter that is trained further is of another model.
    """

    def __init__(self, lm: Any, settings: AdapterSettings) -> None:
        settings.check_installed()
        self._goes_on = settings.path is not None
        self._model: Any = _continued(lm, settings) if self._goes_on else _new(lm, settings)
        self._layers = _layers(lm, settings)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Return to the start inside the context; graphs built before can still run backward."""
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

        config = self._model.peft_config[ADAPTER]
        named = (
            config.target_modules if isinstance(config.target_modules, str) else sorted(config.target_modules)
        )
        told = {"peft_type": "LORA", "r": config.r, "lora_alpha": config.lora_alpha, "target_modules": named}
        if config.use_rslora:
            told["use_rslora"] = True
        return told, get_peft_model_state_dict(self._model, save_embedding_layers=False)

    def save(self, folder: Path) -> None:
        """Save the adapter in peft's format: adapter_config.json and adapter_model.safetensors."""
        self._model.save_pretrained(folder, save_embedding_layers=False, selected_adapters=[ADAPTER])

    def check_trains_alone(self, policy: Policy) -> None:
        """Refuse a policy that trains more than the adapter: without the adapter it is no reference.

        Raises:
            InputError: other parameters train; the message names one.
        """
        own = {id(parameter) for layer in self._layers for parameter in layer.parameters()}
        others = [name for name, p in policy.named_parameters() if p.requires_grad and id(p) not in own]
        if others:
            raise InputError(
                f"model.adapter trains the adapter alone, and {type(policy).__name__} has parameters of its "
                f"own that train ({others[0]}): leave out model.adapter.kind, or freeze them"
            )


class WithoutAdapter(Policy):
    """Policy with its adapter switched off; it serves as reference and needs no second model in memory.

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


def _new(lm: Any, settings: AdapterSettings) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules=_named(settings),
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in lm.modules()),  # GPT-2's
        task_type="SEQ_2_SEQ_LM" if lm.config.is_encoder_decoder else "CAUSAL_LM",
    )
    try:
        return get_peft_model(lm, config)
    except ValueError as error:
        raise InputError(f"model.adapter.target_modules={settings.target_modules}: {error}") from None


def _continued(lm: Any, settings: AdapterSettings) -> Any:
    """Return peft's model with the adapter of `settings.path` twice: to train, and as it started."""
    from peft import PeftConfig

    from contracts.adapters.applied import embedding_rows, put_on

    assert settings.path is not None, "only an adapter that is there goes on"
    folder, told = Path(settings.path), f"model.adapter.path={settings.path}"
    if embedding_rows(lm, folder) is not None:
        raise InputError(
            f"{told} brings embeddings of its own, which are not trained further. model.merge=true with "
            f"model.path={settings.path} merges it first"
        )
    config = PeftConfig.from_pretrained(settings.path)
    config.lora_dropout, config.inference_mode = settings.lora_dropout, False
    model = put_on(lm, folder, told, config=config, is_trainable=True)
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
    ends = (lm.get_output_embeddings(), lm.get_input_embeddings())
    for name, layer in named_layers:
        if layer in ends or type(layer).__name__ not in ("Linear", "Linear4bit"):
            raise InputError(
                f"model.adapter.target_modules={settings.target_modules} names {name}, "
                f"a {type(layer.get_base_layer()).__name__}; expected linear layers between embedding "
                "and head"
            )
    return [layer for _, layer in named_layers]
