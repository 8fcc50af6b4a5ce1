"""Compile a model's transformer blocks one by one, so that their many small kernels become few.

    trunk ─▶ a block's hooks ─▶ `BlockForward` ─┬─▶ compiled: one graph, any shape
                                                └─▶ plain: kept prompts, one token, probes of rounding

Norms, rotary embeddings, gates, casts and residual sums move more memory than the products; a graph joins
them. Blocks of one sort share their graphs, because weights are inputs of a graph. A sort has one graph
without gradients and one with them, and as many again for a batch of one sequence. If a graph fails, all
blocks are plain.

T5's blocks are of four sorts: the first block of each stack makes the bias of positions, and decoders attend
twice. A decoder's blocks all read the encoder's states, by keys and values. A graph returns the sum of its
block's two gradients, but plain blocks add one gradient after another: (k₁ + v₁) + (k₂ + v₂), not ((k₁ + v₁)
+ k₂) + v₂. So with several decoder blocks, an encoder's gradients differ by rounding. All other numbers are
equal bit for bit.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from learner.models.attention import rounds_attention
from learner.models.shared_prompts import KINDS

COMPILED_KINDS = KINDS | {"t5", "bart"}
# Graphs of one sort: with gradients and without, for models that train or don't, for adapters on or off, and
# for batches of one sequence or more.
MOST_GRAPHS = 16
Backend = str | Callable[..., Any]
Sort = tuple[tuple[str, type[nn.Module]], ...]  # name and class of a block and of all modules in it


class CompiledBlocks:
    """Compiled forwards of models' blocks, one for each sort of blocks.

    Args:
        backend: compiler of graphs, by torch's name or as a function.
    """

    def __init__(self, backend: Backend = "inductor") -> None:
        self.failure: str | None = None  # why all blocks run plainly
        self.num_blocks = self.num_graphs = 0
        self._backend = backend
        self._forwards: dict[Sort, Callable[..., Any]] = {}

    def add(self, lm: Any) -> None:
        """Compile the blocks of a language model or its trunk, in place; unknown model types have none.

        Frozen layers that keep their output for other models (`SharedTrunk`) stay plain.
        """
        for block in blocks_of(lm) if lm.config.model_type in COMPILED_KINDS else ():
            if "forward" not in vars(block):
                setattr(block, "forward", BlockForward(block, sort_of(block), self))  # noqa: B010
                self.num_blocks += 1

    def run(self, block: nn.Module, sort: Sort, *inputs: Any, **options: Any) -> Any:
        """Run a block's compiled forward; if compilation fails, run this and all other blocks plainly."""
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        try:
            return self._forward_of(sort)(block, *inputs, **options)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            self.give_up(reason(error))
        return type(block).forward(block, *inputs, **options)

    def give_up(self, why: str) -> None:
        """Run all blocks plainly from now on, and warn once."""
        if self.failure is None:
            self.failure = (
                f"transformer blocks run without compilation, with the same results but slower: {why}; "
                "learner.compile=false does not try"
            )
            warnings.warn(self.failure, RuntimeWarning, stacklevel=2)

    def _forward_of(self, sort: Sort) -> Callable[..., Any]:
        if sort not in self._forwards:
            (_, kind), *_ = sort
            self._forwards[sort] = torch.compile(  # type: ignore[call-overload]
                kind.forward,
                fullgraph=True,
                dynamic=True,
                backend=self._compile,
                recompile_limit=MOST_GRAPHS,
                isolate_recompiles=True,
            )
        return self._forwards[sort]

    def _compile(self, graph: Any, inputs: list[Tensor]) -> Any:
        """Compile a graph forward and backward at once, so that it fails before anything is computed."""
        from torch._dynamo.backends.registry import lookup_backend
        from torch._functorch import config

        compile_graph = lookup_backend(self._backend) if isinstance(self._backend, str) else self._backend
        with config.patch(force_non_lazy_backward_lowering=True):
            made = compile_graph(graph, inputs)
        self.num_graphs += 1  # not when torch begins a graph anew, with its numbers as tensors
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> "CompiledBlocks":
        """Return itself, because copies of a model share its graphs."""
        return self


class BlockForward:
    """Forward of one block, compiled or plain depending on its inputs; the block's hooks stay outside."""

    def __init__(self, block: nn.Module, sort: Sort, compiled: CompiledBlocks) -> None:
        self.block, self.sort, self.compiled = block, sort, compiled

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if self.compiled.failure is None and _fits(inputs, options):
            return self.compiled.run(self.block, self.sort, *inputs, **options)
        return type(self.block).forward(self.block, *inputs, **options)


def blocks_of(lm: nn.Module) -> Iterator[nn.Module]:
    """Yield the blocks of all of a model's stacks."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    stacks = (module for module in lm.modules() if isinstance(module, nn.ModuleList))
    yield from (block for stack in stacks for block in stack if isinstance(block, GradientCheckpointingLayer))


def sort_of(block: nn.Module) -> Sort:
    """Return all that decides a block's graph, except its inputs."""
    return tuple((name, type(module)) for name, module in block.named_modules())


def _fits(inputs: Sequence[Any], options: dict[str, Any]) -> bool:
    """Return whether a graph may serve: no cache is kept, and no states have one token (another graph)."""
    from transformers import Cache

    values = (*inputs, *options.values())
    states = (value for value in values if isinstance(value, Tensor) and value.ndim == 3)
    if rounds_attention() or any(states_BLH.shape[1] == 1 for states_BLH in states):
        return False
    return not any(isinstance(value, Cache) for value in values)


def reason(error: Exception) -> str:
    """Return type and first line of a compiler's error; torch wraps it, and adds pages of advice."""
    inner: Exception = getattr(error, "inner_exception", error)
    return f"{type(inner).__name__}: {str(inner).strip().partition(chr(10))[0]}"
