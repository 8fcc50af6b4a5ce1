"""Settings of `whetstone annotate --pass-rate`, typed from the command line."""

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import Field, PlainValidator, field_validator, model_validator

from contracts.conversations.chat_settings import ChatSettings
from contracts.settings import Settings, build
from reward_servers.part_checks import check_parts
from reward_servers.settings import Part, parts
from rollout_workers.settings import RolloutSettings
from services.data.tasks.base import Task, asked_for
from services.studies.annotation.settings import with_overrides

HELP = """whetstone annotate --pass-rate KEY=VALUE …: leave out the prompts that teach nothing

  whetstone annotate --pass-rate task=prompts task.data_files=FOLDER model=MODEL reward=math output=kept
  whetstone train task=prompts task.data_files=kept …

The model answers each training prompt `samples` times. A prompt is kept, with a column pass_rate, where some
answers earn `pass_at` and some do not. The same command continues where it was stopped.

Keys: {keys}"""


class PassRateSettings(Settings):
    """All settings of a filter by pass rate.

    Example: `PassRateSettings(output="kept", task=Prompts(data_files="sums.jsonl"), model="runs/demo",
    reward=parts("math"))`
    """

    output: str  # folder for train.jsonl with the kept prompts, and the other splits' prompts
    overwrite: bool = False  # write and score anew where settings changed
    task: Annotated[Task, PlainValidator(asked_for)]  # task whose training prompts are answered
    model: str  # a model's folder or hub name, or a finished run's folder
    reward: tuple[Part, ...] = Field(min_length=1)  # one, or a list, whose weighted sum counts
    samples: int = Field(default=8, ge=2)  # answers to each prompt
    pass_at: float = 1.0  # reward from which an answer passes
    lowest: float | None = Field(default=None, ge=0, le=1)  # least pass rate that is kept; None: any above 0
    highest: float | None = Field(default=None, ge=0, le=1)  # greatest that is kept; None: any below 1
    seed: int = Field(default=0, ge=0)
    prompts_per_part: int = Field(default=64, ge=1)  # answered and saved at once; a kill loses one part
    chat: ChatSettings = ChatSettings()  # how conversations are read; a run's own, unless given
    rollout: RolloutSettings = RolloutSettings()  # engine and sampling, as in training

    @field_validator("task", mode="after")
    @classmethod
    def _is_there(cls, value: Task | None) -> Task:
        if value is None:
            raise ValueError("expected task=NAME, such as task=prompts task.data_files=FILE.jsonl")
        return value

    @field_validator("reward", mode="before")
    @classmethod
    def _parts(cls, value: Any) -> tuple[Part, ...]:
        rewards = parts(value, "reward")
        check_parts("reward", rewards)
        return rewards

    @model_validator(mode="after")
    def _some_rate_fits(self) -> Self:
        if self.lowest is not None and self.highest is not None and self.lowest > self.highest:
            raise ValueError(f"expected lowest ≤ highest, got {self.lowest} and {self.highest}")
        return self


def pass_rate_settings(overrides: Sequence[str]) -> PassRateSettings:
    """Return the settings of `KEY=VALUE …`.

    Raises:
        InputError: a key is unknown, missing, or of the wrong type or range.
    """
    from omegaconf import OmegaConf

    from services.config.override_words import parse

    tree = with_overrides(OmegaConf.create({}), [parse(text) for text in overrides])
    return build(PassRateSettings, tree, where="")


def print_pass_rate_help() -> int:
    """Print the help of `whetstone annotate --pass-rate`."""
    print(HELP.format(keys=", ".join(PassRateSettings.model_fields)))
    return 0
