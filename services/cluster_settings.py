"""What learner and workers reserve of a cluster, and how the workers are laid over its nodes."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from contracts.settings import Settings

Strategy = Literal["none", "pack", "spread", "strict_spread"]


def _whole_above_one(count: float) -> float:
    """A process has a share of one GPU, or whole ones: Ray gives nothing in between."""
    if count > 1 and count != int(count):
        raise ValueError("expected a share of a GPU, such as 0.5, or a whole number of them")
    return count


Gpus = Annotated[float, Field(ge=0), AfterValidator(_whole_above_one)]


class ClusterSettings(Settings):
    """Reservations are Ray's: they decide where a process goes, and bound nothing that it does there."""

    # GPUs of the learner's process and of each worker. Both null: equal shares of those that there are, so
    # that all find a place
    learner_gpus: Gpus | None = None
    worker_gpus: Gpus | None = None
    learner_cpus: float = Field(default=0.0, ge=0)  # 0 fits anywhere: threads share a machine's cores
    worker_cpus: float = Field(default=0.0, ge=0)
    # Workers' places, taken together or not at all. pack: on few nodes; spread: on many, strict_spread: on
    # one each; none: one by one, wherever there is room
    strategy: Strategy = "none"

    @model_validator(mode="after")
    def _shares_of_both(self) -> Self:
        if (self.learner_gpus is None) != (self.worker_gpus is None):
            raise ValueError(
                f"got learner_gpus={self.learner_gpus}, worker_gpus={self.worker_gpus}: what one of them "
                "takes is not there for the other; give both, or neither"
            )
        if self.strategy != "none" and not (self.worker_gpus or self.worker_cpus):
            raise ValueError(
                f"strategy={self.strategy} lays out what workers reserve, and that is nothing; expected "
                "worker_gpus= or worker_cpus= with it"
            )
        return self
