"""Choose how new weights reach the workers.

`auto` is `ipc` if learner and workers share one GPU, otherwise `objects`. `nccl` has no deadline, and
has not run on GPUs yet.
"""

from contracts.errors import InputError
from learner.settings import LearnerSettings, ModelSettings
from rollout_workers.engines.traits import traits_of
from services.training.preflight.deployment import Deployment
from services.training.preflight.placement import Placement


def choose_transport(learner: LearnerSettings, model: ModelSettings, deployed: Deployment) -> str:
    """Return the transport that `learner.transport` means for this deployment.

    Raises:
        InputError: the requested transport can't bring these weights to these engines.
    """
    why_objects = _why_objects(learner, model, deployed)
    transport = learner.transport
    on_gpu = deployed.learner_on_gpu and deployed.workers_on_gpu
    if transport == "auto":
        # Shares of several GPUs may lie on different GPUs.
        alone = deployed.machine.num_gpus <= 1
        shares = bool(on_gpu) and alone and not why_objects and _on(deployed.placement) == "ipc"
        return "ipc" if shares else "objects"
    if transport == "objects":
        return "objects"
    if why_objects:
        raise InputError(
            f"learner.transport={transport} does not go together with {why_objects}; expected "
            "learner.transport=objects, or leave it out"
        )
    if transport != "gloo" and on_gpu is False:
        raise InputError(
            f"learner.transport={transport} needs GPUs, but learner or workers have none; expected "
            "learner.transport=gloo or objects"
        )
    if transport == "gloo" and deployed.workers_on_gpu:
        raise InputError(
            "learner.transport=gloo is for CPUs, but the workers use GPUs; expected learner.transport=nccl "
            "(whole GPUs), ipc (one shared GPU) or objects"
        )
    if transport != "gloo" and on_gpu and transport != (fitting := _on(deployed.placement)):
        placed = deployed.placement
        raise InputError(
            f"learner.transport={transport} does not suit a learner's {placed.learner.num_gpus:g} and a "
            f"worker's {placed.worker.num_gpus:g} GPUs: nccl needs whole GPUs, ipc one shared GPU; "
            f"expected learner.transport={fitting}"
        )
    return transport


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
    if not traits_of(deployed.engine).receives_weights:
        return f"rollout.engine={deployed.engine}"
    return None


def _on(placed: Placement) -> str:
    """Return the transport that suits the reservations of learner and workers.

    Processes with shares of several GPUs may lie on different GPUs, so neither ipc nor nccl is sure to work.
    """
    if not (placed.learner.num_gpus and placed.worker.num_gpus):
        return "objects"
    if placed.learner.num_gpus >= 1 and placed.worker.num_gpus >= 1:
        return "nccl"
    return "ipc" if placed.num_gpus <= 1 else "objects"
