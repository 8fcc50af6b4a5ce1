"""Settings under `data.`: which annotated data set a run trains on, and how much of it."""

from typing import Any, Literal, Self

from pydantic import Field, field_serializer, field_validator, model_validator

from contracts.settings import Settings
from reward_servers.part_checks import check_parts
from reward_servers.settings import Part, parts
from services.config.value_stage import ValueStage

RankBy = Literal["reward", "order"]


class DataSettings(Settings):
    """An annotated data set, for algorithms that learn from data or as a share of each batch.

    Example: `data=annotated` is `DataSettings(folder="annotated")`
    """

    folder: str  # the folder that `whetstone annotate` wrote
    share: float | None = Field(default=None, gt=0, lt=1)  # share of each batch that comes from the data
    num_epochs: int | None = Field(default=None, ge=1)  # passes over the data, in place of `iterations`
    # Annotated rewards with new weights; None: the weights of the annotation
    reward: tuple[Part, ...] | None = None
    num_responses: int = Field(default=2, ge=2)  # responses per prompt, for algorithms that compare them
    rank_by: RankBy = "reward"  # order: the data set's own order, the best response first
    # Evaluations in each pass over the data, in place of `evaluate_every`
    evaluations_per_epoch: int | None = Field(default=None, ge=1)
    # How `whetstone annotate experiment=…` learns values. A run warns where the data's values differ
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
                f"got share={self.share:g} and num_epochs={self.num_epochs}: with share=, iterations= sets "
                "the length of a run; leave num_epochs out"
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
