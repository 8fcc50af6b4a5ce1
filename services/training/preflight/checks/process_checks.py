"""Refuse what a learner that spreads or offloads its models can't do."""

from contracts.errors import InputError
from learner.algorithms.base import Algorithm
from learner.distributed.whole_models import why_whole
from learner.models.dropout import rates
from learner.settings import LearnerSettings, ModelSettings
from services.models.files import ModelFiles


def check_processes(
    learner: LearnerSettings,
    model_settings: ModelSettings,
    algorithm: Algorithm,
    learner_gpus: float | None,
    model: ModelFiles,
) -> None:
    """Check that learner.num_processes and learner.offload go together with the other settings.

    Args:
        learner_gpus: GPUs of each process; None: not set.

    Raises:
        InputError: two settings exclude each other; the message names both ways out.
    """
    count = learner.num_processes
    if count == 1 and not learner.offload:
        return
    processes = (
        f"learner.num_processes={count}",
        "learner.num_processes=1",
    )  # current setting, and the way out
    offload = "learner.offload=true", "learner.offload=false"
    either = processes if count > 1 else offload
    whole, instead = why_whole(model_settings, algorithm) or ("", "")
    reasons = (
        # Policy and reference share the same frozen parameters, but FSDP2 allows one owner of each.
        (
            model_settings.trainable_layers is not None,
            either,
            f"model.trainable_layers={model_settings.trainable_layers}",
            "model.trainable_layers=null",
        ),
        # Ranks that skip different layers would wait for each other forever.
        (
            count > 1
            and model_settings.drops_out(algorithm)
            and any("layerdrop" in key for key in rates(model.config)),
            processes,
            f"model.path={model_settings.path}, whose configuration has layerdrop",
            "model.dropout=false",
        ),
        (bool(whole) and learner.offload, offload, whole, instead),
    )
    for is_so, (setting, without), what, expected in reasons:
        if is_so:
            raise InputError(f"{setting} does not go together with {what}: expected {expected}, or {without}")
    if count > 1 and learner_gpus and learner_gpus <= 0.5:
        raise InputError(
            f"learner.num_processes={count} with cluster.learner_gpus={learner_gpus:g}: Ray would "
            "put two processes on one GPU, which NCCL does not allow; expected cluster.learner_gpus above 0.5"
        )


def check_float16(settings: LearnerSettings, algorithm: Algorithm, name: str, *, on_gpu: bool) -> None:
    """Reject float16 if it can't be used, or if nothing scales the loss.

    Raises:
        InputError: there is no GPU, there are several processes, or the algorithm has no minibatches.
    """
    if settings.autocast != "float16":
        return
    other, processes = "learner.autocast=bfloat16 or none", settings.num_processes
    reasons = (
        (not on_gpu, "there is no GPU, and float16 makes no CPU faster", other),
        (processes > 1, f"learner.num_processes={processes}", "learner.num_processes=1"),
        (algorithm.traits.update == "trust_region", f"algorithm={name} has no minibatches", other),
    )
    for is_so, reason, expected in reasons:
        if is_so:
            raise InputError(f"learner.autocast=float16 with its loss scale: {reason}; expected {expected}")
