"""Add up what lies on a GPU: a learner's process, workers beside it, workers alone. Pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass

from learner.number_formats import autocast_of, keeps_masters
from services.models.shape import ModelShape
from services.preflight.capacity.memory_model import (
    GIB,
    GRADIENT_BYTES,
    PUBLISHED,
    MemoryNeeds,
    longest_text,
    most_tokens,
    pass_bytes,
)
from services.preflight.deployment import Deployment

CONTEXT = 1.0 * GIB  # of each process: CUDA's context, workspaces of cuBLAS, buffers of NCCL
USABLE = 0.95  # of a GPU; the rest is lost between the blocks of PyTorch's allocator
ON_THE_HOST = (PUBLISHED, "last push, on the host")
BYTES = {"float32": 4, "bfloat16": 2}
STEP_TOKENS = 8192  # tokens of a step with which vLLM measures its own needs
LEAST_CACHE = 16384  # tokens whose keys and values a worker should hold at least


@dataclass(frozen=True, slots=True)
class Texts:
    """Lengths that memory depends on: the model's window, and the texts of an iteration.

    Example: episodes of several turns, whose length is open: `Texts(window=1024, count=None)`
    """

    window: int | None
    count: int | None


@dataclass(frozen=True, slots=True)
class Load:
    """Bytes of one process on its GPU.

    Example: a learner's is `Load({"weights": 2e9, "CUDA": 1e9}, {"gradients": 2e9, "activations": 6e9})`.
    """

    always: Mapping[str, float]
    update: Mapping[str, float]  # also, while the learner updates

    @property
    def rest(self) -> float:
        return sum(self.always.values())

    @property
    def peak(self) -> float:
        return self.rest + sum(self.update.values())

    def __str__(self) -> str:
        """Return the parts above a tenth of a gigabyte, in GB."""
        parts = {**self.always, **self.update}
        return ", ".join(f"{what} {size / 1e9:.1f}" for what, size in parts.items() if size >= 1e8)


def learner_load(
    needs: MemoryNeeds, shape: ModelShape, texts: Texts, bytes_each: int, *, on_cpu: bool = False
) -> Load:
    """Return what one of the learner's processes has on its GPU, or on a CPU beside Python and libraries.

    Args:
        bytes_each: of a product's numbers: 2 under autocast, else 4.
    """
    ranks = needs.learner.num_processes
    parts = {what: size / ranks for what, size in needs.of_learner().items() if what not in ON_THE_HOST}
    gradients = parts.pop("gradients")
    budget = most_tokens(needs.learner.token_budget, texts.window, texts.count)
    prompt = needs.rollout.max_prompt_tokens
    one = 0 if prompt is None else prompt + needs.rollout.max_tokens  # a text is never cut
    tokens = max(budget, min(one, texts.window or one))
    at_hand = _at_hand(needs, shape, bytes_each)
    halved = _in_bfloat16(needs, shape, on_gpu=not on_cpu)
    if "reference model" in parts:
        parts["reference model"] -= halved["reference model"]
    if working := halved["working weights"]:  # they stay, where autocast's copies come and go
        parts["working weights"], at_hand = working, (0.0, 0.0)
    passes = pass_bytes(needs, shape, tokens, bytes_each, on_cpu=on_cpu, at_hand=at_hand)
    if on_cpu:
        return Load(parts, {"gradients": gradients, **passes})
    if needs.learner.offload:  # the host holds the models, gradients and moments, and makes the step
        return Load({"CUDA": CONTEXT}, passes)
    # PyTorch's AdamW makes roots of all second moments at once, when activations are gone.
    roots = gradients / GRADIENT_BYTES * 4
    if roots > sum(passes.values()):
        passes = {"the optimiser's step": roots}
    return Load({**parts, "CUDA": CONTEXT}, {"gradients": gradients, **passes})


def _in_bfloat16(needs: MemoryNeeds, shape: ModelShape, *, on_gpu: bool) -> dict[str, float]:
    """Return the bytes that a reference's matrices save in bfloat16, and those that the policy's add.

    The policy's float32 masters count as its weights: learner/models/rounding.py.
    """
    learner, model = needs.learner, needs.model
    matrices = 2.0 * shape.num_layers * shape.layer_parameters
    shares = learner.num_processes > 1 or learner.offload or model.adapter.trains or needs.trained_share < 1
    halves = autocast_of(learner, on_gpu=on_gpu) == "bfloat16" and not shares
    is_copy = needs.reference_parameters is None  # another model's shape is not known
    trunks = 2 if model.value_trunk == "separate" else 1
    masters = keeps_masters(learner, model, needs.algorithm, on_gpu=on_gpu)
    return {
        "reference model": matrices if halves and is_copy else 0.0,
        "working weights": trunks * matrices if masters else 0.0,
    }


def _at_hand(needs: MemoryNeeds, shape: ModelShape, bytes_each: int) -> tuple[float, float]:
    """Return the bytes of copies of weights in use while the head, and while a layer, computes its gradient.

    Several processes, and one that offloads, gather all that is outside of layers in float32, and sum the
    gradient of the head when all layers are done; of the layers they gather one and the next, with the
    gradient of one. One process keeps autocast's copies of all layers until the gradients are there.
    """
    layer, tables = shape.layer_parameters, 4 * shape.table_parameters
    if needs.learner.offload or (needs.learner.num_processes > 1 and needs.is_sharded):
        head = GRADIENT_BYTES * shape.vocabulary * shape.width
        return 2.0 * tables, float((3 * bytes_each + 4) * layer + tables + head)
    if bytes_each == 4 or needs.model.adapter.kind == "qlora":
        return 0.0, 0.0
    copies = float(bytes_each * shape.num_layers * layer)
    return copies, copies


def worker_least(needs: MemoryNeeds, shape: ModelShape, texts: Texts, deployed: Deployment) -> float:
    """Return the bytes that a worker needs on each of its GPUs: weights, a step, some keys and values."""
    each, parts = BYTES[deployed.engine_dtype or "bfloat16"], needs.rollout.tensor_parallel_size
    models = 2 if needs.algorithm.traits.masks else 1
    step = STEP_TOKENS * each * (3 * shape.inner_width + 4 * shape.width) / parts
    step += needs.rollout.max_concurrent * shape.vocabulary * 8  # logits, and what sampling makes of them
    cache = least_cache(needs, shape, texts, deployed)
    return models * each * needs.num_parameters / parts + step + cache


def least_cache(needs: MemoryNeeds, shape: ModelShape, texts: Texts, deployed: Deployment) -> float:
    """Return the bytes of the keys and values that a worker should hold at least, on each of its GPUs."""
    each, parts = BYTES[deployed.engine_dtype or "bfloat16"], needs.rollout.tensor_parallel_size
    models = 2 if needs.algorithm.traits.masks else 1
    longest = longest_text(needs, texts.window, is_open=texts.count is None)
    tokens = min(LEAST_CACHE, longest * needs.rollout.max_concurrent)
    return models * tokens * shape.cache_bytes(each) / parts
