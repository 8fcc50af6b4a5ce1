"""Refuse what a learner that spreads or offloads its models can't do."""

from contracts.errors import InputError
from learner.algorithms.base import Algorithm
from learner.models.dropout import rates
from learner.settings import LearnerSettings, ModelSettings
from services.models.files import ModelFiles


def check_processes(
    learner: LearnerSettings,
    asked: ModelSettings,
    algorithm: Algorithm,
    learner_gpus: float | None,
    model: ModelFiles,
) -> None:
    """Check that learner.num_processes and learner.offload go together with the other settings.

    Args:
        learner_gpus: GPUs of each process; None: left open.

    Raises:
        InputError: they do not; with both ways out.
    """
    count = learner.num_processes
    if count == 1 and not learner.offload:
        return
    processes = f"learner.num_processes={count}", "learner.num_processes=1"  # what is given, and the way out
    offload = "learner.offload=true", "learner.offload=false"
    either = processes if count > 1 else offload
    reasons = (
        # Its base does not train: what sharding spreads, gradients and moments, is small beside an adapter.
        (asked.adapter.trains, either, f"model.adapter.kind={asked.adapter.kind}", "model.adapter.kind=none"),
        # Policy and reference hold the same frozen parameters, and FSDP2 lets a parameter have one owner.
        (
            asked.trainable_layers is not None,
            either,
            f"model.trainable_layers={asked.trainable_layers}",
            "model.trainable_layers=null",
        ),
        # Ranks that skip different layers would wait for each other for ever.
        (
            count > 1
            and asked.drops_out(algorithm)
            and any("layerdrop" in key for key in rates(model.config)),
            processes,
            f"model.path={asked.path}, whose configuration drops whole layers out",
            "model.dropout=false",
        ),
        (
            learner.offload and algorithm.traits.update == "trust_region",
            offload,
            "an algorithm whose step needs the whole policy on one device, as trpo's",
            "another algorithm",
        ),
    )
    for is_so, (given, without), what, expected in reasons:
        if is_so:
            raise InputError(f"{given} does not go together with {what}: expected {expected}, or {without}")
    if count > 1 and learner_gpus and learner_gpus <= 0.5:
        raise InputError(
            f"learner.num_processes={count} with cluster.learner_gpus={learner_gpus:g}: two of them would be "
            "put on one GPU, where NCCL does not let them meet; expected more than 0.5"
        )


def check_float16(settings: LearnerSettings, algorithm: Algorithm, name: str, *, on_gpu: bool) -> None:
    """Refuse float16 where it can't be used, or nothing scales the loss.

    Raises:
        InputError: there is no GPU, there are several processes, or the algorithm has no minibatches.
    """
    if settings.autocast != "float16":
        return
    other, processes = "learner.autocast=bfloat16 or none", settings.num_processes
    reasons = (
        (not on_gpu, "there is no GPU, and a CPU gains nothing by it", other),
        (processes > 1, f"learner.num_processes={processes}", "learner.num_processes=1"),
        (algorithm.traits.update == "trust_region", f"algorithm={name} has no minibatches", other),
    )
    for is_so, reason, expected in reasons:
        if is_so:
            raise InputError(f"learner.autocast=float16 with its loss scale: {reason}; expected {expected}")
