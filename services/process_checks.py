"""What a learner of several processes can't do yet, refused before anything is started."""

from contracts.errors import InputError
from learner.dropout import rates
from services.model_files import ModelFiles
from services.settings import RunSettings


def check_processes(settings: RunSettings, model: ModelFiles) -> None:
    """Raises InputError where `learner.num_processes` does not go together with another setting."""
    count = settings.learner.num_processes
    if count == 1:
        return
    asked = settings.model
    reasons = (
        (asked.adapter.trains, f"model.adapter.kind={asked.adapter.kind}", "model.adapter.kind=none"),
        (
            asked.trainable_layers is not None,
            f"model.trainable_layers={asked.trainable_layers}",
            "model.trainable_layers=null",
        ),
        # Ranks that skip other layers would wait for each other without end.
        (
            asked.drops_out(settings.algorithm) and any("layerdrop" in name for name in rates(model.config)),
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
    share = settings.cluster.learner_gpus
    if share and share <= 0.5:
        raise InputError(
            f"learner.num_processes={count} with cluster.learner_gpus={share:g}: two of them would be put on "
            "one GPU, where NCCL does not let them meet; expected more than 0.5"
        )
