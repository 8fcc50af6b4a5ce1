"""Compute the bytes of keys and values of a worker on a GPU, so that vLLM measures nothing at its start.

    vLLM's share of the GPU = weights + a step + graphs + keys and values

vLLM would measure the first three in a pass, and count the learner's memory as its own. With a computed size,
a worker can start beside the learner on one GPU.
"""

from rollout_workers.engines.traits import traits_of
from services.config.settings import RunSettings
from services.models.files import ModelFiles
from services.models.shape import ModelShape, shape_of
from services.training.preflight.capacity.gpu_defaults import memory_needs
from services.training.preflight.capacity.gpu_memory import Texts, least_cache, worker_least
from services.training.preflight.capacity.memory_model import GIB, MemoryNeeds
from services.training.preflight.deployment import Deployment

GRAPHS = 0.5 * GIB  # CUDA graphs of ten sizes, with their workspaces
# Bytes of each logit for top-k and top-p, beside the 8 bytes in worker_least: a copy, sorted logits, places
SORTED_BYTES = 20


def cache_bytes(settings: RunSettings, model: ModelFiles, deployed: Deployment) -> int | None:
    """Return the bytes of keys and values on each of a worker's GPUs; None if vLLM has to measure.

    Args:
        settings: settings with vLLM's share filled in.
    """
    gpu_bytes = deployed.machine.gpu_bytes
    if not (deployed.workers_on_gpu and traits_of(deployed.engine).reserves_cache and gpu_bytes):
        return None  # so a run on CPUs reads no more of the model
    if settings.model.adapter.serve == "adapter" or settings.rollout.engine_args:
        return None  # these change vLLM's memory by an unknown amount
    parts = settings.model, settings.algorithm, settings.learner, settings.rollout
    shape, needs = shape_of(model), memory_needs(*parts, model)
    if not (shape and needs):
        return None
    is_open = settings.plays or settings.data is not None
    texts = Texts(model.window, None if is_open else 0)
    return beside_the_rest(needs, shape, texts, deployed, settings.rollout.gpu_memory_utilization * gpu_bytes)


def beside_the_rest(
    needs: MemoryNeeds, shape: ModelShape, texts: Texts, deployed: Deployment, share: float
) -> int | None:
    """Return the share without weights, a step and graphs; None if that is too little for a worker.

    Args:
        share: bytes of each GPU that vLLM may take.
    """
    least, cache = worker_least(needs, shape, texts, deployed), least_cache(needs, shape, texts, deployed)
    sorting = needs.rollout.max_concurrent * shape.vocabulary * SORTED_BYTES
    left = share - (least - cache) - sorting - GRAPHS
    return int(left) if left >= cache else None
