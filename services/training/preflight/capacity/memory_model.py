"""Model of a run's memory: bytes of each part, as pure functions of settings and of the model's sizes.

`whetstone plan` shows the estimate, preflight rejects runs by it, and GPU defaults are chosen by it.
"""

from dataclasses import dataclass

from learner.algorithms.base import Algorithm
from learner.distributed.whole_models import spreads
from learner.passes.known_passes import loads_reference
from learner.settings import LearnerSettings, ModelSettings
from rollout_workers.settings import RolloutSettings
from services.models.files import ModelFiles
from services.models.shape import ModelShape, shape_of
from services.training.preflight.checks.adapter_checks import base_bytes, trained_share

GIB = 2**30
LEARNER_PROCESS = 0.6 * GIB  # Python with torch and transformers, before a model
WORKER_PROCESS = 0.9 * GIB  # likewise, with vLLM
FROZEN_BYTES = 4  # bytes of a parameter in float32
GRADIENT_BYTES = 4  # bytes of a trained parameter's gradient
MOMENT_BYTES = {"adamw": 8, "rmsprop": 4}  # bytes of a trained parameter's moments: two moments, or one
TRAINS = ("weights", "gradients", "optimiser's moments")
STATE = 4  # bytes of a number in a hidden state between layers
LOGITS_HELD = 3  # logits, their logarithms and the gradient
# malloc keeps freed memory of the passes in pieces that other tensors do not fit. Share of the passes' bytes,
# from benchmarks/token_budgets.py:
KEPT_PIECES = 0.9
CPU_LOGITS = 2**21  # most logits in a tile on a CPU: learner/functional/linear_logprobs.py
PUBLISHED = "merged weights on their way"  # part of the host's memory


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Settings and sizes that a run's memory depends on.

    Example: a small model that trains completely:
    `MemoryNeeds(settings.model, settings.algorithm, settings.learner, settings.rollout, 1_000_000)`
    """

    model: ModelSettings
    algorithm: Algorithm
    learner: LearnerSettings
    rollout: RolloutSettings
    num_parameters: int
    trained_share: float = 1.0  # share of the model's layers, which is about the share of its parameters
    # Bytes of the whole frozen model below an adapter; None: only the untrained layers are frozen
    base_bytes: float | None = None
    reference_parameters: int | None = None  # parameters of model.reference.path; None: a copy

    def least(self, *, training: bool = True) -> dict[str, float]:
        """Return the least bytes of each part, without activations."""
        workers = self.rollout.num_workers
        needed: dict[str, float] = {}
        if training:
            parts = self.of_learner()
            processes = self.learner.num_processes * LEARNER_PROCESS
            needed["learner with gradients and Adam"] = processes + sum(
                parts.pop(name) for name in TRAINS if name in parts
            )
            needed |= parts
        worker_bytes = WORKER_PROCESS + sum(self.of_worker(FROZEN_BYTES).values())
        needed[f"{workers} rollout worker{'s' * (workers > 1)}"] = workers * worker_bytes
        return needed

    def of_learner(self) -> dict[str, float]:
        """Return the bytes of the learner, in all its processes, by purpose. `TRAINS` come first.

        Processes share one copy, or each holds its own (`is_sharded`). A frozen trunk counts once.
        """
        trunks = 2 if self.model.value_trunk == "separate" else 1
        top = self.trained_share * self.num_parameters
        trunk = FROZEN_BYTES * (self.num_parameters - top) if self.base_bytes is None else self.base_bytes
        traits, adapter = self.algorithm.traits, self.model.adapter
        parts = {
            "weights": trunk + trunks * FROZEN_BYTES * top,
            "gradients": trunks * GRADIENT_BYTES * top,
            "optimiser's moments": trunks * MOMENT_BYTES[self.algorithm.optimizer.name] * top,
        }
        if adapter.trains:
            if adapter.serve == "merged":
                parts[PUBLISHED] = FROZEN_BYTES * self.num_parameters
        elif loads_reference(self.algorithm):
            parts["reference model"] = FROZEN_BYTES * top
        if self.reference_parameters is not None:
            parts["reference model"] = float(FROZEN_BYTES * self.reference_parameters)
        if traits.masks:
            parts["mask model"] = FROZEN_BYTES * top
        if self.algorithm.averages:
            parts["averaged policy"] = FROZEN_BYTES * top
        processes, whole = self.learner.num_processes, not self.is_sharded
        if processes > 1 and self.learner.sum_gradients == "minibatch" and not whole:
            parts["gradients"] *= 1 + processes  # each process keeps whole gradients and a share of the sum
        copies = processes if whole else 1
        totals = {what: copies * size for what, size in parts.items()}
        keeps = self.learner.push == "changed" or self.learner.transport not in ("auto", "objects")
        return totals | self._last_push(FROZEN_BYTES, keeps)

    @property
    def is_sharded(self) -> bool:
        """Tell whether the learner's processes share one copy of the models."""
        return spreads(self.model, self.algorithm)

    def of_worker(self, bytes_each: int) -> dict[str, float]:
        """Return the bytes of one worker's process on a CPU, by purpose.

        Args:
            bytes_each: size of one weight.
        """
        parts = {"weights": float(bytes_each * self.num_parameters)}
        if self.algorithm.traits.masks:
            parts["mask model"] = float(bytes_each * self.num_parameters)
        keeps = self.learner.push == "changed" or self.learner.transport == "gloo"
        parts |= self._last_push(bytes_each, keeps)
        return parts | {"KV cache": self.rollout.kv_cache_gib * GIB}

    def _last_push(self, bytes_each: int, keeps: bool) -> dict[str, float]:
        """Return the bytes of a copy of the weights: the last push, kept or arriving."""
        if not keeps or self.model.adapter.serve == "adapter":
            return {}
        return {"last push, on the host": float(bytes_each * self.num_parameters)}


def share_and_base(
    model_settings: ModelSettings, model: ModelFiles, num_parameters: int
) -> tuple[float, float | None]:
    """Return the share of a model that trains, and the bytes of the frozen base beside an adapter.

    The learner checks whether the architecture can be split when it loads the model.

    Raises:
        InputError: model.trainable_layers leaves no layer to freeze.
    """
    adapter = model_settings.adapter
    if adapter.trains:
        return trained_share(adapter, model), base_bytes(adapter, model, num_parameters)
    if not model.num_layers:
        return 1.0, None
    return model_settings.num_trained(model.num_layers) / model.num_layers, None


def num_parameters(model: ModelFiles) -> tuple[int | None, bool]:
    """Count parameters in the weights' headers; (…, True) is an estimate, for weights on the hub."""
    if model.num_parameters is not None:
        return model.num_parameters, False
    shape = shape_of(model)
    return (None, True) if shape is None else (shape.num_parameters(), True)


# ---- passes of an update ----


def pass_bytes(
    needs: MemoryNeeds,
    shape: ModelShape,
    tokens: int,
    bytes_each: int,
    *,
    on_cpu: bool,
    at_hand: tuple[float, float] = (0.0, 0.0),
) -> dict[str, float]:
    """Return the most bytes of a micro-batch's passes in one process, by purpose.

    All activations exist while the head computes its gradient, and still while the last layer does. The
    larger of these two moments counts.

    Args:
        bytes_each: bytes of a number in matrix products: 2 under autocast, else 4.
        at_hand: bytes of temporary copies of weights at the two moments.
    """
    head = {
        "logits": logits_bytes(needs, shape, tokens, on_cpu=on_cpu),
        "the head's own gradient": _head_bytes(needs, shape, bytes_each),
        "weights at hand": at_hand[0],
    }
    gradients = 3 * bytes_each * shape.inner_width + 3 * STATE * shape.width
    inside = _kept(needs, shape, bytes_each, on_cpu) if needs.model.gradient_checkpointing else 0.0
    layer = {"a layer's gradients": tokens * (inside + gradients), "weights at hand": at_hand[1]}
    kept = {"activations": activation_bytes(needs, shape, tokens, bytes_each, on_cpu=on_cpu)}
    return kept | (head if sum(head.values()) >= sum(layer.values()) else layer)


def cpu_pass_bytes(needs: MemoryNeeds, shape: ModelShape, tokens: int, bytes_each: int) -> dict[str, float]:
    """Return `pass_bytes` on a CPU, including the memory that malloc keeps."""
    passes = pass_bytes(needs, shape, tokens, bytes_each, on_cpu=True)
    return passes | {"pieces that malloc keeps": KEPT_PIECES * sum(passes.values())}


def activation_bytes(
    needs: MemoryNeeds, shape: ModelShape, tokens: int, bytes_each: int, *, on_cpu: bool
) -> float:
    """Return the bytes of a micro-batch's activations in one process at the end of its forward pass.

    Frozen layers below the trained ones keep none. With an adapter all layers keep theirs.
    """
    layers = shape.num_layers * (1.0 if needs.model.adapter.trains else needs.trained_share)
    states = STATE * shape.width
    per_token = states if needs.model.gradient_checkpointing else _kept(needs, shape, bytes_each, on_cpu)
    ends = 6 * states  # embeddings, the last norm, and the states before the head with their gradient
    return tokens * (layers * per_token + ends)


def kept_a_layer(
    shape: ModelShape, bytes_each: int, *, is_frozen: bool = False, on_cpu: bool = False
) -> float:
    """Return the bytes that a layer keeps of each token for its gradient.

    Counted as in Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1), without attention's scores, which
    fused kernels recompute. Norms compute in float32, and a trained RMSNorm also keeps its normalised states.
    Under autocast each product keeps a copy of its inputs; in float32 products with the same input share it.

    Args:
        bytes_each: bytes of a number in matrix products: 2 under autocast, else 4.
        is_frozen: whether only an adapter of the layer trains.
        on_cpu: whether attention is in float32 even under autocast: learner/models/attention.py.
    """
    norms = (16 if shape.is_gated and not is_frozen else 8) * shape.width
    inputs = (5 if shape.is_gated else 2) * 2 if bytes_each == 2 else 2 * 4
    attention = 2 * (shape.query_width + shape.kv_width)  # queries, outputs, keys and values
    inner = (4 if shape.is_gated else 2) * shape.inner_width
    attended = 4 * attention + 2 * shape.query_width if on_cpu and bytes_each == 2 else bytes_each * attention
    return norms + inputs * shape.width + attended + bytes_each * inner


def _kept(needs: MemoryNeeds, shape: ModelShape, bytes_each: int, on_cpu: bool) -> float:
    return kept_a_layer(shape, bytes_each, is_frozen=needs.model.adapter.trains, on_cpu=on_cpu)


def logits_bytes(needs: MemoryNeeds, shape: ModelShape, tokens: int, *, on_cpu: bool) -> float:
    """Return the bytes of the logits that one process holds at once.

    On a CPU the probabilities of the first tiles wait for the backward pass, within the budget. On a GPU a
    tile of the head's kernels holds more numbers in the same bytes: learner/functional/head_on_gpu.py.
    """
    held = min(needs.learner.logits_budget, tokens * shape.vocabulary)
    if not on_cpu:
        return float(LOGITS_HELD * 4 * held)
    return float(LOGITS_HELD * 4 * min(held, CPU_LOGITS) + 4 * held)


def _head_bytes(needs: MemoryNeeds, shape: ModelShape, bytes_each: int) -> float:
    """Return the bytes of the head's gradient before accumulation, and of the head's cast copy.

    If a table is tied to the head, the embedding's gradient comes after activations are freed.
    """
    trains = needs.trained_share == 1.0 and not needs.model.adapter.trains
    table = shape.vocabulary * shape.width
    return float((GRADIENT_BYTES * table if trains else 0) + (2 * table if bytes_each == 2 else 0))


def most_tokens(budget: int, window: int | None, num_texts: int | None) -> int:
    """Return the most tokens of a micro-batch: its budget, or fewer if an iteration's texts have fewer."""
    if window is None or num_texts is None:
        return budget
    return min(budget, num_texts * window)


def longest_text(needs: MemoryNeeds, window: int | None, *, is_open: bool) -> int:
    """Return the tokens of the longest sequence that an update may read.

    Args:
        is_open: whether episodes have several turns, so that their length is unknown.
    """
    budget, prompt = needs.learner.token_budget, needs.rollout.max_prompt_tokens
    most = budget if is_open or prompt is None else prompt + needs.rollout.max_tokens
    return min(most, budget, window or budget)
