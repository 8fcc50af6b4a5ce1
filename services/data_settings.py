"""Everything under `data.` of a training run: which annotated data set, and how much of it."""

from typing import Any, Literal, Self

from pydantic import Field, field_serializer, field_validator, model_validator

from contracts.settings import Settings
from reward_servers.server import check_parts
from reward_servers.settings import Part, parts
from services.value_stage import ValueStage

RankBy = Literal["reward", "order"]


class DataSettings(Settings):
    """What `whetstone annotate` wrote, for algorithms that learn from data, or as a share of each batch.

    Example: `data=annotated` is `DataSettings(folder="annotated")`
    """

    folder: str
    share: float | None = Field(default=None, gt=0, lt=1)  # of each batch, beside generated or imitated texts
    num_epochs: int | None = Field(default=None, ge=1)  # passes over the data, in place of `iterations`
    reward: tuple[Part, ...] | None = (
        None  # annotated rewards, weighed anew; None: as the annotation was told
    )
    num_responses: int = Field(default=2, ge=2)  # of a prompt, for algorithms that compare them
    rank_by: RankBy = "reward"  # order: the data set's own, the best first
    evaluations_per_epoch: int | None = Field(default=None, ge=1)  # passes over the data; for evaluate_every
    # How whetstone annotate experiment=… learns the values; a run warns of data that has other ones
    value: ValueStage | None = None

    @field_validator("reward", mode="before")
    @classmethod
    def _parts(cls, value: Any) -> tuple[Part, ...] | None:
        if value is None:
            return None
        found = parts(value, "data.reward")
        check_parts("reward", found)
        return found

    @model_validator(mode="after")
    def _iterations_say_when_it_ends(self) -> Self:
        if self.share is not None and self.num_epochs is not None:
            raise ValueError(
                f"got share={self.share:g} and num_epochs={self.num_epochs}: where data are mixed in, "
                "iterations= says how long a run is; leave num_epochs out"
            )
        if self.evaluations_per_epoch is not None and self.num_epochs is None:
            raise ValueError(
                f"got evaluations_per_epoch={self.evaluations_per_epoch} without num_epochs: expected both, "
                "or evaluate_every= in iterations"
            )
        return self

    @field_serializer("reward")
    def _flat(self, value: tuple[Part, ...] | None) -> list[dict[str, Any]] | None:
        if value is None:
            return None
        return [{**part.model_dump(mode="json", exclude={"options"}), **part.options} for part in value]
