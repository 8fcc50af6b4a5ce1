"""Limits of rewards that confine each sample (reward_servers/isolation/confined.py)."""

from typing import Any

from pydantic import Field, model_validator

from contracts.settings import Settings


class Limits(Settings):
    """Limits of one sample, and of a batch."""

    seconds: float = Field(default=5.0, gt=0)  # limit of CPU time; three times as long by the clock
    memory_gib: float = Field(default=1.0, gt=0)
    file_mib: float = Field(default=16.0, gt=0)  # limit of its own folder, which is emptied afterwards
    parallel: int | None = Field(default=None, ge=1)  # samples at a time; None: one for each core
    batch_seconds: float = Field(default=45.0, gt=0)  # a batch's limit; ends what has run for a second

    @model_validator(mode="after")
    def _leave_a_sample_its_time(self) -> "Limits":
        if self.seconds >= self.batch_seconds:
            raise ValueError(
                f"got seconds={self.seconds:g} for a sample and batch_seconds={self.batch_seconds:g} for a "
                "whole batch; expected more batch_seconds"
            )
        return self


def limits_of(grader: Any) -> Limits | None:
    """Return the limits of a grader that confines its samples; None for others."""
    limits = getattr(grader, "limits", None)
    return limits if isinstance(limits, Limits) else None
