"""Refuse what a learner of several processes can't do yet."""

from contracts.errors import InputError
from learner.algorithms.base import Algorithm
from learner.dropout import rates
from learner.settings import ModelSettings
from services.models.files import ModelFiles


def check_processes(
    count: int, asked: ModelSettings, algorithm: Algorithm, learner_gpus: float | None, model: ModelFiles
) -> None:
    """Check that learner.num_processes goes together with the other settings.

    Args:
        count: processes of the learner.
        learner_gpus: GPUs of each; None: left open.

    Raises:
        InputError: it does not; with both ways out.
    """
    if count == 1:
        return
    reasons = (
        (asked.adapter.trains, f"model.adapter.kind={asked.adapter.kind}", "model.adapter.kind=none"),
        (
            asked.trainable_layers is not None,
            f"model.trainable_layers={asked.trainable_layers}",
            "model.trainable_layers=null",
        ),
        # Ranks that skip different layers would wait for each other for ever.
        (
            asked.drops_out(algorithm) and any("layerdrop" in name for name in rates(model.config)),
            f"model.path={asked.path}, whose configuration drops whole layers out",
            "model.dropout=false",
        ),
        (model.is_encoder_decoder, f"model.path={asked.path}, an encoder-decoder", "a causal model"),
    )
    for is_so, what, expected in reasons:
        if is_so:
            raise InputError(
                f"learner.num_processes={count} does not go together with {what}: expected {expected}, or "
                "learner.num_processes=1"
            )
    if learner_gpus and learner_gpus <= 0.5:
        raise InputError(
            f"learner.num_processes={count} with cluster.learner_gpus={learner_gpus:g}: two of them would be "
            "put on one GPU, where NCCL does not let them meet; expected more than 0.5"
        )
