"""Choose the way on which new weights reach the workers.

`auto` is `ipc` where learner and workers share one GPU, and else objects: `nccl` has no deadline of its own,
and has not run on GPUs yet.
"""

from contracts.errors import InputError
from learner.settings import LearnerSettings, ModelSettings
from services.preflight.deployment import Deployment
from services.preflight.placement import Placement


def choose_transport(learner: LearnerSettings, model: ModelSettings, deployed: Deployment) -> str:
    """Return the transport that `learner.transport` means on what there is.

    Raises:
        InputError: the transport that is asked for can't bring these weights to these engines.
    """
    why_objects = _why_objects(learner, model, deployed)
    asked = learner.transport
    on_gpu = deployed.learner_on_gpu and deployed.workers_on_gpu
    if asked == "auto":
        # Shares of several GPUs may lie on different ones.
        alone = deployed.machine.num_gpus <= 1
        shares = bool(on_gpu) and alone and not why_objects and _on(deployed.placement) == "ipc"
        return "ipc" if shares else "objects"
    if asked == "objects":
        return "objects"
    if why_objects:
        raise InputError(
            f"learner.transport={asked} does not go together with {why_objects}; expected "
            "learner.transport=objects, or leave it out"
        )
    if asked != "gloo" and on_gpu is False:
        raise InputError(
            f"learner.transport={asked} is of GPUs, and learner or workers have none; expected "
            "learner.transport=gloo or objects"
        )
    if asked == "gloo" and deployed.workers_on_gpu:
        raise InputError(
            "learner.transport=gloo is of CPUs, and the workers are on GPUs; expected learner.transport=nccl "
            "with whole GPUs, ipc on one, or objects"
        )
    if asked != "gloo" and on_gpu and asked != (fitting := _on(deployed.placement)):
        placed = deployed.placement
        raise InputError(
            f"learner.transport={asked} does not suit a learner's {placed.learner.num_gpus:g} and a worker's "
            f"{placed.worker.num_gpus:g} GPUs: nccl is for whole ones, ipc for one that both share; expected "
            f"learner.transport={fitting}"
        )
    return asked


def _why_objects(learner: LearnerSettings, model: ModelSettings, deployed: Deployment) -> str | None:
    """Return the setting that only Ray's objects can serve, or None."""
    if learner.offload:
        return "learner.offload=true"
    if learner.device == "cpu" and learner.transport != "gloo":
        return "learner.device=cpu"
    if learner.push == "changed":
        return "learner.push=changed"
    if model.adapter.serve == "adapter":
        return "model.adapter.serve=adapter"
    if deployed.engine != "vllm":
        return f"rollout.engine={deployed.engine}"
    return None


def _on(placed: Placement) -> str:
    """Return what suits the places of learner and workers.

    Processes with shares of several GPUs may lie on different ones, so none of the two is sure to work.
    """
    if not (placed.learner.num_gpus and placed.worker.num_gpus):
        return "objects"
    if placed.learner.num_gpus >= 1 and placed.worker.num_gpus >= 1:
        return "nccl"
    return "ipc" if placed.num_gpus <= 1 else "objects"
