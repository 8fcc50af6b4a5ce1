"""Compile a model's transformer blocks one by one, so that their many small kernels become few.

    trunk ─▶ a block's hooks ─▶ `BlockForward` ─┬─▶ compiled: one graph, any shape
                                                └─▶ plain: kept prompts, one token, probes of rounding

Norms, rotary embeddings, gates, casts and residual sums move more memory than the products; a graph joins
them. Blocks of one class share their graphs, since weights are inputs of a graph: one without gradients, one
with them, and as many again for a batch of one sequence. Where a graph fails, all blocks are plain.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from learner.models.attention import rounds_attention
from learner.models.shared_prompts import KINDS

# Graphs of one class: with gradients and without, for models that train and that don't, for adapters on and
# off, and for batches of one sequence and of more.
MOST_GRAPHS = 16
Backend = str | Callable[..., Any]


class CompiledBlocks:
    """Compiled forwards of models' blocks, one for each class of blocks.

    Args:
        backend: compiler of graphs, by torch's name or as a function.
    """

    def __init__(self, backend: Backend = "inductor") -> None:
        self.failure: str | None = None  # why all blocks run plainly
        self.num_blocks = self.num_graphs = 0
        self._backend = backend
        self._forwards: dict[type, Callable[..., Any]] = {}

    def add(self, lm: Any) -> None:
        """Compile the blocks of a language model or its trunk, in place; unknown model types have none.

        Frozen layers that keep their output for other models (`SharedTrunk`) stay as they are.
        """
        for block in blocks_of(lm) if lm.config.model_type in KINDS else ():
            if "forward" not in vars(block):
                setattr(block, "forward", BlockForward(block, self))  # noqa: B010
                self.num_blocks += 1

    def run(self, block: nn.Module, *inputs: Any, **options: Any) -> Any:
        """Run a block's compiled forward; where it can't be compiled, run it plainly, and all others, too."""
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        try:
            return self._forward_of(type(block))(block, *inputs, **options)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            self.give_up(reason(error))
        return type(block).forward(block, *inputs, **options)

    def give_up(self, why: str) -> None:
        """Run all blocks plainly from now on, and warn once."""
        if self.failure is None:
            self.failure = (
                f"transformer blocks run without compilation, with the same results but slower: {why}; "
                "learner.compile=false tries none"
            )
            warnings.warn(self.failure, RuntimeWarning, stacklevel=2)

    def _forward_of(self, kind: type[nn.Module]) -> Callable[..., Any]:
        if kind not in self._forwards:
            self._forwards[kind] = torch.compile(  # type: ignore[call-overload]
                kind.forward,
                fullgraph=True,
                dynamic=True,
                backend=self._compile,
                recompile_limit=MOST_GRAPHS,
                isolate_recompiles=True,
            )
        return self._forwards[kind]

    def _compile(self, graph: Any, inputs: list[Tensor]) -> Any:
        """Compile a graph forward and backward at once: a failure then comes before anything is computed."""
        from torch._dynamo.backends.registry import lookup_backend
        from torch._functorch import config

        compile_graph = lookup_backend(self._backend) if isinstance(self._backend, str) else self._backend
        with config.patch(force_non_lazy_backward_lowering=True):
            made = compile_graph(graph, inputs)
        self.num_graphs += 1  # not where torch begins a graph anew, with its numbers as tensors
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> "CompiledBlocks":
        """Return itself: copies of a model share its graphs."""
        return self


class BlockForward:
    """Forward of one block, compiled or plain by its inputs; the block's hooks stay outside."""

    def __init__(self, block: nn.Module, compiled: CompiledBlocks) -> None:
        self.block, self.compiled = block, compiled

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if self.compiled.failure is None and _fits(inputs, options):
            return self.compiled.run(self.block, *inputs, **options)
        return type(self.block).forward(self.block, *inputs, **options)


def blocks_of(lm: nn.Module) -> Iterator[nn.Module]:
    """Yield a model's blocks."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    stacks = (module for module in lm.modules() if isinstance(module, nn.ModuleList))
    yield from (block for stack in stacks for block in stack if isinstance(block, GradientCheckpointingLayer))


def _fits(inputs: Sequence[Any], options: dict[str, Any]) -> bool:
    """Return whether a graph may serve: nothing is kept, and the size of one token makes no graph its own."""
    from transformers import Cache

    hidden_BLH: Tensor = inputs[0] if inputs else options["hidden_states"]
    if hidden_BLH.shape[1] == 1 or rounds_attention():
        return False
    return not any(isinstance(value, Cache) for value in (*inputs, *options.values()))


def reason(error: Exception) -> str:
    """Return type and first line of what a compiler raised; torch wraps it, and adds pages of advice."""
    inner: Exception = getattr(error, "inner_exception", error)
    return f"{type(inner).__name__}: {str(inner).strip().partition(chr(10))[0]}"
