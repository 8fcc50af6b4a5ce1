"""Add up the memory of a GPU for a learner's process and for a worker. Pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass

from learner.optimization.number_formats import autocast_of, keeps_masters
from services.models.shape import ModelShape
from services.training.preflight.capacity.memory_model import (
    GIB,
    GRADIENT_BYTES,
    PUBLISHED,
    MemoryNeeds,
    longest_text,
    most_tokens,
    pass_bytes,
)
from services.training.preflight.deployment import Deployment

CONTEXT = 1.0 * GIB  # memory of each process: CUDA's context, workspaces of cuBLAS, buffers of NCCL
USABLE = 0.95  # usable share of a GPU; PyTorch's allocator loses the rest between its blocks
ON_THE_HOST = (PUBLISHED, "last push, on the host")
BYTES = {"float32": 4, "bfloat16": 2}
STEP_TOKENS = 8192  # tokens of the step with which vLLM measures its memory
LEAST_CACHE = 16384  # least tokens whose keys and values a worker should hold


@dataclass(frozen=True, slots=True)
class Texts:
    """Lengths that memory depends on: the model's window, and the texts of an iteration.

    Example: episodes of several turns, whose length is unknown: `Texts(window=1024, count=None)`
    """

    window: int | None
    count: int | None


@dataclass(frozen=True, slots=True)
class Load:
    """Bytes of one process on its GPU.

    Example: a learner's is `Load({"weights": 2e9, "CUDA": 1e9}, {"gradients": 2e9, "activations": 6e9})`.
    """

    always: Mapping[str, float]
    update: Mapping[str, float]  # added while the learner updates

    @property
    def rest(self) -> float:
        return sum(self.always.values())

    @property
    def peak(self) -> float:
        return self.rest + sum(self.update.values())

    def __str__(self) -> str:
        """Return the parts from a tenth of a gigabyte on, in GB."""
        parts = {**self.always, **self.update}
        return ", ".join(f"{what} {size / 1e9:.1f}" for what, size in parts.items() if size >= 1e8)


def learner_load(
    needs: MemoryNeeds, shape: ModelShape, texts: Texts, bytes_each: int, *, on_cpu: bool = False
) -> Load:
    """Return the memory of a learner's process on its GPU, or on a CPU without Python and libraries.

    Args:
        bytes_each: bytes of a number in matrix products: 2 under autocast, else 4.
    """
    ranks = needs.learner.num_processes
    parts = {what: size / ranks for what, size in needs.of_learner().items() if what not in ON_THE_HOST}
    gradients = parts.pop("gradients")
    budget = most_tokens(needs.learner.token_budget, texts.window, texts.count)
    prompt = needs.rollout.max_prompt_tokens
    one = 0 if prompt is None else prompt + needs.rollout.max_tokens  # a text is never split
    tokens = max(budget, min(one, texts.window or one))
    at_hand = _at_hand(needs, shape, bytes_each)
    halved = _in_bfloat16(needs, shape, on_gpu=not on_cpu)
    if "reference model" in parts:
        parts["reference model"] -= halved["reference model"]
    if working := halved["working weights"]:  # permanent, unlike autocast's copies
        parts["working weights"], at_hand = working, (0.0, 0.0)
    passes = pass_bytes(needs, shape, tokens, bytes_each, on_cpu=on_cpu, at_hand=at_hand)
    if on_cpu:
        return Load(parts, {"gradients": gradients, **passes})
    if needs.learner.offload:  # models, gradients, moments and the optimiser's step are on the host
        return Load({"CUDA": CONTEXT}, passes)
    # PyTorch's AdamW takes the roots of all second moments at once, when activations are freed.
    roots = gradients / GRADIENT_BYTES * 4
    if roots > sum(passes.values()):
        passes = {"the optimiser's step": roots}
    return Load({**parts, "CUDA": CONTEXT}, {"gradients": gradients, **passes})


def _in_bfloat16(needs: MemoryNeeds, shape: ModelShape, *, on_gpu: bool) -> dict[str, float]:
    """Return the bytes that bfloat16 saves in a reference's matrices, and adds to the policy's.

    Weights count as float32, and the policy keeps float32 masters besides: learner/models/rounding.py.
    """
    learner, model = needs.learner, needs.model
    matrices = 2.0 * shape.num_layers * shape.layer_parameters
    shares = learner.num_processes > 1 or learner.offload or model.adapter.trains or needs.trained_share < 1
    halves = autocast_of(learner, on_gpu=on_gpu) == "bfloat16" and not shares
    is_copy = needs.reference_parameters is None  # another model's shape is unknown
    trunks = 2 if model.value_trunk == "separate" else 1
    masters = keeps_masters(learner, model, needs.algorithm, on_gpu=on_gpu)
    return {
        "reference model": matrices if halves and is_copy else 0.0,
        "working weights": trunks * matrices if masters else 0.0,
    }


def _at_hand(needs: MemoryNeeds, shape: ModelShape, bytes_each: int) -> tuple[float, float]:
    """Return the bytes of temporary copies of weights while the head, and a layer, computes its gradient.

    Sharded or offloading processes gather all weights outside layers in float32. They sum the head's gradient
    after all layers. They gather the current and the next layer, with one layer's gradient. A frozen base has
    no gradients. A single process keeps autocast's copies of all layers until the backward pass ends.
    """
    layer, tables = shape.layer_parameters, 4 * shape.table_parameters
    if needs.learner.offload or (needs.learner.num_processes > 1 and needs.is_sharded):
        if needs.model.adapter.trains:
            return float(tables), float(2 * bytes_each * layer + tables)
        head = GRADIENT_BYTES * shape.vocabulary * shape.width
        return 2.0 * tables, float((3 * bytes_each + 4) * layer + tables + head)
    if bytes_each == 4 or needs.model.adapter.kind == "qlora":
        return 0.0, 0.0
    copies = float(bytes_each * shape.num_layers * layer)
    return copies, copies


def worker_least(needs: MemoryNeeds, shape: ModelShape, texts: Texts, deployed: Deployment) -> float:
    """Return the least bytes of a worker on each of its GPUs: weights, a step, some keys and values."""
    bytes_each, parts = BYTES[deployed.engine_dtype or "bfloat16"], needs.rollout.tensor_parallel_size
    models = 2 if needs.algorithm.traits.masks else 1
    step = STEP_TOKENS * bytes_each * (3 * shape.inner_width + 4 * shape.width) / parts
    step += needs.rollout.max_concurrent * shape.vocabulary * 8  # logits and sampling
    cache = least_cache(needs, shape, texts, deployed)
    return models * bytes_each * needs.num_parameters / parts + step + cache


def least_cache(needs: MemoryNeeds, shape: ModelShape, texts: Texts, deployed: Deployment) -> float:
    """Return the least bytes of keys and values that a worker should hold on each of its GPUs."""
    bytes_each, parts = BYTES[deployed.engine_dtype or "bfloat16"], needs.rollout.tensor_parallel_size
    models = 2 if needs.algorithm.traits.masks else 1
    longest = longest_text(needs, texts.window, is_open=texts.count is None)
    tokens = min(LEAST_CACHE, longest * needs.rollout.max_concurrent)
    return models * tokens * shape.cache_bytes(bytes_each) / parts
