"""Run NLPO's policy and mask model in one vLLM engine, as the two halves of one model.

    tokens ──▶ policy ──▶ hidden (N, H) ─┐                  ┌─▶ policy's logits ──▶ sampler ──▶ tokens
    tokens ──▶ mask   ──▶ hidden (N, H) ─┴─▶ hidden (N, 2H) ┤                          ▲
                                                            └─▶ mask's logits ──▶ MaskProcessor

Both halves are the architecture's class, made twice with different prefixes, so each has separate keys and
values. A token costs two passes, where RL4LMs reads the whole text again for each token (Ramamurthy et al.
2023, arXiv 2210.01241).

For vLLM this is the plain model; only the loader differs. So its choices by the architecture's name (cache
layout, attention, defaults) hold for the halves, too.
"""

import os
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from contracts.rollout import MaskRule
from rollout_workers.engines.mask_processor import MaskProcessor

HALVES = ("policy", "mask")


class MaskedTwin(nn.Module):
    """Two copies of one of vLLM's causal architectures, made and called like any vLLM model."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        from vllm.model_executor.model_loader.utils import initialize_model
        from vllm.model_executor.models.utils import maybe_prefix

        super().__init__()
        self.policy = initialize_model(vllm_config, prefix=maybe_prefix(prefix, "policy"))
        self.mask = initialize_model(vllm_config, prefix=maybe_prefix(prefix, "mask"))
        self._mask_hidden_NH = torch.empty(0)

    @property
    def _halves(self) -> dict[str, Any]:
        """Return the halves by name, as Any, because vLLM's models have more methods than a module."""
        return dict(self.named_children())

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Refuse the call, which vLLM makes only for multi-modal input; every model needs the method."""
        raise NotImplementedError("each half has separate embeddings")

    def forward(
        self, input_ids: Tensor, positions: Tensor, intermediate_tensors: Any = None, **inputs: Any
    ) -> Tensor:
        """Return both halves' hidden states side by side, (N, 2H); vLLM picks the rows to sample."""
        hidden = [half(input_ids, positions, intermediate_tensors, **inputs) for half in self.children()]
        return torch.cat(hidden, dim=-1)

    def compute_logits(self, hidden_N2H: Tensor) -> Tensor:
        """Return the policy's logits (N, V); the mask's are computed only when a row needs them."""
        policy_NH, self._mask_hidden_NH = hidden_N2H.chunk(2, dim=-1)
        return self.policy.compute_logits(policy_NH.contiguous())

    def mask_logits(self, rows_M: Tensor) -> Tensor:
        """Return the mask model's logits (M, V) at the positions of the given rows of the newest logits."""
        return self.mask.compute_logits(self._mask_hidden_NH[rows_M])

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load into each half the weights under its name, `policy.…` or `mask.…`; one half may be missing."""
        loaded: set[str] = set()
        for half, named in groupby(weights, key=lambda weight: weight[0].partition(".")[0]):
            weights_of_half = ((name.partition(".")[2], tensor) for name, tensor in named)
            loaded |= {f"{half}.{name}" for name in self._halves[half].load_weights(weights_of_half)}
        return loaded

    def process_weights_after_loading(self) -> None:
        """Run the final steps of some architectures, after their layers are ready."""
        for half in self._halves.values():
            if hasattr(half, "process_weights_after_loading"):
                half.process_weights_after_loading()

    def get_mamba_state_copy_funcs(self, *kinds: Any) -> Any:
        """Return how vLLM copies the states of state-space layers; both halves copy alike."""
        return self.policy.get_mamba_state_copy_funcs(*kinds)


def twin_arguments() -> dict[str, Any]:
    """Return arguments of vLLM's engine that make its model a twin."""
    # vLLM's newer runner (Triton only) has another interface for logits processors.
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    arguments: dict[str, Any] = {"load_format": _twin_format()}
    if torch.cuda.is_available():
        # Compiled code is cached by class and configuration, and contains layer names, so the second half
        # would run the first half's code. Graphs of whole passes need no compiler.
        arguments["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
    return arguments


def install_mask(runner: Any, rule: MaskRule) -> None:
    """Append the mask to vLLM's processors, so that it applies after they have forbidden tokens."""
    runner.input_batch.logitsprocs.non_argmax_invariant.append(MaskProcessor(runner.get_model(), rule))


@cache
def _twin_format() -> str:
    """Register and name a load format that reads the plain checkpoint once for each half."""
    from dataclasses import replace

    from vllm.model_executor.model_loader import DefaultModelLoader, register_model_loader
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.model_executor.model_loader.weight_tying import maybe_retie_word_embeddings

    @register_model_loader("masked_twin")
    class TwinLoader(DefaultModelLoader):
        def __init__(self, load_config: Any) -> None:
            super().__init__(replace(load_config, load_format="auto"))

        def create_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> nn.Module:
            return initialize_model(
                vllm_config, prefix=prefix, model_class=MaskedTwin, model_config=model_config
            )

        def get_all_weights(self, model_config: Any, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
            for half in HALVES:
                for name, tensor in super().get_all_weights(model_config, model.get_submodule(half)):
                    yield f"{half}.{name}", tensor

        def load_weights(self, model: nn.Module, model_config: Any) -> None:
            super().load_weights(model, model_config)
            for half in model.children():  # vLLM re-ties only in a model with one head
                maybe_retie_word_embeddings(half, model_config)

    return "masked_twin"
