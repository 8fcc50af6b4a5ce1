"""Work out the bytes of keys and values of a worker on a GPU, so that vLLM measures nothing as it starts.

    vLLM's share of the GPU = weights + a step + graphs + keys and values

vLLM measures the first three by a pass, and counts what a learner takes meanwhile as its own. Where the plan
knows them, a worker starts beside the learner on one GPU.
"""

from services.config.settings import RunSettings
from services.models.files import ModelFiles
from services.models.shape import ModelShape, shape_of
from services.preflight.capacity.gpu_defaults import memory_needs
from services.preflight.capacity.gpu_memory import Texts, least_cache, worker_least
from services.preflight.capacity.memory_model import GIB, MemoryNeeds
from services.preflight.deployment import Deployment

GRAPHS = 0.5 * GIB  # of ten sizes, with the workspaces that they hold on to
# Bytes of each logit beside the 8 that the least has: in top-k and top-p, a copy, sorted ones, their places.
SORTED_BYTES = 20


def cache_bytes(settings: RunSettings, model: ModelFiles, deployed: Deployment) -> int | None:
    """Return the bytes of keys and values on each of a worker's GPUs; None: vLLM has to measure.

    Args:
        settings: with vLLM's share filled in.
    """
    gpu_bytes = deployed.machine.gpu_bytes
    if not (deployed.workers_on_gpu and deployed.engine == "vllm" and gpu_bytes):
        return None  # a CPU's run reads nothing more of the model
    if settings.model.adapter.serve == "adapter" or settings.rollout.engine_args:
        return None  # vLLM has more on the GPU than is counted, or less
    asked = settings.model, settings.algorithm, settings.learner, settings.rollout
    shape, needs = shape_of(model), memory_needs(*asked, model)
    if not (shape and needs):
        return None
    is_open = settings.plays or settings.data is not None
    texts = Texts(model.window, None if is_open else 0)
    return beside_the_rest(needs, shape, texts, deployed, settings.rollout.gpu_memory_utilization * gpu_bytes)


def beside_the_rest(
    needs: MemoryNeeds, shape: ModelShape, texts: Texts, deployed: Deployment, share: float
) -> int | None:
    """Return what weights, a step and graphs leave of a share; None: less than a worker needs.

    Args:
        share: bytes of each GPU that vLLM may take.
    """
    least, cache = worker_least(needs, shape, texts, deployed), least_cache(needs, shape, texts, deployed)
    sorting = needs.rollout.max_concurrent * shape.vocabulary * SORTED_BYTES
    left = share - (least - cache) - sorting - GRAPHS
    return int(left) if left >= cache else None
