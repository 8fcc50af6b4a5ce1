"""Resources that learner and workers reserve in a cluster, and the placement of workers on its nodes."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from contracts.settings import Settings

Strategy = Literal["none", "pack", "spread", "strict_spread"]


def _whole_above_one(count: float) -> float:
    """Reject a fraction above one GPU. Ray assigns a share of one GPU, or whole GPUs."""
    if count > 1 and count != int(count):
        raise ValueError("expected a share of a GPU, such as 0.5, or a whole number of them")
    return count


Gpus = Annotated[float, Field(ge=0), AfterValidator(_whole_above_one)]


class ClusterSettings(Settings):
    """Reservations in Ray. They decide where a process runs, but do not limit its use of the node."""

    # GPUs of each learner process. Set both learner_gpus and worker_gpus, or neither. None: all processes
    # get equal shares of the available GPUs
    learner_gpus: Gpus | None = None
    worker_gpus: Gpus | None = None  # GPUs of each worker; see learner_gpus
    learner_cpus: float = Field(default=0.0, ge=0)  # 0 fits anywhere, because threads share cores
    worker_cpus: float = Field(default=0.0, ge=0)  # CPUs that each worker reserves
    # Nodes of the workers, reserved for all workers at once. pack: few nodes; spread: many nodes;
    # strict_spread: one node for each worker; none: reserve workers one by one, wherever there is room
    strategy: Strategy = "none"

    @model_validator(mode="after")
    def _shares_of_both(self) -> Self:
        if (self.learner_gpus is None) != (self.worker_gpus is None):
            raise ValueError(
                f"got learner_gpus={self.learner_gpus}, worker_gpus={self.worker_gpus}: learner and workers "
                "share the GPUs; give both, or neither"
            )
        if self.strategy != "none" and not (self.worker_gpus or self.worker_cpus):
            raise ValueError(
                f"strategy={self.strategy} places what workers reserve, and they reserve nothing; expected "
                "worker_gpus= or worker_cpus= with it"
            )
        return self
