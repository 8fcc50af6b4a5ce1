"""Model of a run's memory: bytes of each part, as pure functions of settings and of the model's sizes.

`whetstone plan` shows it, preflight refuses by it, and the defaults for GPUs are chosen by it.
"""

from dataclasses import dataclass

from learner.algorithms.base import Algorithm
from learner.passes.known_passes import loads_reference
from learner.settings import LearnerSettings, ModelSettings
from rollout_workers.settings import RolloutSettings
from services.models.files import ModelFiles
from services.models.shape import ModelShape, shape_of
from services.preflight.checks.adapter_checks import base_bytes, trained_share

GIB = 2**30
LEARNER_PROCESS = 0.6 * GIB  # Python with torch and transformers, before a model
WORKER_PROCESS = 0.9 * GIB  # the same with vLLM
FROZEN_BYTES = 4  # a parameter in float32
GRADIENT_BYTES = 4  # of a parameter that trains
MOMENT_BYTES = {"adamw": 8, "rmsprop": 4}  # likewise: two moments, or one
TRAINS = ("weights", "gradients", "optimiser's moments")
STATE = 4  # bytes of a hidden state's number, between layers
LOGITS_HELD = 3  # logits, their logarithms and the gradient
# A run's malloc keeps what passes gave back, in pieces that other tensors do not fit: of the passes' bytes,
# benchmarks/token_budgets.py
KEPT_PIECES = 0.9
CPU_LOGITS = 2**21  # a tile of logits on a CPU has no more: learner/functional/linear_logprobs.py
PUBLISHED = "merged weights on their way"  # in the host's memory


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Settings and sizes that a run's memory depends on.

    Example: all of a small model trains:
    `MemoryNeeds(settings.model, settings.algorithm, settings.learner, settings.rollout, 1_000_000)`
    """

    model: ModelSettings
    algorithm: Algorithm
    learner: LearnerSettings
    rollout: RolloutSettings
    num_parameters: int
    trained_share: float = 1.0  # of the model's layers, and roughly of its parameters
    # Bytes of a whole model that is frozen beside an adapter; None: only the untrained layers are frozen
    base_bytes: float | None = None
    reference_parameters: int | None = None  # of model.reference.path; None: the reference is a copy

    def least(self, *, training: bool = True) -> dict[str, float]:
        """Return the bytes that each part takes at least; activations come on top."""
        workers = self.rollout.num_workers
        needed: dict[str, float] = {}
        if training:
            parts = self.of_learner()
            processes = self.learner.num_processes * LEARNER_PROCESS
            needed["learner with gradients and Adam"] = processes + sum(
                parts.pop(name) for name in TRAINS if name in parts
            )
            needed |= parts
        each = WORKER_PROCESS + sum(self.of_worker(FROZEN_BYTES).values())
        needed[f"{workers} rollout worker{'s' * (workers > 1)}"] = workers * each
        return needed

    def of_learner(self) -> dict[str, float]:
        """Return the bytes of the learner, in all its processes, by purpose; `TRAINS` come first.

        Processes share one copy. TRPO's are not sharded: each holds its own. A frozen trunk counts once.
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
        processes, whole = self.learner.num_processes, not self.is_sharded
        if processes > 1 and self.learner.sum_gradients == "minibatch" and not whole:
            parts["gradients"] *= 1 + processes  # each keeps whole ones, and a share of their sum
        copies = processes if whole else 1
        found = {what: copies * size for what, size in parts.items()}
        keeps = self.learner.push == "changed" or self.learner.transport not in ("auto", "objects")
        return found | self._last_push(FROZEN_BYTES, keeps)

    @property
    def is_sharded(self) -> bool:
        """Tell whether the learner's processes share one copy of the models."""
        return self.algorithm.traits.update != "trust_region"

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
        """Return the size of a copy of the weights beside them: of the last push, or while it arrives."""
        if not keeps or self.model.adapter.serve == "adapter":
            return {}
        return {"last push, on the host": float(bytes_each * self.num_parameters)}


def share_and_base(
    asked: ModelSettings, model: ModelFiles, num_parameters: int
) -> tuple[float, float | None]:
    """Return the share of a model that trains, and the bytes of the frozen base beside an adapter.

    The learner says whether the architecture can be split, when it has loaded the model.

    Raises:
        InputError: model.trainable_layers leaves no layer to freeze.
    """
    if asked.adapter.trains:
        return trained_share(asked.adapter, model), base_bytes(asked.adapter, model, num_parameters)
    if not model.num_layers:
        return 1.0, None
    return asked.num_trained(model.num_layers) / model.num_layers, None


def num_parameters(model: ModelFiles) -> tuple[int | None, bool]:
    """Count parameters in the weights' headers; (…, True): estimated, since the weights are on the hub."""
    if model.num_parameters is not None:
        return model.num_parameters, False
    shape = shape_of(model)
    return (None, True) if shape is None else (shape.num_parameters(), True)


# ---- what an update computes with ----


def pass_bytes(
    needs: MemoryNeeds,
    shape: ModelShape,
    tokens: int,
    bytes_each: int,
    *,
    on_cpu: bool,
    at_hand: tuple[float, float] = (0.0, 0.0),
) -> dict[str, float]:
    """Return the bytes of a micro-batch's passes in one process, at the most, by purpose.

    All activations are there while the head computes its gradient, and still while the last layer does: the
    larger one of the two moments counts.

    Args:
        bytes_each: of a product's numbers: 2 under autocast, else 4.
        at_hand: bytes of copies of weights at both moments.
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
    """Return `pass_bytes` on a CPU, with what malloc keeps beside them."""
    passes = pass_bytes(needs, shape, tokens, bytes_each, on_cpu=True)
    return passes | {"pieces that malloc keeps": KEPT_PIECES * sum(passes.values())}


def activation_bytes(
    needs: MemoryNeeds, shape: ModelShape, tokens: int, bytes_each: int, *, on_cpu: bool
) -> float:
    """Return the bytes of a micro-batch's activations in one process when its forward pass has ended.

    Frozen layers below the trained ones keep none. Beside an adapter all layers keep theirs.
    """
    layers = shape.num_layers * (1.0 if needs.model.adapter.trains else needs.trained_share)
    states = STATE * shape.width
    each = states if needs.model.gradient_checkpointing else _kept(needs, shape, bytes_each, on_cpu)
    ends = 6 * states  # embeddings, the last norm, and the states before the head with their gradient
    return tokens * (layers * each + ends)


def kept_a_layer(
    shape: ModelShape, bytes_each: int, *, is_frozen: bool = False, on_cpu: bool = False
) -> float:
    """Return the bytes that a layer keeps of each token for its gradient.

    Counted as by Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1), without attention's own, which
    fused kernels recompute. Norms compute in float32, and an RMSNorm that trains also keeps its normalised
    states. Under autocast each product keeps a copy of its inputs; in float32 products of one input share it.

    Args:
        bytes_each: of a product's numbers: 2 under autocast, else 4.
        is_frozen: whether the layer's own parameters do not train, beside an adapter's.
        on_cpu: whether attention is in float32 under autocast, too: learner/models/attention.py.
    """
    norms = (16 if shape.is_gated and not is_frozen else 8) * shape.width
    inputs = (5 if shape.is_gated else 2) * 2 if bytes_each == 2 else 2 * 4
    attention = 2 * (shape.query_width + shape.kv_width)  # queries, what comes out, keys and values
    inner = (4 if shape.is_gated else 2) * shape.inner_width
    attended = 4 * attention + 2 * shape.query_width if on_cpu and bytes_each == 2 else bytes_each * attention
    return norms + inputs * shape.width + attended + bytes_each * inner


def _kept(needs: MemoryNeeds, shape: ModelShape, bytes_each: int, on_cpu: bool) -> float:
    return kept_a_layer(shape, bytes_each, is_frozen=needs.model.adapter.trains, on_cpu=on_cpu)


def logits_bytes(needs: MemoryNeeds, shape: ModelShape, tokens: int, *, on_cpu: bool) -> float:
    """Return the bytes of the logits that are held at once in one process.

    On a CPU the probabilities of the first tiles wait for the backward pass, within the budget. On a GPU a
    tile of the head's kernels has more numbers in the same bytes: learner/functional/head_on_gpu.py.
    """
    held = min(needs.learner.logits_budget, tokens * shape.vocabulary)
    if not on_cpu:
        return float(LOGITS_HELD * 4 * held)
    return float(LOGITS_HELD * 4 * min(held, CPU_LOGITS) + 4 * held)


def _head_bytes(needs: MemoryNeeds, shape: ModelShape, bytes_each: int) -> float:
    """Return the bytes of the head's gradient before it is added, and of its cast copy.

    The embedding's own gradient, of a table tied to the head, comes when activations are gone.
    """
    trains = needs.trained_share == 1.0 and not needs.model.adapter.trains
    table = shape.vocabulary * shape.width
    return float((GRADIENT_BYTES * table if trains else 0) + (2 * table if bytes_each == 2 else 0))


def most_tokens(budget: int, window: int | None, num_texts: int | None) -> int:
    """Return the most tokens of a micro-batch: its budget, or less where an iteration's texts have less."""
    if window is None or num_texts is None:
        return budget
    return min(budget, num_texts * window)


def longest_text(needs: MemoryNeeds, window: int | None, *, is_open: bool) -> int:
    """Return the tokens of the longest sequence that an update may read.

    Args:
        is_open: whether episodes have several turns, so that their length is open.
    """
    budget, prompt = needs.learner.token_budget, needs.rollout.max_prompt_tokens
    asked = budget if is_open or prompt is None else prompt + needs.rollout.max_tokens
    return min(asked, budget, window or budget)
