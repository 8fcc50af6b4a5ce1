"""Load pushed weights straight into the layout of vLLM's kernels.

    first push     vLLM's own reload, watched      where does each tensor go?
                   the same push, directly         is every layer the same to the bit?
    later pushes   directly: views of the pushed arrays are copied or, on a CPU, packed for oneDNN, once

vLLM's reload makes every layer anew, fills it, packs it and copies it back. Here nothing lies between the
pushed arrays and the kernels, except one block in which a matrix is joined from several arrays. Layers that
the watched load does not explain (quantized layers, experts, other kernels) are reloaded by vLLM.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rollout_workers.weights.load_recording import LoadRecording, Region, Target

LOG = logging.getLogger(__name__)
CHECKED_ROWS = 3  # a packed matrix can't be read, so its products with some rows are compared

Tensors = Mapping[str, Tensor]
Reload = Callable[[nn.Module, Tensors], None]


class DirectLoader:
    """Loader of one vLLM model in this process.

    Args:
        reload: vLLM's reload.
    """

    def __init__(self, model: nn.Module, reload: Reload) -> None:
        self._model, self._reload = model, reload
        self._targets: dict[tuple[nn.Module, str], Target] = {}
        self._of_source: dict[str, list[Target]] = {}
        self.unfit = _unfit_model(model)  # why every push is reloaded by vLLM, or None
        self._joined = torch.empty(0)
        self.num_direct = 0  # pushes that were loaded directly

    @torch.no_grad()
    def load(self, tensors: Tensors) -> None:
        """Replace the given weights, directly if that is known to give the same result."""
        if self.unfit is None and self._knows(tensors):
            self._load(self._touched(tensors), tensors)
            self.num_direct += 1
        elif self.unfit is None:
            self._learn(tensors)
        else:
            self._reload(self._model, tensors)

    def _knows(self, tensors: Tensors) -> bool:
        """Return whether these tensors were seen before, and fill each matrix that they touch."""
        return all(name in self._of_source for name in tensors) and all(
            target.sources <= tensors.keys() for target in self._touched(tensors)
        )

    def _touched(self, tensors: Tensors) -> list[Target]:
        targets = {id(target): target for name in tensors for target in self._of_source[name]}
        return list(targets.values())

    def _load(self, targets: Sequence[Target], tensors: Tensors) -> None:
        plain = list[tuple[Tensor, Tensor]]()  # (to write, to read)
        for target in targets:
            if _is_packed(target.layer, target.parameter):
                _pack(target.layer, self._matrix(target, tensors))
            else:
                plain += _copies(target, target.layer.get_parameter(target.parameter), tensors)
        if plain:  # in one call, because for hundreds of copies a GPU's calls take longer than the bytes
            written, read = map(list, zip(*plain, strict=True))
            torch._foreach_copy_(written, read)
        for layer in _heads_of(self._model, targets):
            _pack_head(layer)

    def _matrix(self, target: Target, tensors: Tensors) -> Tensor:
        """Return the matrix to pack: a view of its array, or several arrays joined."""
        first = target.copies[0]
        as_it_is = first.written == Region.whole(target.shape) and tensors[first.source].dtype == target.dtype
        if len(target.copies) == 1 and as_it_is:
            return first.read.of(tensors[first.source])
        count = target.shape.numel()
        if self._joined.numel() < count or self._joined.dtype != target.dtype:
            self._joined = torch.empty(count, dtype=target.dtype)
        matrix = self._joined[:count].view(target.shape)
        _fill(target, matrix, tensors)
        return matrix

    # ---- the first push ----

    def _learn(self, tensors: Tensors) -> None:
        """Load by vLLM's reload, record the place of each tensor, and try to load directly at once."""
        recording = LoadRecording(self._model, tensors)
        with recording:
            self._reload(self._model, tensors)
        targets = recording.targets
        self.unfit = _unfit(recording, targets) or self._difference_or_failure(targets, tensors)
        if self.unfit is not None:
            self._reload(self._model, tensors)  # over the direct load's writes
            LOG.warning("weights are loaded by vLLM's reload, which is slower: %s", self.unfit)
            return
        for target in targets:
            self._targets[target.layer, target.parameter] = target
        self._of_source = {}
        for target in self._targets.values():
            for name in target.sources:
                self._of_source.setdefault(name, []).append(target)

    def _difference_or_failure(self, targets: Sequence[Target], tensors: Tensors) -> str | None:
        try:
            return self._difference(targets, tensors)
        except RuntimeError as error:  # such as too little GPU memory
            return f"a direct load failed: {error}"

    def _difference(self, targets: Sequence[Target], tensors: Tensors) -> str | None:
        """Load the same weights directly; return a layer that differs afterwards, if there is one."""
        layers = {target.layer for target in targets} | set(_heads_of(self._model, targets))
        expected = {layer: _state(layer) for layer in layers}
        for target in targets:
            _forget(target)
        self._load(targets, tensors)
        for layer, before in expected.items():
            after = _state(layer)
            if not all(torch.equal(one, other) for one, other in zip(before, after, strict=True)):
                return f"{type(layer).__name__} differs when it is loaded directly"
        return None


def _copies(target: Target, parameter: Tensor, tensors: Tensors) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of parameter regions that a load writes and views of published tensors that it reads."""
    return [
        (copied.written.of(parameter), copied.read.of(tensors[copied.source])) for copied in target.copies
    ]


def _fill(target: Target, parameter: Tensor, tensors: Tensors) -> None:
    for written, read in _copies(target, parameter, tensors):
        written.copy_(read)


def _forget(target: Target) -> None:
    """Overwrite the regions that a load writes, so that none is right by chance."""
    parameter = target.layer.get_parameter(target.parameter)
    if parameter.is_floating_point() and not _is_packed(target.layer, target.parameter):
        for copied in target.copies:
            copied.written.of(parameter).fill_(torch.nan)


def _pack(layer: Any, matrix: Tensor) -> None:
    """Pack a matrix for a linear layer, whose parameter stays empty."""
    empty = layer.weight
    layer.cpu_linear = None  # free the old matrix's memory for the new one
    layer.weight = nn.Parameter(matrix, requires_grad=False)
    layer.quant_method.process_weights_after_loading(layer)
    layer.weight = empty


def _pack_head(layer: Any) -> None:
    layer.cpu_linear = None
    layer.quant_method.process_weights_after_loading(layer)


def _heads_of(model: nn.Module, targets: Sequence[Target]) -> list[nn.Module]:
    """Return layers that multiply with a packed copy of a loaded parameter, as heads do.

    vLLM packs every embedding, too. If there is a head beside it, even a tied one, nothing uses that copy.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    loaded = {target.layer.get_parameter(target.parameter).data_ptr() for target in targets} - {0}
    packed = [
        layer for layer in model.modules() if _handler(layer) and _matrix_of(layer).data_ptr() in loaded
    ]
    heads = [layer for layer in packed if isinstance(layer, ParallelLMHead)]
    return heads or packed


def _handler(layer: nn.Module) -> Any:
    """Return vLLM's handle of the matrix that oneDNN packed for a layer, or None."""
    cells = getattr(getattr(layer, "cpu_linear", None), "__closure__", None) or ()
    if not cells:  # as on a GPU
        return None
    from vllm._custom_ops import CPUDNNLGEMMHandler

    kept = (cell.cell_contents for cell in cells)
    return next((cell for cell in kept if isinstance(cell, CPUDNNLGEMMHandler)), None)


def _matrix_of(layer: Any) -> Tensor:
    matrix: Tensor = layer.weight
    return matrix


def _is_packed(layer: Any, parameter: str) -> bool:
    return parameter == "weight" and layer.weight.numel() == 0


def _state(layer: Any) -> list[Tensor]:
    """Return all that a layer computes with: its parameters and, for a packed matrix, some products.

    They lie in the host's memory, because a GPU may have no room for another model.
    """
    state = [
        parameter.detach().to("cpu", copy=True) for _, parameter in layer.named_parameters(recurse=False)
    ]
    if handler := _handler(layer):
        rows = torch.linspace(-1, 1, CHECKED_ROWS * handler.k).view(CHECKED_ROWS, handler.k)
        state.append(layer.cpu_linear(rows.to(layer.params_dtype), layer.weight, None))
    return state


def _unfit_model(model: nn.Module) -> str | None:
    """Return why a model can't be loaded directly, before any push; None: it may be possible."""
    from vllm.model_executor.layers.attention import Attention, is_deferred_attention_layer
    from vllm.platforms import current_platform

    if not (current_platform.is_cpu() or current_platform.is_cuda()):
        return "the model is on neither a CPU nor an NVIDIA GPU"
    for layer in model.modules():
        if is_deferred_attention_layer(layer) and type(layer) is not Attention:
            return f"{type(layer).__name__} computes more from the weights"
    return None


def _unfit(recording: LoadRecording, targets: Sequence[Target]) -> str | None:
    """Return which part of a watched load can't be repeated by copies alone."""
    if recording.unexplained:
        return f"not all of {min(recording.unexplained)} was copied to one place of a parameter"
    return next((why for why in map(_unfit_target, targets) if why), None)


def _unfit_target(target: Target) -> str | None:
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    layer, kind = target.layer, type(target.layer).__name__
    method = getattr(layer, "quant_method", None)
    if method is not None and type(method) not in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod):
        return f"{kind} is processed by {type(method).__name__}"
    is_on_cpu = next(layer.parameters()).device.type == "cpu"
    if is_on_cpu and type(method) is UnquantizedLinearMethod and not _handler(layer):
        return f"{kind} multiplies by another kernel than oneDNN's"
    if _is_packed(layer, target.parameter):
        return None if target.is_filled else f"{kind}'s matrix is not filled by copies alone"
    parameter = layer.get_parameter(target.parameter)
    if parameter.shape != target.shape or parameter.dtype != target.dtype or not parameter.is_contiguous():
        return f"{kind}.{target.parameter} is stored differently from its load"
    return None
