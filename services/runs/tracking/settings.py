"""Settings under `tracking.` of a training run."""

from typing import Any, Literal, Self

from pydantic import field_validator, model_validator

from contracts.settings import Settings


class TrackingSettings(Settings):
    """Place of the run in MLflow, and in other trackers, besides the run's folder."""

    enabled: bool = True  # False: record the run only in its folder
    uri: str | None = None  # None: a SQLite file and artifacts in output_dir
    experiment: str = "whetstone"  # group of runs in MLflow; project in other trackers
    team: str | None = None  # team in Weights & Biases; None: WANDB_ENTITY, or the account's default
    also: tuple[Literal["wandb", "tensorboard", "trackio"], ...] = ()  # further trackers
    model: bool = False  # True: MLflow gets a copy of the trained model

    @model_validator(mode="after")
    def _team_has_a_tracker(self) -> Self:
        if self.team is not None and "wandb" not in self.also:
            raise ValueError(f"got team={self.team} for Weights & Biases; expected tracking.also=wandb, too")
        return self

    @field_validator("also", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """Take one name or a list of names, as YAML has them."""
        return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
