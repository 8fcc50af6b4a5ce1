"""Predict the seconds of each phase of an iteration on GPUs. Pure functions.

The rates were measured on one H100 with a model of 0.5B (docs/results/gpu.md). Other cards are assumed to
reach the same share of their own rates.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from learner.distributed.cards import Card, card_of
from learner.passes.operations import Passes, Products
from services.models.files import ModelFiles
from services.models.shape import ModelShape, shape_of
from services.training.preflight.deployment import Deployment

RATE = 0.134  # share of the card's peak operations that the passes of an update reached
STEP_S = 0.005  # seconds of a decoding step, without its sequences
SEQUENCE_S = 34e-6  # added by each sequence of a step, for Python and sampling
PUSH_S_PER_GB = {"ipc": 2.0, "objects": 4.6}  # seconds per GB of a first push; later pushes take less
SLEEP_S, WAKE_S = 0.12, 0.39
BFLOAT16 = 2  # bytes


@dataclass(frozen=True, slots=True)
class Work:
    """Texts of one iteration, and the processes that share them.

    Example: `Work(num_rollouts=512, prompt=24, response=256, workers=1, at_once=512, learners=1)`
    """

    num_rollouts: int
    prompt: int  # tokens
    response: int  # tokens, at most
    workers: int
    at_once: int  # sequences that a worker writes at once
    learners: int


def seconds_of(
    shape: ModelShape, card: Card, work: Work, passes: Passes, *, transport: str, sleeps: bool
) -> dict[str, float]:
    """Return the seconds of each phase, if each response takes all its tokens."""
    phases = {
        "generation": generation_s(shape, card, work),
        "passes": passes.operations(forward(shape, work)) / (RATE * card.flops * work.learners),
        "new weights": PUSH_S_PER_GB.get(transport, PUSH_S_PER_GB["objects"])
        * (BFLOAT16 * shape.num_parameters() / 1e9),
    }
    return phases | ({"sleep and wake": SLEEP_S + WAKE_S} if sleeps else {})


def predicted(
    model: ModelFiles, deployed: Deployment, work: Work, passes: Passes, transport: str
) -> dict[str, str]:
    """Return an iteration's seconds in words; {} if the card or the model's shape is unknown."""
    name, shape = deployed.machine.gpu_name, shape_of(model)
    card = None if name is None else card_of(name)
    if card is None or shape is None or not (deployed.learner_on_gpu and deployed.workers_on_gpu):
        return {}
    phases = seconds_of(shape, card, work, passes, transport=transport, sleeps=bool(deployed.workers_sleep))
    return {"an iteration takes": in_words(phases, overlaps=deployed.rollout.max_staleness > 0)}


def forward(shape: ModelShape, work: Work) -> float:
    """Return the operations of one forward pass over the iteration's texts."""
    length = work.prompt + work.response
    products = Products(
        layers=shape.num_layers * shape.layer_parameters,
        head=shape.vocabulary * shape.width,
        attention=shape.num_layers * shape.query_width,
    )
    return products.forward(
        work.num_rollouts * length, work.num_rollouts * work.response, work.num_rollouts * length**2
    )


def generation_s(shape: ModelShape, card: Card, work: Work) -> float:
    """Return the seconds of writing all responses. A step writes one token of each running sequence.

    A step also reads the weights and the KV cache, which holds half of each response on average.
    """
    each_worker = -(-work.num_rollouts // work.workers)
    at_hand = min(each_worker, work.at_once)
    waves = -(-each_worker // at_hand)
    held = at_hand * (work.prompt + work.response / 2) * shape.cache_bytes(BFLOAT16)
    read_s = (BFLOAT16 * shape.num_parameters() + held) / card.bytes_per_s
    return waves * work.response * (STEP_S + SEQUENCE_S * at_hand + read_s)


def in_words(phases: Mapping[str, float], *, overlaps: bool) -> str:
    """Put the seconds of an iteration and of its phases into words.

    Args:
        overlaps: whether workers write the next texts while the learner computes.

    >>> in_words({"generation": 6.0, "passes": 4.2, "new weights": 2.0}, overlaps=False)
    'about 12 s, if each response takes all its tokens: generation 6.0, passes 4.2, new weights 2.0'
    """
    others = sum(phases.values()) - phases["generation"]
    total = max(phases["generation"], others) if overlaps else phases["generation"] + others
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases.items())
    beside = "; generation runs beside the rest" if overlaps else ""
    return f"about {total:.0f} s, if each response takes all its tokens: {parts}{beside}"
