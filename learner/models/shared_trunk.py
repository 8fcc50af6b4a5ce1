"""Freeze a causal model's lower layers, and run them once for all models that differ only above them.

        tokens ─▶ embeddings, lower layers ─┬─▶ the policy's top layers ─▶ head
                    (one set of weights)    ├─▶ the reference's top layers: the policy's, before training
                                            └─▶ the top layers of NLPO's mask model or a critic's trunk

trlx's "hydra" models (`num_layers_unfrozen`; Havrilla et al. 2023, "trlX: A Framework for Large Scale
Reinforcement Learning from Human Feedback"), without a forward for each architecture.
"""

import copy
import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from contracts.errors import InputError
from learner.distributed.sharding import whole
from learner.models.policy import Policy
from learner.settings import ModelSettings

AnyModule = TypeVar("AnyModule", bound=nn.Module)


class SharedTrunk:
    """Frozen lower layers of a policy. They keep their last output for the next model on the same tokens.

    All that decides that output is frozen: also the embeddings, and a head that is tied to them. The
    transformers model runs layer by layer as usual. If the output for the same input tensors is stored, each
    frozen layer returns it instead of computing. The output lives as long as its inputs. So for each
    micro-batch one model runs the trunk and all others reuse it.

    Example: 12 layers, `trainable_layers=4`: layers 0 … 7 and the embeddings are frozen; `parameters` lists
    their weights. A reference by `copy_sharing_frozen` takes memory only for layers 8 … 11, norm and head.

    Raises:
        InputError: the model can't be split at that layer.
    """

    def __init__(self, policy: Policy, settings: ModelSettings) -> None:
        config = policy.lm.config
        if config.is_encoder_decoder:
            raise InputError(
                f"model.trainable_layers={settings.trainable_layers}: model type {config.model_type} is an "
                "encoder-decoder; expected a causal model, or leave it out to train all layers"
            )
        layers = decoder_layers(policy.lm)
        frozen = list(layers)[: len(layers) - settings.num_trained(len(layers))]
        self.parameters = _parameters_below(policy, frozen)
        for parameter in self.parameters:
            parameter.requires_grad_(False)
        self._inputs: tuple[weakref.ref[Tensor], ...] = ()
        self._output: Any = None  # as the layer returns it: a tensor or a tuple
        self._at_hand = False  # for the current forward
        policy.trunk.register_forward_pre_hook(self._enter, with_kwargs=True)
        for layer in frozen:
            setattr(layer, "forward", partial(self._run, layer, layer is frozen[-1]))  # noqa: B010
        self._check(policy)

    def __deepcopy__(self, memo: dict[int, Any]) -> "SharedTrunk":
        """Return the trunk itself, because copies of a model share it."""
        return self

    def _enter(self, _base: nn.Module, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Record, when a forward pass begins, whether it reads the same tensors as the last model did."""
        inputs = [tensor for tensor in (*args, *options.values()) if isinstance(tensor, Tensor)]
        known = [reference() for reference in self._inputs]
        self._at_hand = (
            self._output is not None
            and len(known) == len(inputs)
            and all(one is other for one, other in zip(known, inputs, strict=True))
        )
        if not self._at_hand:
            self._forget()
            self._inputs = tuple(weakref.ref(tensor, self._forget) for tensor in inputs)

    def _run(self, layer: nn.Module, is_last: bool, *args: Any, **options: Any) -> Any:
        """Run a frozen layer, or return the stored output of the trunk."""
        if self._at_hand:
            return self._output
        output = type(layer).forward(layer, *args, **options)
        if is_last:
            self._output = output
        return output

    def _forget(self, _reference: object = None) -> None:
        self._inputs, self._output = (), None

    @torch.no_grad()
    def _check(self, policy: Policy) -> None:
        """Check that the top layers give the same result on the stored output as in the whole model."""
        inputs = policy.probe_inputs(_probe(policy))
        whole, shared = (policy.trunk(**inputs).last_hidden_state for _ in range(2))
        if not self._at_hand or not torch.allclose(whole, shared, atol=1e-5, rtol=1e-5):
            raise _unsplittable(policy.lm, "its upper layers read more than the lower ones' output")


def copy_sharing_frozen(module: AnyModule) -> AnyModule:
    """Return a deep copy that shares the original's frozen parameters."""
    frozen = {id(parameter): parameter for parameter in module.parameters() if not parameter.requires_grad}
    return copy.deepcopy(module, frozen)


def decoder_layers(lm: Any) -> nn.ModuleList:
    """Return the model's list of layers, whatever its name and place.

    Raises:
        InputError: the model has no such list, or several.
    """
    count = getattr(lm.config.get_text_config(), "num_hidden_layers", None)
    lists: dict[str, nn.ModuleList] = {}
    for name, module in lm.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in lists)  # as experts are inside a layer
        if isinstance(module, nn.ModuleList) and len(module) == count and not inside:
            lists[name] = module
    if len(lists) != 1:
        raise _unsplittable(lm, f"it has {len(lists)} lists of {count} layers")
    return next(iter(lists.values()))


def _parameters_below(policy: Policy, frozen: list[nn.Module]) -> list[nn.Parameter]:
    """Return the frozen layers' parameters and all others on which their output depends, each once."""
    seen: list[Any] = []
    watch = frozen[-1].register_forward_hook(lambda _layer, _inputs, output: seen.append(output))
    with torch.enable_grad():
        policy.probe_states(_probe(policy))
    watch.remove()
    output = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
    below = [parameter for layer in frozen for parameter in layer.parameters()]
    return list({id(parameter): parameter for parameter in (*below, *_leaves(output))}.values())


def _leaves(output: Tensor) -> Iterator[nn.Parameter]:
    """Yield the parameters in a tensor's graph, without computing a gradient."""
    ahead, seen = [output.grad_fn], set()
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(leaf := getattr(node, "variable", None), nn.Parameter):
            yield leaf
        ahead.extend(before for before, _ in node.next_functions)


def _probe(policy: Policy) -> Tensor:
    return torch.arange(6, device=next(policy.parameters()).device) % policy.vocab_size


def _unsplittable(lm: Any, why: str) -> InputError:
    return InputError(
        f"model.trainable_layers: model type {lm.config.model_type} can't be split into a frozen trunk and "
        f"trained layers: {why}. Leave it out to train all layers"
    )


def fingerprint(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return one number for each parameter, so that a checkpoint detects other frozen layers.

    If parameters are sharded over ranks, all ranks must call this together.
    """
    sums = [whole(parameter.detach().double().abs().sum()).cpu() for parameter in parameters]
    return torch.stack(sums) if sums else torch.zeros(0, dtype=torch.float64)
